"""How the stand-in behaves, from the JSON in ``STAND_IN``, and the logs of real failures that it prints."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field

FAILURES = {
    "oom_profile": (
        1,
        "(EngineCore pid=1218) ERROR 12-01 06:27:28 [core.py:1330] EngineCore failed to start.\n"
        "(EngineCore pid=1218) ERROR 12-01 06:27:28 [core.py:1330] Traceback (most recent call last):\n"
        "(EngineCore pid=1218) ERROR 12-01 06:27:28 [core.py:1330] torch.OutOfMemoryError: "
        "CUDA out of memory. Tried to allocate 37.38 GiB. GPU 0 has a total capacity of 139.80 GiB "
        "of which 27.38 GiB is free. "
        "Including non-PyTorch memory, this process has 112.41 GiB memory in use.\n"
        "(APIServer pid=1210) RuntimeError: Engine core initialization failed. See root cause above. "
        "Failed core proc(s): {}\n",
    ),
    "missing_module": (
        1,
        "Traceback (most recent call last):\n"
        '  File "<frozen runpy>", line 189, in _run_module_as_main\n'
        "ModuleNotFoundError: No module named 'vllm._C'\n",
    ),
}
OOM_WHILE_SERVING = (
    "(EngineCore_DP0 pid=104) ERROR 05-05 12:36:58 [core.py:710] torch.OutOfMemoryError: CUDA out of memory. "
    "Tried to allocate 50.00 MiB. GPU 0 has a total capacity of 23.56 GiB of which 56.88 MiB is free.\n"
    "(APIServer pid=1) ERROR 05-05 12:36:59 [serving.py:1173] vllm.v1.engine.exceptions.EngineDeadError: "
    "EngineCore encountered an issue. See stack trace (above) for the root cause.\n"
)


@dataclass(frozen=True)
class Behaviour:
    """Keys of ``STAND_IN``.

    Attributes:
        startup_s: seconds before it listens.
        fail: name of a failure to start, from ``FAILURES``.
        fail_above: ``{"max_num_batched_tokens": 8192}``: a value above it fails as ``oom_profile``.
        oom_after: answers 500 from this many requests on, with the log of an OOM, and stays up.
        crash_after: ends by a segmentation fault at this many requests.
        hang_after: stops making tokens at this many requests.
        refuse: every completion is answered by this status.
        step_s: time of one token of one request alone.
        tokens_per_chunk: tokens that one chunk carries.
        deaf: ignores SIGTERM.
        garbage: the stream is not JSON.
        noise_bytes: writes so much to its log before it listens.
    """

    startup_s: float = 0.0
    fail: str | None = None
    fail_above: dict[str, float] = field(default_factory=dict)
    oom_after: int | None = None
    crash_after: int | None = None
    hang_after: int | None = None
    refuse: int | None = None
    step_s: float = 0.004
    tokens_per_chunk: int = 1
    deaf: bool = False
    garbage: bool = False
    noise_bytes: int = 0


def behaviour() -> Behaviour:
    """What the environment asks for; an unknown key is an error."""
    return Behaviour(**json.loads(os.environ.get("STAND_IN", "{}")))
