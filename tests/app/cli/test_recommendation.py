"""A recommendation on the screen and in files."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from app.cli.recommendation import Answer, print_recommendation, write_files
from app.client import Study, Trial
from tuner.recommend import Figures, Recommendation, SloResult
from tuner.spec import parse_study

SPEC = parse_study(
    {
        "name": "tiny",
        "engine": {"model": "/models/my model"},
        "workload": {
            "prompts": {"input_tokens": 8, "output_tokens": 8},
            "arrivals": {"kind": "closed", "concurrency": 2},
        },
    }
)
FOUND = Recommendation(
    trial_number=3,
    args={"max_num_seqs": 64, "enforce_eager": True, "chat_template": "it's"},
    env={"VLLM_CPU_KVCACHE_SPACE": "3"},
    serve_line="VLLM_CPU_KVCACHE_SPACE=3 vllm serve '/models/my model' --max-num-seqs 64",
    config_yaml="model: /models/my model\nmax-num-seqs: 64\n",
    figures={"output_tokens_per_s": Figures(recommended=1500.0, baseline=1000.0, ratio=1.5)},
    slos=(SloResult(metric="ttft_p95_s", bound="<= 2", value=0.5, met=True),),
    note="Each figure is from one measurement.",
)
NONE = Recommendation(trial_number=None, reason="none of the 4 measured configurations met every SLO")


def answer(recommendation: Recommendation) -> Answer:
    return Answer(
        Study(name="tiny", state="completed", spec=SPEC), [Trial(number=0, state="completed")], recommendation
    )


class TestPrintRecommendation:
    def test_shows_the_line_and_the_figures_beside_the_baselines(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        print_recommendation(FOUND)
        out = capsys.readouterr().out
        assert FOUND.serve_line in out
        assert "output_tokens_per_s  tokens/s  1,500        1,000            1.50x" in out
        assert "SLO ttft_p95_s <= 2: 0.5, met" in out
        assert "one measurement" in out

    def test_says_why_there_is_none(self, capsys: pytest.CaptureFixture[str]) -> None:
        print_recommendation(NONE)
        assert capsys.readouterr().out == f"No recommendation: {NONE.reason}\n"


class TestWriteFiles:
    def test_writes_what_serves_and_what_proves(self, tmp_path: Path) -> None:
        files = write_files(answer(FOUND), tmp_path / "results", Path("/opt/vllm/bin/python"))
        assert [file.name for file in files] == ["study.json", "recommended.yaml", "serve.sh"]
        assert yaml.safe_load(files[1].read_text())["max-num-seqs"] == 64
        document = json.loads(files[0].read_text())
        assert document["recommendation"]["trial_number"] == 3
        assert document["trials"][0]["number"] == 0

    def test_script_starts_the_configuration_and_passes_arguments_on(self, tmp_path: Path) -> None:
        files = write_files(answer(FOUND), tmp_path, Path("/no/such/python"))
        printer = tmp_path / "python"
        printer.write_text('#!/bin/sh\necho "$VLLM_CPU_KVCACHE_SPACE"\nprintf "%s\\n" "$@"\n')
        printer.chmod(0o755)
        environment = {**os.environ, "NIGHTSHIFT_VLLM_PYTHON": str(printer)}
        done = subprocess.run(
            [files[2], "--port", "9000"], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines() == [
            *("3", "-m", "vllm.entrypoints.openai.api_server", "--model", "/models/my model"),
            *("--max-num-seqs", "64", "--enforce-eager", "--chat-template", "it's", "--port", "9000"),
        ]

    def test_without_a_recommendation_there_is_only_the_evidence(self, tmp_path: Path) -> None:
        assert [file.name for file in write_files(answer(NONE), tmp_path, Path("python"))] == ["study.json"]
