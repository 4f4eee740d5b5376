"""Stands between a worker and its engine, and sees to it that nothing of the engine outlives either.

This file needs the standard library alone. It is a program: the worker starts it in a session of its own,

    python -I -S keeper.py LOG LIMIT_BYTES GRACE_S ARGV…

and speaks to it through two pipes.

- Standard input: the line ``stop`` asks the engine to end (SIGTERM, then SIGKILL after the grace time).
  End of file, which the kernel delivers however the worker died, kills everything at once.
- Standard output: ``started PID``, then ``exited CODE`` (negative for a signal) when the engine's first
  process has ended, then ``clean`` when no process below the keeper is left.

As a child subreaper the keeper inherits every orphan below it, so that walking its descendants finds all of
them, whatever sessions or groups they made. If the keeper itself is killed, the engine's first process dies
by its parent-death signal and the worker sweeps the rest (:mod:`workers.process`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
CHUNK_BYTES = 65_536
POLL_S = 0.02
"""Pause between two looks at processes that were killed but are not gone yet."""


def prctl(option: int, value: int) -> None:
    """Linux ``prctl``; elsewhere the pipes alone do the work."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


class BoundedLog:
    """Keeps the first ``limit`` bytes in ``path``, and at least the last ``limit`` bytes in two more files.

    A start-up error stands at the beginning, a crash at the end; what lies between may be endless.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self._file = path.open("wb")
        self._tail = path.with_name(path.name + ".tail")
        self._older = path.with_name(path.name + ".older")
        self._limit = limit
        self._size = 0
        self._in_head = True

    def write(self, data: bytes) -> None:
        """Append. A full disk costs the log, never the engine."""
        with contextlib.suppress(OSError, ValueError):
            if self._size + len(data) > self._limit and self._size:
                self._turn_over()
            self._size += len(data)
            self._file.write(data)
            self._file.flush()

    def _turn_over(self) -> None:
        self._file.close()
        if not self._in_head:
            self._tail.replace(self._older)
        self._file = self._tail.open("wb")
        self._in_head = False
        self._size = 0


def parents() -> dict[int, int]:
    """Parent of every process that is not a zombie, from ``/proc``."""
    found = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208  # numbers, hundreds of times a second: no Path objects
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                state, parent = Path(f"/proc/{entry}/stat").read_bytes().rpartition(b")")[2].split()[:2]
                if state not in (b"Z", b"X"):
                    found[int(entry)] = int(parent)
    return found


def descendants() -> list[int]:
    """All living processes below this one."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    below: list[int] = []
    front = [os.getpid()]
    while front:
        front = [child for pid in front for child in children.get(pid, ())]
        below += front
    return below


class Keeper:
    """One engine, from start to nothing left."""

    def __init__(self, log: BoundedLog, grace_s: float) -> None:
        self.log = log
        self.grace_s = grace_s
        self.pid = 0
        self.exit_code: int | None = None
        self.kill_at: float | None = None
        self.output = -1
        self.selector = selectors.DefaultSelector()

    def start(self, argv: list[str]) -> None:
        """Fork and execute the engine in its own process group, its output in our pipe."""
        self.output, write_end = os.pipe()
        keeper = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            become_engine(argv, write_end, keeper)
        os.close(write_end)
        tell(f"started {self.pid}")

    def run(self, wakeup: int) -> None:
        """Pump the output and obey the worker until the engine's first process ends; then clean up."""
        self.selector.register(0, selectors.EVENT_READ, self.on_control)
        self.selector.register(self.output, selectors.EVENT_READ, self.on_output)
        self.selector.register(wakeup, selectors.EVENT_READ, self.on_signal)
        while self.exit_code is None:
            self.turn()
        tell(f"exited {self.exit_code}")
        self.clean_up()
        tell("clean")

    def turn(self) -> None:
        wait_s = None if self.kill_at is None else max(0.0, self.kill_at - time.monotonic())
        for key, _ in self.selector.select(wait_s):
            key.data(key.fd)
        if self.kill_at is not None and time.monotonic() >= self.kill_at:
            self.kill_at = time.monotonic() + POLL_S
            kill(descendants())
        self.reap()

    def on_control(self, fd: int) -> None:
        words = os.read(fd, CHUNK_BYTES)
        if not words:  # the worker is gone
            self.selector.unregister(fd)
            self.kill_at = time.monotonic()
        elif b"stop" in words:
            self.ask_to_stop()

    def on_signal(self, fd: int) -> None:
        if signal.SIGTERM in os.read(fd, CHUNK_BYTES):
            self.ask_to_stop()

    def on_output(self, fd: int) -> None:
        data = os.read(fd, CHUNK_BYTES)
        if data:
            self.log.write(data)
        else:
            self.selector.unregister(fd)

    def ask_to_stop(self) -> None:
        if self.kill_at is None:
            self.kill_at = time.monotonic() + self.grace_s
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGTERM)

    def reap(self) -> bool:
        """Collect what has ended; whether any child is left."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                if pid == self.pid:
                    self.exit_code = os.waitstatus_to_exitcode(status)
        except ChildProcessError:
            return False

    def clean_up(self) -> None:
        """Kill until no child is left, which as a subreaper means: nothing below us.

        A process may fork between the look and the blow, and one that is stuck in a driver call ends late.
        """
        while self.reap():
            kill(descendants())
            time.sleep(POLL_S)
        self.drain_output()

    def drain_output(self) -> None:
        """What the engine had written before it ended is still in the pipe."""
        os.set_blocking(self.output, False)
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.output, CHUNK_BYTES):
                self.log.write(data)


def become_engine(argv: list[str], output: int, keeper: int) -> None:
    """In the forked child: turn into the engine; never returns."""
    try:
        os.setpgid(0, 0)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:  # it died before the line above
            os._exit(1)
        for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.execvp(argv[0], argv)  # noqa: S606  # the argument vector is the worker's, no shell is wanted
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def kill(pids: list[int]) -> None:
    """SIGKILL to each that still exists."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def tell(line: str) -> None:
    """One line to the worker, which may be gone."""
    with contextlib.suppress(OSError):
        os.write(1, f"{line}\n".encode())


def main() -> None:
    """Parse the arguments, keep one engine, return when nothing of it is left."""
    log, limit, grace_s, *argv = sys.argv[1:]
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    wakeup_read, wakeup_write = os.pipe()
    os.set_blocking(wakeup_read, False)
    os.set_blocking(wakeup_write, False)
    signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keeper = Keeper(BoundedLog(Path(log), int(limit)), float(grace_s))
    keeper.start(argv)
    keeper.run(wakeup_read)


if __name__ == "__main__":
    main()
