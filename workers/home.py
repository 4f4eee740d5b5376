"""What a worker keeps on its disk: its lock, the session of its engine, a folder for each attempt."""

from __future__ import annotations

import contextlib
import fcntl
import json
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tuner.errors import FieldError
from workers.process import Session

__all__ = ["WorkerHome"]


LOCK_RECHECK_S = 0.2


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


class WorkerHome:
    """The folder of one worker, ``<home>/workers/<name>``.

    Attributes:
        mark: names this worker, and no other on the machine, on its engine's processes.
    """

    def __init__(self, home: Path, name: str) -> None:
        self._name = name
        self._folder = home.absolute() / "workers" / name
        self._session = self._folder / "engine.json"
        self.mark = str(self._folder)

    @contextmanager
    def locked(self, *, wait_s: float = 0.0) -> Iterator[None]:
        """Hold the worker's name for the time of the block; the kernel lets go of it however we end.

        Two workers of one name would sweep each other's engine.

        Args:
            wait_s: how long to wait for a predecessor that drains.

        Raises:
            FieldError: another worker holds it, or the folder cannot be written.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            file = (self._folder / "lock").open("w")
        except OSError as error:
            fix = "name a folder that this user may write"
            problem = f"cannot be written: {error.strerror}"
            raise FieldError("NIGHTSHIFT_HOME", str(self._folder), problem=problem, fix=fix) from error
        with file:
            deadline = time.monotonic() + wait_s
            while not _try_lock(file):
                if time.monotonic() >= deadline:
                    fix = "stop it, or give this one another name"
                    problem = "a worker of this name runs on this machine already"
                    raise FieldError("NIGHTSHIFT_WORKER_NAME", self._name, problem=problem, fix=fix)
                time.sleep(LOCK_RECHECK_S)
            yield

    def remember(self, session: Session) -> None:
        """Note the running engine's session, for a sweep at the next start."""
        self._session.write_text(json.dumps({"leader": session.leader, "started_at": session.started_at}))

    def forget(self) -> None:
        """The engine is gone."""
        self._session.unlink(missing_ok=True)

    def recall(self) -> Session | None:
        """The session of an engine that may have been left behind."""
        try:
            noted = json.loads(self._session.read_text())
            return Session(int(noted["leader"]), float(noted["started_at"]))
        except (OSError, ValueError, KeyError, TypeError):  # absent, or cut off by a crash
            return None

    def attempt_folder(self, lease_id: str, *, keep: int) -> Path:
        """A fresh folder for one attempt; of the older ones ``keep`` stay."""
        attempts = self._folder / "attempts"
        attempts.mkdir(parents=True, exist_ok=True)
        oldest_first = sorted(attempts.iterdir(), key=lambda path: path.stat().st_mtime)
        for old in oldest_first[: max(0, len(oldest_first) - keep)]:
            shutil.rmtree(old, ignore_errors=True)
        folder = attempts / re.sub(r"[^\w.-]", "_", lease_id)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)
        folder.mkdir()
        return folder
