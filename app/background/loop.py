"""Runs the background passes, one after another, until told to stop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from app.background.reaper import reap
from app.background.reconciler import reconcile
from app.services.plane import ControlPlane

__all__ = ["BackgroundLoop"]

logger = logging.getLogger(__name__)

PASSES: tuple[tuple[str, Callable[[ControlPlane], int]], ...] = (("reaper", reap), ("reconciler", reconcile))


class BackgroundLoop:
    """A thread that makes a pass every ``loop_interval_s``; one that fails is logged and tried again.

    Several replicas may run it side by side: every pass is guarded by the rows that it changes.
    """

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nightshift-background", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the pass that is under way."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            for name, make_pass in PASSES:
                try:
                    make_pass(self._plane)
                except Exception:
                    logger.exception("the %s failed; it tries again in its next pass", name)
            self._stopping.wait(self._plane.settings.loop_interval_s)
