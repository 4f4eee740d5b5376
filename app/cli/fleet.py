"""The workers that a local run starts: one process per GPU group, or one for the CPU."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from tuner.errors import FieldError
from tuner.spec import StudySpec
from workers.home import WorkerHome

__all__ = ["Fleet", "FleetError", "FleetPlan", "gpu_groups"]

MAX_RESTARTS = 5
"""A worker that died so often dies of something that a restart does not mend."""
BAD_SETTING = 2
"""Exit code of a worker that was told something wrong: starting it again would change nothing."""
PREDECESSOR_S = 15.0
"""A worker whose command was killed drains at once; its engine gets some seconds to end."""
DRAIN_S = 90.0
"""A draining worker stops its engine and gives its lease back; vLLM takes up to half a minute to end."""


class FleetError(Exception):
    """No worker can run; the message is one line for people."""


def gpu_groups(spec: StudySpec, present: Sequence[str]) -> list[tuple[str, ...]]:
    """The GPUs of each worker; one empty group is a CPU worker.

    A group holds as many GPUs as a trial needs: ``hardware.gpus``, else the engine's parallel sizes.

    Args:
        spec: the study.
        present: indices of the GPUs that this machine has.

    Raises:
        FieldError: the study needs more GPUs than this machine has.
    """
    parallel = [
        int(spec.engine.args.get(name, 1)) for name in ("tensor_parallel_size", "pipeline_parallel_size")
    ]
    size = spec.hardware.gpus if spec.hardware.gpus is not None else parallel[0] * parallel[1]
    if spec.hardware.gpus == 0 or (not present and spec.hardware.gpus is None):
        return [()]
    if size > len(present):
        raise FieldError(
            "hardware.gpus",
            size,
            problem=f"this machine has {len(present)} GPUs that can be seen",
            fix="lower it, or write 0 for the CPU build of vLLM",
        )
    return [tuple(present[start : start + size]) for start in range(0, len(present) - size + 1, size)]


def last_error(log: Path) -> str:
    """The line by which a worker said last why it cannot start."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return errors[-1] if errors else f"see {log}"


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetPlan:
    """What every worker of a fleet is told.

    Attributes:
        url: address of the control plane.
        token: for the control plane, if it asks for one.
        interpreter: starts vLLM.
        home: the workers' folder for locks and engine logs; their own logs go to ``home/logs``.
        groups: GPUs of each worker.
    """

    url: str
    token: str | None
    interpreter: Path
    home: Path
    groups: Sequence[tuple[str, ...]]


@dataclass(slots=True)
class Member:
    """One worker process and its successors."""

    name: str
    gpus: tuple[str, ...]
    log: Path
    process: subprocess.Popen[bytes]
    restarts: int = field(default=0)


class Fleet:
    """Starts the workers, replaces one that died, and ends them all on leaving.

    A worker runs in a session of its own, so that Ctrl-C reaches only the command, which then drains the
    workers in order; ``NIGHTSHIFT_EXIT_WITH_PARENT`` ends them when the command is killed.
    """

    def __init__(self, plan: FleetPlan) -> None:
        self._plan = plan
        self._members: list[Member] = []

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.drain()
            raise
        return self

    def _start(self) -> None:
        host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()) or "host"
        for gpus in self._plan.groups:
            name = f"{host}-gpu{'-'.join(gpus)}" if gpus else f"{host}-cpu"
            log = self._plan.home / "logs" / f"worker-{name}.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            with WorkerHome(self._plan.home, name).locked(wait_s=PREDECESSOR_S):
                pass  # another run's worker would only end again: better said before one is started
            self._members.append(Member(name, gpus, log, self._launch(name, gpus, log)))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drain()

    @property
    def names(self) -> list[str]:
        """The workers' names, as the control plane knows them."""
        return [member.name for member in self._members]

    @property
    def logs(self) -> list[Path]:
        """The workers' own logs."""
        return [member.log for member in self._members]

    def tend(self) -> None:
        """Replace the workers that died; call it now and then.

        Raises:
            FleetError: one has died too often.
        """
        for member in self._members:
            code = member.process.poll()
            if code is None:
                continue
            if code == BAD_SETTING:
                raise FleetError(f"worker {member.name} cannot start: {last_error(member.log)}")
            if member.restarts >= MAX_RESTARTS:
                raise FleetError(
                    f"worker {member.name} ended {member.restarts + 1} times (exit {code}); see {member.log}"
                )
            member.restarts += 1
            member.process = self._launch(member.name, member.gpus, member.log)

    def drain(self) -> None:
        """Let every worker stop its engine and give its trial back; kill one that does not in time.

        A second Ctrl-C while it waits kills them at once. Either way no engine stays.
        """
        for member in self._members:
            self._signal(member, signal.SIGTERM)
        deadline = time.monotonic() + DRAIN_S
        try:
            for member in self._members:
                member.process.wait(timeout=max(0.1, deadline - time.monotonic()))
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            for member in self._members:
                self._signal(member, signal.SIGKILL)
                member.process.wait()

    @staticmethod
    def _signal(member: Member, number: signal.Signals) -> None:
        if member.process.poll() is None:
            member.process.send_signal(number)

    def _launch(self, name: str, gpus: tuple[str, ...], log: Path) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "NIGHTSHIFT_SERVER": self._plan.url,
            "NIGHTSHIFT_WORKER_NAME": name,
            "NIGHTSHIFT_VLLM_PYTHON": str(self._plan.interpreter),
            "NIGHTSHIFT_HOME": str(self._plan.home),
            "NIGHTSHIFT_GPUS": ",".join(gpus) or "none",
            "NIGHTSHIFT_EXIT_WITH_PARENT": "true",
        }
        environment.pop("NIGHTSHIFT_TOKEN_FILE", None)
        if self._plan.token:
            environment["NIGHTSHIFT_TOKEN"] = self._plan.token
        with log.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "workers"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
