"""Verdicts: every known case, every real log, and what must never change one."""

import json
import random
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tuner.errors import FieldError
from tuner.protocol import Failure, FailureKind, Phase, Verdict
from workers.failures import Evidence, classify, evidence_of_case, evidence_of_log
from workers.failures.catalogue import STANDINGS

FOLDER = Path(__file__).parents[1] / "failures_cases"
CASES = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
LOGS = json.loads((FOLDER / "logs" / "expected.json").read_text())
GIB = 2**30
VerdictTuple = tuple[str | None, str, bool, bool]


def lines_of(name: str) -> list[str]:
    return (FOLDER / "logs" / f"{name}.log").read_text().splitlines()


def verdict(failure: Failure | None) -> VerdictTuple:
    if failure is None:
        return (None, "ok", False, False)
    return (failure.kind.value, failure.verdict.value, failure.retryable, failure.fatal)


def expected(case: dict[str, Any]) -> VerdictTuple:
    return (case["kind"], case["verdict"], case["retryable"], case["fatal"])


def evidence_of_real(name: str) -> Evidence:
    facts = LOGS[name]
    phase = Phase(facts.get("phase", "starting"))
    return Evidence(phase=phase, exit_code=facts["exit_code"], log_lines=tuple(lines_of(name)))


@cache
def every_evidence() -> dict[str, tuple[Evidence, VerdictTuple]]:
    cases = {name: (evidence_of_case(case), expected(case["expected"])) for name, case in CASES.items()}
    return cases | {name: (evidence_of_real(name), expected(facts)) for name, facts in LOGS.items()}


def failure_of(name: str) -> Failure:
    failure = classify(every_evidence()[name][0])
    assert failure is not None
    return failure


# ---------------------------------------------------------------- known cases and real logs


@pytest.mark.parametrize("name", [*CASES, *LOGS])
def test_known_failure_gets_its_verdict(name: str) -> None:
    evidence, right = every_evidence()[name]
    assert verdict(classify(evidence)) == right


@pytest.mark.parametrize("name", LOGS)
def test_a_log_alone_is_enough_for_the_same_verdict(name: str) -> None:
    assert verdict(classify(evidence_of_log(lines_of(name)))) == expected(LOGS[name])


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        ("Killed", "oom_host"),
        ("run.sh: line 3:  4711 Killed                  vllm serve x", "oom_host"),
        ("Segmentation fault (core dumped)", "engine_crash"),
        ("Illegal instruction (core dumped)", "broken_installation"),
        ("Killed all stale entries of the cache", None),
    ],
)
def test_a_shells_last_words_stand_for_the_exit_code(last: str, kind: str | None) -> None:
    log = ["(EngineCore pid=1) INFO 12-01 10:00:00 [core.py:1] Loading", last]
    assert verdict(classify(evidence_of_log(log)))[0] == kind


def test_every_kind_has_a_case() -> None:
    seen = {case["expected"]["kind"] for case in CASES.values()}
    assert seen >= {kind.value for kind in FailureKind}


@pytest.mark.parametrize("name", [*CASES, *LOGS])
def test_a_failure_is_told_in_a_sentence_with_advice_and_lines(name: str) -> None:
    failure = classify(every_evidence()[name][0])
    if failure is None:
        return
    assert failure.message
    assert failure.advice.endswith((".", "…"))
    assert failure.excerpt
    assert all(len(line) <= 600 for line in failure.excerpt)


def test_the_document_says_what_usually_follows_from_each_kind() -> None:
    text = (FOLDER.parents[1] / "docs" / "verdicts.md").read_text()
    told = dict(re.findall(r"^\| `(\w+)` \| ((?:infeasible|failed)[a-z, ]*) \|", text, re.MULTILINE))
    usual = {
        kind.value: standing.verdict.value
        + (", retryable" if standing.retryable else "")
        + (", fatal" if standing.fatal else "")
        for kind, standing in STANDINGS.items()
    }
    assert {kind: told.get(kind) for kind in usual} == usual


# ---------------------------------------------------------------- figures and advice


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        (
            "h200-one-request",
            {"needed_bytes": 2.0 * GIB, "available_bytes": 1.88 * GIB, "longest_model_len": 3840},
        ),
        (
            "h200-oom-profile",
            {"asked_bytes": 37.38 * GIB, "free_bytes": 27.38 * GIB, "total_bytes": 139.8 * GIB},
        ),
        ("h200-free-memory", {"asked_bytes": 125.82 * GIB, "free_bytes": 78.77 * GIB, "utilization": 0.9}),
        ("oom-while-serving", {"asked_bytes": 50 * 2**20, "free_bytes": 56.88 * 2**20}),
        ("triton-shared-memory", {"required_bytes": 81920, "limit_bytes": 65536}),
        ("oom-chained-sampler-warmup", {"dummy_requests": 1024, "asked_bytes": 2 * GIB}),
        ("batched-tokens-below-seqs", {"max_num_batched_tokens": 64, "max_num_seqs": 128}),
        ("cpu-model-length", {"max_model_len": 4096, "longest_model_len": 2048}),
        ("cpu-kv-cache-larger-than-the-host", {"asked_bytes": 500 * GIB, "free_bytes": 10.61 * GIB}),
        ("oom-host-on-cpu-build", {"asked_bytes": 40 * GIB}),
        ("available-in-blocks-v0", {"max_model_len": 131072, "longest_model_len": 63488}),
        ("no-token-any-more", {"stalled_s": 120}),
    ],
)
def test_figures_of_the_message_are_kept(name: str, figures: dict[str, float]) -> None:
    numbers = failure_of(name).numbers
    assert {key: numbers.get(key) for key in figures} == pytest.approx(figures)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("h200-oom-profile", "max_num_batched_tokens"),
        ("oom-sampler-warmup", "max_num_seqs"),
        ("oom-graph-capture", "max_cudagraph_capture_size"),
        ("oom-graph-capture", "enforce_eager"),
        ("oom-weights", "quantize"),
        ("oom-xpu-kv-cache", "gpu_memory_utilization"),
        ("oom-while-serving", "gpu_memory_utilization"),
        ("h200-one-request", "max_model_len to at most 3840"),
        ("h200-no-blocks", "Raise gpu_memory_utilization"),
        ("h200-free-memory", "nvidia-smi"),
        ("utilization-above-what-is-free-on-an-idle-gpu", "below 0.993"),
        ("cpu-kv-cache-larger-than-the-host", "VLLM_CPU_KVCACHE_SPACE"),
        ("removed-flag", "--kv-offloading-size"),
        ("missing-module", "Install flashinfer"),
        ("gated-model", "HF_TOKEN"),
        ("host-oom-by-offloading", "cpu_offload_gb"),
        ("model-architecture-unknown", "another"),
    ],
)
def test_advice_names_what_to_change(name: str, word: str) -> None:
    assert word in failure_of(name).advice


def test_message_says_when_the_memory_ran_out_and_quotes_the_log() -> None:
    message = failure_of("h200-oom-profile").message
    assert "profile run" in message
    assert "Tried to allocate 37.38 GiB" in message


def test_excerpt_holds_the_calls_before_the_exception_without_plumbing() -> None:
    excerpt = failure_of("h200-oom-profile").excerpt
    assert "torch.OutOfMemoryError" in excerpt[-1]
    assert any("activation.py" in line for line in excerpt)
    assert not any("torch/nn/modules/module.py" in line for line in excerpt)


def test_excerpt_of_an_unknown_failure_keeps_no_prompts() -> None:
    log = ("INFO 11-02 10:00:09 [logger.py:40] Received request cmpl-1: prompt: 'my secret'", "it went away")
    failure = classify(Evidence(phase=Phase.MEASURING, exit_code=3, log_lines=log))
    assert failure is not None
    assert failure.excerpt == ("it went away",)


def test_secrets_do_not_travel() -> None:
    line = "RuntimeError: hf_abcdefghijklmnop at https://user:hunter2@host/x?api_key=topsecret"
    failure = classify(Evidence(phase=Phase.STARTING, exit_code=1, log_lines=(line,)))
    assert failure is not None
    told = failure.model_dump_json()
    assert not re.search("abcdefghijklmnop|hunter2|topsecret", told)


# ---------------------------------------------------------------- facts outside the log


def oom(**facts: Any) -> Evidence:
    line = (
        "(EngineCore pid=1) ERROR 12-01 06:27:28 [core.py:1330] torch.OutOfMemoryError: CUDA out of memory. "
        "Tried to allocate 8.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which 2.00 GiB is free."
    )
    return Evidence(phase=Phase.STARTING, exit_code=1, log_lines=(line,), **facts)


@pytest.mark.parametrize(
    ("before_gib", "right"), [(None, "infeasible"), (0.5, "infeasible"), (4, "infeasible"), (10, "failed")]
)
def test_device_oom_is_the_hosts_fault_only_if_it_had_fitted_without_others(
    before_gib: float | None, right: str
) -> None:
    before = None if before_gib is None else int(before_gib * GIB)
    assert verdict(classify(oom(gpu_memory_used_before_bytes=before)))[1] == right


@pytest.mark.parametrize("utilization", [0.5, 0.9, 0.97])
def test_memory_that_an_idle_device_would_have_is_no_fault_of_the_configuration(utilization: float) -> None:
    line = (
        "ValueError: Free memory on device cuda:0 (30.0/80.0 GiB) on startup is less than desired GPU "
        f"memory utilization ({utilization}, {80 * utilization} GiB). Decrease GPU memory utilization."
    )
    failure = classify(Evidence(phase=Phase.STARTING, exit_code=1, log_lines=(line,)))
    assert verdict(failure) == ("memory_budget", "failed", True, False)


@pytest.mark.parametrize("knob", ["cpu_offload_gb", "kv_offloading_size", "VLLM_CPU_KVCACHE_SPACE"])
def test_host_oom_is_the_configurations_fault_where_it_takes_host_memory(knob: str) -> None:
    killed = Evidence(phase=Phase.STARTING, exit_code=-9, log_lines=("Loading…",))
    asking = {"args": {knob: 64}} if knob.islower() else {"env": {knob: "64"}}
    sparing = {"args": {knob: 0}} if knob.islower() else {"env": {knob: "0"}}
    assert verdict(classify(killed))[1] == "failed"
    assert verdict(classify(replace(killed, knobs=frozenset({knob}), **asking)))[1] == "infeasible"
    assert verdict(classify(replace(killed, knobs=frozenset({knob}), **sparing)))[1] == "failed"


def test_the_kernels_count_goes_before_an_exception_when_a_process_was_killed() -> None:
    assert verdict(classify(replace(oom(cgroup_oom_kills=1), exit_code=-9)))[0] == "oom_host"


def test_another_process_that_the_kernel_killed_does_not_hide_the_exception() -> None:
    assert verdict(classify(oom(cgroup_oom_kills=1)))[0] == "oom_device"


def test_a_healthy_engine_beside_a_killed_process_has_not_failed() -> None:
    healthy = replace(evidence_of_real("cpu-healthy"), cgroup_oom_kills=2)
    assert classify(healthy) is None


def test_leaving_before_it_was_ready_is_a_failure_even_with_exit_code_0() -> None:
    failure = classify(Evidence(phase=Phase.STARTING, exit_code=0, log_lines=("bye",)))
    assert verdict(failure) == ("other", "failed", True, False)


@pytest.mark.parametrize("code", [-15, -9, 143, 137, 0])
def test_an_engine_that_the_worker_stopped_has_not_failed(code: int) -> None:
    evidence = Evidence(phase=Phase.MEASURING, exit_code=code, log_lines=("bye",), stopped_by_worker=True)
    assert classify(evidence) is None


def test_an_oom_while_serving_is_seen_although_the_worker_then_stopped_the_engine() -> None:
    serving = every_evidence()["oom-while-serving"][0]
    stopped = replace(serving, exit_code=-15, stopped_by_worker=True)
    assert verdict(classify(stopped))[:2] == ("oom_device", "infeasible")


@pytest.mark.parametrize(
    ("knobs", "fatal"), [(None, False), ({"max_model_len"}, False), ({"dtype"}, True), (set(), True)]
)
def test_a_refusal_that_no_knob_can_mend_is_fatal(knobs: set[str] | None, fatal: bool) -> None:
    evidence = every_evidence()["model-length-above-model"][0]
    chosen = None if knobs is None else frozenset(knobs)
    failure = classify(replace(evidence, knobs=chosen))
    assert verdict(failure) == ("invalid_config", "infeasible", False, fatal)


def test_nothing_but_bare_words_is_no_failure_of_a_running_engine() -> None:
    evidence = Evidence(
        phase=Phase.MEASURING, exit_code=None, log_lines=("torch.OutOfMemoryError: CUDA out of memory.",)
    )
    assert classify(evidence) is None


# ---------------------------------------------------------------- case files


@pytest.mark.parametrize(
    ("case", "field"),
    [
        ({"phase": "starting"}, "log"),
        ({"log": 7}, "log"),
        ({"log": ["x"], "phase": "sleeping"}, "phase"),
        ({"log": ["x"], "exit_code": "one"}, "exit_code"),
        ({"log": ["x"], "gpu_memory_used_before_bytes": -1}, "gpu_memory_used_before_bytes"),
    ],
)
def test_a_wrong_field_of_a_case_is_named(case: dict[str, object], field: str) -> None:
    with pytest.raises(FieldError) as caught:
        evidence_of_case(case)
    assert caught.value.field == field


def test_a_case_may_hold_its_log_as_one_text() -> None:
    case = CASES["oom-profile-run"]
    assert evidence_of_case(case | {"log": "\n".join(case["log"])}) == evidence_of_case(case)


# ---------------------------------------------------------------- what never changes a verdict

QUOTES = sorted(
    {line for case in CASES.values() for line in case["log"] if "Error" in line or "error" in line}
)
USER_TEXT = st.one_of(
    st.text(st.characters(blacklist_categories=("Cs", "Cc", "Zl", "Zp")), max_size=80),
    st.sampled_from(QUOTES),
)
NOISE = st.one_of(
    st.builds(
        'INFO 11-02 10:00:09 [logger.py:40] Received request cmpl-1: prompt: "{}", params: X'.format,
        USER_TEXT,
    ),
    st.builds("(APIServer pid=7) WARNING 11-02 10:00:09 [gpu_worker.py:600] take care: {}".format, USER_TEXT),
    st.builds("(EngineCore pid=8) INFO 11-02 10:00:09 [core.py:116] {}".format, USER_TEXT),
    st.builds("(VllmWorker rank=0 pid=9) DEBUG 11-02 10:00:09 [x.py:1] {}".format, USER_TEXT),
    st.just('INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error'),
    st.just("[rank0]:[W1201 06:14:59.639252051 ProcessGroupNCCL.cpp:1575] Warning: not called"),
    st.just("/opt/site/vllm/x.py:24: DeprecationWarning: `vllm` is deprecated"),
)
UNRELATED = st.lists(NOISE, max_size=8)
NAMES = st.sampled_from(sorted(CASES) + sorted(LOGS))
MANY = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@MANY
@given(NAMES, UNRELATED, st.randoms(use_true_random=False))
def test_quiet_lines_with_any_text_anywhere_change_nothing(
    name: str, noise: list[str], luck: random.Random
) -> None:
    evidence, right = every_evidence()[name]
    lines = list(evidence.log_lines)
    for line in noise:
        lines.insert(luck.randint(0, len(lines)), line)
    assert verdict(classify(replace(evidence, log_lines=lines))) == right


@MANY
@given(
    NAMES,
    st.sampled_from(
        ["vllm-1  | ", "2026-02-14T02:05:12.788Z ", "2026-02-14 02:05:12,788 ", "stderr F ", "\x1b[0m"]
    ),
)
def test_marks_of_a_log_shipper_change_nothing(name: str, mark: str) -> None:
    evidence, right = every_evidence()[name]
    lines = [mark + line for line in evidence.log_lines]
    assert verdict(classify(replace(evidence, log_lines=lines))) == right


@MANY
@given(
    NAMES,
    st.integers(2, 10**6),
    st.sampled_from(["EngineCore_DP0", "EngineCore", "EngineCore_3"]),
    st.booleans(),
)
def test_other_names_and_numbers_of_processes_change_nothing(
    name: str, pid: int, engine: str, returns: bool
) -> None:
    evidence, right = every_evidence()[name]
    shifted = (
        re.sub(r"pid=(\d+)\)", lambda m: f"pid={int(m[1]) + pid})", line) for line in evidence.log_lines
    )
    renamed = [
        re.sub(r"^\(EngineCore\w*", f"({engine}", line) + ("\r" if returns else "") for line in shifted
    ]
    assert verdict(classify(replace(evidence, log_lines=renamed))) == right


RANK = "(VllmWorker rank={0} pid=7{0}) ERROR 12-31 23:59:59 [multiproc_executor.py:470] "
AFTERMATH = [
    RANK.format(7) + "torch.distributed.DistBackendError: NCCL error: remote process exited",
    RANK.format(6) + "BrokenPipeError: [Errno 32] Broken pipe",
    "(APIServer pid=75) ERROR 12-31 23:59:59 [serving.py:1173] vllm.v1.engine.exceptions.EngineDeadError: "
    "EngineCore encountered an issue. See stack trace (above) for the root cause.",
    "(APIServer pid=75) RuntimeError: Engine core initialization failed. See root cause above. "
    "Failed core proc(s): {}",
    "(EngineCore pid=74) Exception: WorkerProc initialization failed due to an exception in a background "
    "process. See stack trace for root cause.",
]
EXPLAINED = st.sampled_from(
    [
        name
        for name, (evidence, right) in every_evidence().items()
        if evidence.exit_code == 1 and right[0] not in {None, "other"}
    ]
)


@MANY
@given(EXPLAINED, st.lists(st.sampled_from(AFTERMATH), max_size=5), st.randoms(use_true_random=False))
def test_processes_that_go_down_with_the_first_one_change_nothing(
    name: str, others: list[str], luck: random.Random
) -> None:
    evidence, right = every_evidence()[name]
    lines = list(evidence.log_lines)
    for line in others:
        lines.insert(luck.randint(0, len(lines)), line)
    kind, fault, *_ = verdict(classify(replace(evidence, log_lines=lines)))
    assert (kind, fault) == right[:2]


REAL_ENGINE_DEATHS = [
    name for name in LOGS if any("EngineCore failed to start" in line for line in lines_of(name))
]


@MANY
@given(
    st.sampled_from(REAL_ENGINE_DEATHS),
    st.lists(st.sampled_from(QUOTES), max_size=4),
    st.randoms(use_true_random=False),
)
def test_bare_quotes_of_other_failures_do_not_outweigh_what_a_process_said_of_itself(
    name: str, quotes: list[str], luck: random.Random
) -> None:
    evidence, right = every_evidence()[name]
    lines = list(evidence.log_lines)
    for quote in quotes:
        bare = re.sub(r"^\([^)]*\) (?:ERROR \S+ \S+ \[\S+\] )?", "", quote)
        lines.insert(luck.randint(0, len(lines)), bare.replace("ERROR", "said"))
    assert verdict(classify(replace(evidence, log_lines=lines))) == right


@MANY
@given(st.sampled_from([name for name in LOGS if LOGS[name]["kind"]]), st.data())
def test_a_log_whose_head_was_cut_off_keeps_its_verdict(name: str, data: st.DataObject) -> None:
    evidence, right = every_evidence()[name]
    decisive = failure_of(name).message.split(": ", 2)[-1][:60].splitlines()[0]
    last = max(i for i, line in enumerate(evidence.log_lines) if decisive in line)
    start = data.draw(st.integers(0, last - 1 if right[0] == "invalid_config" and last else last))
    assert verdict(classify(replace(evidence, log_lines=evidence.log_lines[start:]))) == right


@MANY
@given(
    st.sampled_from(REAL_ENGINE_DEATHS), st.sampled_from(["cpu-healthy"]), st.randoms(use_true_random=False)
)
def test_two_engines_logs_shuffled_into_one_keep_the_verdict_of_the_dead_one(
    name: str, other: str, luck: random.Random
) -> None:
    evidence, right = every_evidence()[name]
    queues = [list(evidence.log_lines), [line for line in lines_of(other) if line.startswith(("(", "INFO"))]]
    merged: list[str] = []
    while any(queues):
        queue = luck.choice([queue for queue in queues if queue])
        merged.append(queue.pop(0))
    assert verdict(classify(replace(evidence, log_lines=merged))) == right


@MANY
@given(
    st.lists(st.one_of(st.text(max_size=120), st.sampled_from(QUOTES), NOISE), max_size=30),
    st.sampled_from(Phase),
    st.one_of(st.none(), st.integers(-70, 300)),
    st.one_of(st.none(), st.integers(0, 3)),
    st.booleans(),
)
def test_any_evidence_has_a_verdict(
    lines: list[str], phase: Phase, code: int | None, kills: int | None, stopped: bool
) -> None:
    evidence = Evidence(
        phase=phase, exit_code=code, log_lines=lines, cgroup_oom_kills=kills, stopped_by_worker=stopped
    )
    failure = classify(evidence)
    if failure is not None:
        assert failure.verdict is not Verdict.OK
        assert not (failure.retryable and failure.fatal)
        assert Failure.model_validate_json(failure.model_dump_json()) == failure
    assert classify(evidence_of_log(lines)) == classify(evidence_of_log(lines))
