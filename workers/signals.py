"""When a worker has to go: signals, and the end of the process that started it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["drain_requests", "raise_file_limit"]

log = logging.getLogger(__name__)

KILLED = 130


class _Drain:
    """Sets the event at the first request; a second one ends the process, and the keeper ends the engine."""

    def __init__(self, drain: asyncio.Event) -> None:
        self._drain = drain

    def ask(self, why: str) -> None:
        if self._drain.is_set():
            log.warning("%s again: ending at once", why)
            os._exit(KILLED)
        log.info("%s: draining; again to end at once", why)
        self._drain.set()


@contextmanager
def drain_requests(drain: asyncio.Event, *, exit_with_parent: bool) -> Iterator[None]:
    """Set ``drain`` on SIGTERM, on SIGINT and, if wanted, when the parent process ends.

    The parent is watched by a descriptor of its process, not by the kernel's parent-death signal, which comes
    when the *thread* that started us ends.
    """
    loop = asyncio.get_running_loop()
    request = _Drain(drain)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, request.ask, number.name)
    parent = os.pidfd_open(os.getppid()) if exit_with_parent else -1

    def parent_ended() -> None:
        loop.remove_reader(parent)
        request.ask("the parent process ended")

    try:
        if exit_with_parent:
            loop.add_reader(parent, parent_ended)
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        if exit_with_parent:
            loop.remove_reader(parent)
            os.close(parent)


def raise_file_limit() -> None:
    """Let the load client open as many connections as the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
