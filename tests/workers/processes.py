"""Looking for an engine's processes from outside."""

from __future__ import annotations

import psutil

from workers.process import MARK

PATIENCE_S = 30.0


def engine_tree(mark: str) -> list[psutil.Process]:
    """The keeper of a worker's engine and everything below it."""
    for process in psutil.process_iter(["environ"]):
        if (process.info["environ"] or {}).get(MARK) == mark:
            top = process
            while (parent := top.parent()) is not None and (parent.environ() or {}).get(MARK) == mark:
                top = parent
            return [top, *top.children(recursive=True)]
    return []


def assert_gone(processes: list[psutil.Process]) -> None:
    """All end within the patience; zombies that nobody reaps count as ended."""
    _, alive = psutil.wait_procs(processes, timeout=PATIENCE_S)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []
