"""What every service works on: the database, Optuna's storage, the settings, and who waits for work."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from optuna.storages import BaseStorage

from app.db.engine import Database, open_database
from app.settings import Settings

__all__ = ["ControlPlane", "Wakeups", "open_control_plane"]


class Wakeups:
    """Tells long polls of this process that work may have appeared. Missing one costs only time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: set[Callable[[], object]] = set()

    def subscribe(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Call ``listener`` from any thread on each notification; returns what ends that."""
        with self._lock:
            self._listeners.add(listener)

        def unsubscribe() -> None:
            with self._lock:
                self._listeners.discard(listener)

        return unsubscribe

    def notify(self) -> None:
        """Work may have appeared."""
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener()


@dataclass(slots=True)
class ControlPlane:
    """One process's view of the control plane.

    Attributes:
        database: our tables.
        storage: Optuna's storage in the same database.
        wakeups: notified when a trial may be claimed.
    """

    settings: Settings
    database: Database
    storage: BaseStorage
    wakeups: Wakeups = field(default_factory=Wakeups)
    _locks: defaultdict[str, threading.Lock] = field(default_factory=lambda: defaultdict(threading.Lock))

    def study_lock(self, study_id: str) -> threading.Lock:
        """Serialises the suggestions of one study, so that each sees the ones before it as pending."""
        return self._locks[study_id]

    def close(self) -> None:
        """Close all connections."""
        self.database.close()


def open_control_plane(settings: Settings) -> ControlPlane:
    """Open the database, bring it up to date, and open Optuna's storage in it.

    Raises:
        FieldError: the database's URL is wrong.
        DatabaseUnreachableError: nothing answers there.
        DatabaseTooNewError: a newer version has migrated it.
    """
    database = open_database(settings.url.get_secret_value(), busy_timeout_s=settings.busy_timeout_s)
    database.upgrade()
    return ControlPlane(settings, database, database.optuna_storage())
