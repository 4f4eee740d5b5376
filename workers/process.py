"""One engine process tree: started behind a keeper, watched, stopped, and swept after a crash."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

__all__ = ["MARK", "EngineProcess", "LeftoversError", "Session", "read_log", "sweep"]

MARK = "NIGHTSHIFT_WORKER"
"""Environment variable that marks every process of an engine with the worker it belongs to."""

KEEPER = Path(__file__).with_name("keeper.py")
LOG_LIMIT_BYTES = 4 * 1024 * 1024
"""Size of each of the log's three parts. vLLM writes some 50 KiB at start-up and little afterwards."""

CLEAN_WITHIN_S = 60.0
"""How long a killed tree may take to vanish: freeing hundreds of GiB on a GPU takes seconds, not minutes."""

SWEEP_PAUSE_S = 0.1

CLOCK_TOLERANCE_S = 5.0
"""A process's start is told relative to the boot, whose moment shifts when the system clock is set."""


class LeftoversError(Exception):
    """Processes of an engine outlived SIGKILL: the kernel holds them in a driver call.

    Attributes:
        pids: the processes that are left; empty if even their numbers are unknown.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        super().__init__(f"engine processes do not end: {', '.join(map(str, pids)) or 'unknown'}")
        self.pids = tuple(pids)


@dataclass(frozen=True, slots=True)
class Session:
    """The session that the processes of one engine share; its leader is the keeper.

    Attributes:
        leader: process id of the keeper, which is the session's id.
        started_at: when the keeper started, as the kernel tells it: a process id may be used again.
    """

    leader: int
    started_at: float

    @classmethod
    def of(cls, leader: int) -> Session:
        """The session of a keeper that was just started."""
        try:
            return cls(leader, psutil.Process(leader).create_time())
        except psutil.NoSuchProcess:  # it has ended, and its children may be alive
            return cls(leader, psutil.boot_time())

    def is_current(self) -> bool:
        """Whether processes of session ``leader`` can be ours: since then neither a boot nor a new leader.

        While a session has members its id is not given out again, so a leader that is gone proves nothing.
        """
        try:
            return abs(psutil.Process(self.leader).create_time() - self.started_at) < CLOCK_TOLERANCE_S
        except psutil.NoSuchProcess:
            return self.started_at >= psutil.boot_time()


def _leftovers(mark: str, session: Session | None) -> list[psutil.Process]:
    """Living processes that carry the mark, or that are of the session and carry none.

    vLLM renames its processes, which writes over the memory in which the kernel shows their environment: of
    52 variables of its engine process 13 are left. The session is what they keep.
    """
    current = session.leader if session is not None and session.is_current() else None
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            found_mark = process.environ().get(MARK)
            of_session = found_mark is None and current is not None and os.getsid(process.pid) == current
            if process.pid != os.getpid() and (found_mark == mark or of_session):
                found.append(process)
    return found


async def sweep(mark: str, session: Session | None, *, within_s: float = CLEAN_WITHIN_S) -> int:
    """Kill every process that an earlier engine of this worker left behind.

    Args:
        mark: value of :data:`MARK` in the engine's environment.
        session: the engine's session, if known.
        within_s: how long they may take to vanish.

    Returns:
        How many processes were killed.

    Raises:
        LeftoversError: some are still there.
    """
    killed: set[int] = set()
    deadline = asyncio.get_running_loop().time() + within_s
    while left := await asyncio.to_thread(_leftovers, mark, session):
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        killed.update(process.pid for process in left)
        await asyncio.sleep(SWEEP_PAUSE_S)
        if asyncio.get_running_loop().time() > deadline:
            raise LeftoversError([process.pid for process in left])
    return len(killed)


def read_log(log: Path) -> list[str]:
    """The engine's output: its first part, a line that says where something was left out, its last part."""
    parts = [log, log.with_name(log.name + ".older"), log.with_name(log.name + ".tail")]
    texts = [part.read_bytes().decode("utf-8", "replace") if part.exists() else "" for part in parts]
    gap = ["… the middle of this log may have been left out …"] if texts[1] else []
    return [*texts[0].splitlines(), *gap, *(texts[1] + texts[2]).splitlines()]


class EngineProcess:
    """A running engine; make one by :meth:`start`.

    Attributes:
        session: what all its processes share.
        log: its output; read it by :func:`read_log`.
        exit_code: exit code of its first process, negative for a signal; ``None`` while that runs.
    """

    def __init__(self, keeper: asyncio.subprocess.Process, log: Path, mark: str, grace_s: float) -> None:
        self.session = Session.of(keeper.pid)
        self.log = log
        self.exit_code: int | None = None
        self._keeper = keeper
        self._mark = mark
        self._grace_s = grace_s
        self._exited = asyncio.Event()
        self._follower = asyncio.create_task(self._follow(), name="follow-engine")

    @classmethod
    async def start(
        cls, argv: Sequence[str], *, env: Mapping[str, str], log: Path, mark: str, grace_s: float
    ) -> Self:
        """Start the engine behind a keeper, in the log's folder.

        Args:
            argv: the engine's arguments; the first is the program.
            env: its whole environment.
            log: file for its output; its folder must exist.
            mark: names the worker, for the sweep after a crash.
            grace_s: time between SIGTERM and SIGKILL when it is asked to stop.
        """
        keeper = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(KEEPER), str(log), str(LOG_LIMIT_BYTES), str(grace_s), *argv),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**env, MARK: mark},
            cwd=log.parent,
            start_new_session=True,
        )
        return cls(keeper, log, mark, grace_s)

    async def wait(self) -> int:
        """Wait for the engine's first process to end; its exit code."""
        await self._exited.wait()
        return self.exit_code if self.exit_code is not None else -signal.SIGKILL

    async def stop(self, *, at_once: bool = False) -> None:
        """End the engine and wait until none of its processes is left; harmless when it has ended already.

        Args:
            at_once: no SIGTERM and no grace time.

        Raises:
            LeftoversError: processes are left that even SIGKILL does not end.
        """
        stdin = self._keeper.stdin
        if stdin is not None and not stdin.is_closing():
            if at_once:
                stdin.close()
            else:
                stdin.write(b"stop\n")
        limit_s = CLEAN_WITHIN_S if at_once else CLEAN_WITHIN_S + self._grace_s
        try:
            await asyncio.wait_for(asyncio.shield(self._follower), limit_s)
        except TimeoutError as error:
            raise LeftoversError([]) from error

    async def _follow(self) -> None:
        """Read the keeper's lines; if it falls silent before all is clean, it was killed: sweep."""
        clean = False
        if self._keeper.stdout is None:
            raise RuntimeError("the keeper was started without a pipe")
        async for line in self._keeper.stdout:
            word, _, rest = line.decode().strip().partition(" ")
            clean = word == "clean"
            if word == "exited":
                self._end(int(rest))
        await self._keeper.wait()
        try:
            if not clean:
                await sweep(self._mark, self.session)
        finally:
            self._end(-signal.SIGKILL)

    def _end(self, code: int) -> None:
        if self.exit_code is None:
            self.exit_code = code
        self._exited.set()
