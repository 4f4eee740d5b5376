"""The study of ``nightshift quickstart`` shows what it is meant to show."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from optuna.trial import FrozenTrial, TrialState

from app.cli.quickstart import make_model, memory_share, study_for_quickstart
from app.cli.study_file import study_from
from tuner.errors import FieldError
from tuner.space import build_space
from tuner.suggestion import suggest

WHOLE_CONTEXT = 262_144
TOO_LITTLE = ({"VLLM_CPU_KVCACHE_SPACE": "1"}, {"kv_cache_memory_bytes": 2**30})


def cannot_run(trial: FrozenTrial) -> bool:
    """Whether the model's whole context meets a KV cache of 1 GiB."""
    args, env = trial.user_attrs["args"], trial.user_attrs["env"]
    little = any(item in {**args, **env}.items() for small in TOO_LITTLE for item in small.items())
    return bool(args.get("max_model_len") == WHOLE_CONTEXT and little)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_one_of_the_first_eight_trials_cannot_run(on_gpu: bool) -> None:
    spec = study_from(study_for_quickstart("quickstart", Path("/models/tiny"), 8, on_gpu=on_gpu))
    space = build_space(spec)
    history: list[FrozenTrial] = []
    for number in range(8):
        trial = suggest(spec, space, history).template(f"lease-{number}")
        trial.number = number
        trial.state = TrialState.PRUNED if cannot_run(trial) else TrialState.COMPLETE
        if trial.state is TrialState.COMPLETE:
            trial.values = [400.0, 1.3]
        trial.datetime_complete = trial.datetime_start
        history.append(trial)
    assert any(cannot_run(trial) for trial in history)
    assert not cannot_run(history[0])


def test_share_of_memory_is_one_that_vllm_takes() -> None:
    assert 0.0 < memory_share() <= 0.8


class TestMakeModel:
    def test_no_interpreter(self, tmp_path: Path) -> None:
        with pytest.raises(FieldError, match="NIGHTSHIFT_VLLM_PYTHON: there is no such interpreter"):
            make_model(tmp_path / "absent", tmp_path / "model")

    def test_folder_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(FieldError, match="the model cannot be made: NotADirectoryError"):
            make_model(Path(sys.executable), tmp_path / "file" / "model")
