"""How vLLM is started and what is read from it, without starting it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workers.conftest import AssignmentMaker
from workers.engines.vllm import (
    Site,
    VllmEngine,
    asks_for_arguments,
    chosen_environment,
    engine_environment,
    resolve,
)

SITE = Site(python=Path("/opt/vllm/bin/python"), mark="m", gpus=["2", "3"], inherited={"PATH": "/usr/bin"})


class TestTheCommandLine:
    def test_is_the_modules_with_the_trials_flags(
        self, assignment: AssignmentMaker, tmp_path: Path, tiny_model: Path
    ) -> None:
        engine = VllmEngine(assignment(args={"enforce_eager": True, "block_size": 16}), SITE, tmp_path)
        assert engine.argv[:3] == ("/opt/vllm/bin/python", "-m", "vllm.entrypoints.openai.api_server")
        assert ("--model", str(tiny_model)) == engine.argv[3:5]
        assert engine.argv[-3:] == ("--enforce-eager", "--block-size", "16")
        assert engine.url.endswith(engine.argv[engine.argv.index("--port") + 1])

    def test_names_a_folder_absolutely_because_the_engine_runs_elsewhere(
        self, assignment: AssignmentMaker, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tiny_model.parent)
        engine = VllmEngine(assignment(engine={"model": tiny_model.name}), SITE, tmp_path)
        assert str(tiny_model) in engine.argv


class TestTheEnvironment:
    def test_shows_the_attempts_gpus_alone(self, assignment: AssignmentMaker) -> None:
        assert chosen_environment(assignment(), SITE)["CUDA_VISIBLE_DEVICES"] == "2,3"

    def test_is_offline_only_for_a_folder(self, assignment: AssignmentMaker) -> None:
        assert chosen_environment(assignment(), SITE)["HF_HUB_OFFLINE"] == "1"
        of_the_hub = assignment(engine={"model": "org/model"})
        assert "HF_HUB_OFFLINE" not in chosen_environment(of_the_hub, SITE)

    def test_is_the_trials_where_it_says_otherwise(self, assignment: AssignmentMaker) -> None:
        chosen = chosen_environment(assignment(env={"HF_HUB_OFFLINE": "0"}), SITE)
        assert engine_environment(chosen, SITE)["HF_HUB_OFFLINE"] == "0"

    def test_has_nothing_of_ours_and_no_key_that_would_lock_us_out(self) -> None:
        inherited = {
            "NIGHTSHIFT_TOKEN": "t",
            "NIGHTSHIFT_TOKEN_FILE": "f",
            "VLLM_API_KEY": "k",
            "HF_TOKEN": "h",
        }
        site = Site(python=SITE.python, mark="m", inherited=inherited)
        assert engine_environment({}, site).keys() == {"HF_TOKEN", "PATH"}

    def test_finds_the_compilers_beside_the_interpreter(self) -> None:
        assert engine_environment({}, SITE)["PATH"] == "/opt/vllm/bin:/usr/bin"

    def test_opens_the_servers_facts_only_where_a_knob_is_left_to_its_default(
        self, assignment: AssignmentMaker
    ) -> None:
        baseline = assignment(args={}, knobs=["max_num_seqs"])
        assert asks_for_arguments(baseline)
        assert chosen_environment(baseline, SITE)["VLLM_SERVER_DEV_MODE"] == "1"
        assert "VLLM_SERVER_DEV_MODE" not in chosen_environment(assignment(), SITE)


INFO = {
    "vllm_config": {
        "scheduler_config": {"max_num_seqs": 128, "policy": "fcfs"},
        "cache_config": {"cache_dtype": "auto", "block_size": 128, "kv_cache_memory_bytes": 2**30},
        "model_config": {"enforce_eager": False, "hf_config": {"deep": 1}},
    },
    "vllm_env": {"OMP_NUM_THREADS": "4", "VLLM_CPU_KVCACHE_SPACE": None},
}


class TestResolvedArguments:
    def test_are_found_in_whatever_section_they_are(self) -> None:
        names = ["max_num_seqs", "block_size", "enforce_eager", "OMP_NUM_THREADS"]
        assert resolve(names, INFO) == {
            "max_num_seqs": 128,
            "block_size": 128,
            "enforce_eager": False,
            "OMP_NUM_THREADS": "4",
        }

    def test_have_the_names_of_flags(self) -> None:
        assert resolve(["kv_cache_dtype"], INFO) == {"kv_cache_dtype": "auto"}

    def test_include_the_cpus_cache_in_gib(self) -> None:
        assert resolve(["VLLM_CPU_KVCACHE_SPACE"], INFO) == {"VLLM_CPU_KVCACHE_SPACE": 1.0}

    def test_that_are_not_told_or_no_plain_values_are_absent(self) -> None:
        assert resolve(["unheard_of", "hf_config"], INFO) == {}
        assert resolve(["max_num_seqs"], {"vllm_config": "text"}) == {}
