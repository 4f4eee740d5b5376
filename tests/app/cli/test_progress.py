"""What a person sees of a running study."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from app.cli.progress import LineView, Snapshot, best_trial, changes, duration, eta_s, render
from app.client import Study, Trial
from tuner.protocol import Failure, FailureKind, Phase, Verdict
from tuner.spec import parse_study


def study(**changes: Any) -> Study:
    spec = {
        "name": "tiny",
        "engine": {"model": "m"},
        "workload": {
            "prompts": {"input_tokens": 8, "output_tokens": 8},
            "arrivals": {"kind": "closed", "concurrency": 2},
        },
        "slos": [{"metric": "ttft_p95_s", "max": 1.0}],
        "budget": {"trials": 4},
        **changes,
    }
    return Study(name="tiny", state="running", spec=parse_study(spec))


def completed(number: int, tokens_per_s: float, *, ttft: float = 0.5) -> Trial:
    metrics = {"output_tokens_per_s": tokens_per_s, "e2e_p95_s": 1.0, "ttft_p95_s": ttft}
    return Trial(number=number, state="completed", args={"max_num_seqs": 8}, metrics=metrics)


def infeasible(number: int) -> Trial:
    failure = Failure(
        kind=FailureKind.KV_CACHE_TOO_SMALL,
        verdict=Verdict.INFEASIBLE,
        retryable=False,
        fatal=False,
        phase=Phase.STARTING,
        message="one request does not fit",
        advice="lower max_model_len",
    )
    return Trial(number=number, state="infeasible", failure=failure)


def running(number: int, phase: str = "measuring", **fields: Any) -> Trial:
    return Trial(number=number, state="running", phase=phase, args={"max_num_seqs": 16}, **fields)


class TestEta:
    def test_is_unknown_before_the_first_trial_ended(self) -> None:
        assert eta_s(Snapshot(study(), [running(0)], 30.0)) is None

    def test_follows_the_pace_so_far(self) -> None:
        assert eta_s(Snapshot(study(), [completed(0, 100), infeasible(1)], 60.0)) == 60.0

    def test_counts_only_trials_that_ended_while_watching(self) -> None:
        trials = [completed(0, 100), completed(1, 100), completed(2, 100)]
        assert eta_s(Snapshot(study(), trials, 40.0, ended_before=2)) == 40.0


class TestBestTrial:
    def test_is_the_highest_throughput_within_the_slos(self) -> None:
        trials = [completed(0, 100), completed(1, 300, ttft=2.0), completed(2, 200), infeasible(3)]
        best = best_trial(study().spec, trials)
        assert best is not None
        assert best.number == 2

    def test_is_the_lowest_of_a_metric_to_minimise(self) -> None:
        spec = study(objectives=[{"metric": "ttft_p95_s"}], slos=[]).spec
        best = best_trial(spec, [completed(0, 1, ttft=0.4), completed(1, 1, ttft=0.3)])
        assert best is not None
        assert best.number == 1

    def test_is_none_while_nothing_is_feasible(self) -> None:
        assert best_trial(study().spec, [infeasible(0), running(1)]) is None


class TestChanges:
    def test_a_new_trial_is_named_with_its_knobs(self) -> None:
        lines = list(changes(Snapshot(study(), [], 0.0), Snapshot(study(), [running(0)], 1.0)))
        assert lines == ["[1/4] trial 0: max_num_seqs=16", "[1/4] trial 0 running: measuring"]

    def test_nothing_new_is_no_line(self) -> None:
        before = Snapshot(study(), [running(0)], 0.0)
        assert list(changes(before, Snapshot(study(), [running(0)], 1.0))) == []

    def test_an_infeasible_trial_says_why_and_what_to_do(self) -> None:
        before = Snapshot(study(), [running(0)], 0.0)
        lines = list(changes(before, Snapshot(study(), [infeasible(0)], 9.0)))
        assert lines[0] == (
            "[1/4] trial 0 infeasible: kv_cache_too_small: one request does not fit. lower max_model_len"
        )
        assert "1 of 4 trials ended, 1 infeasible" in lines[1]
        assert "ETA 27 s" in lines[1]

    def test_a_long_message_is_cut_and_its_advice_kept(self) -> None:
        trial = infeasible(0)
        assert trial.failure is not None
        failure = trial.failure.model_copy(update={"message": "word " * 100})
        trial = trial.model_copy(update={"failure": failure})
        line = next(changes(Snapshot(study(), [running(0)], 0.0), Snapshot(study(), [trial], 9.0)))
        assert len(line) < 280
        assert line.endswith("word …. lower max_model_len")

    def test_trials_that_ended_before_are_not_told_again(self) -> None:
        assert list(changes(None, Snapshot(study(), [completed(0, 100)], 0.0))) == []

    def test_pace_of_a_running_trial_is_shown(self) -> None:
        now = Snapshot(study(), [running(0, partial={"output_tokens_per_s": 512.4})], 1.0)
        assert "measuring, 512 tokens/s" in list(changes(None, now))[-1]


class TestRender:
    def text(self, snapshot: Snapshot) -> str:
        console = Console(file=io.StringIO(), width=160)
        console.print(render(snapshot))
        output = console.file
        assert isinstance(output, io.StringIO)
        return output.getvalue()

    def test_shows_trials_best_infeasible_and_eta(self) -> None:
        trials = [completed(0, 1234.0), infeasible(1), running(2, "warming_up")]
        text = self.text(Snapshot(study(), trials, 60.0))
        assert "1,234 tokens/s" in text
        assert "warming up" in text
        assert "0 *" in text
        assert "2 of 4 trials ended, 1 infeasible" in text
        assert "ETA 1 min 0 s" in text

    def test_configuration_is_never_read_as_markup(self) -> None:
        trial = Trial(number=0, state="completed", args={"compilation_config": "[/red]"})
        assert "[/red]" in self.text(Snapshot(study(), [trial], 1.0))


class TestLineView:
    def test_prints_each_change_once(self, capsys: Any) -> None:
        view = LineView()
        view.show(Snapshot(study(), [running(0)], 0.0))
        view.show(Snapshot(study(), [running(0)], 1.0))
        assert capsys.readouterr().out.count("measuring") == 1


def test_durations_are_said_as_people_say_them() -> None:
    assert [duration(s) for s in (None, 5.4, 200, 7500)] == ["-", "5 s", "3 min 20 s", "2 h 5 min"]
