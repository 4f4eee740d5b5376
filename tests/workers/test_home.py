"""What a worker keeps on its disk."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tuner.errors import FieldError
from workers.home import WorkerHome
from workers.process import Session


def test_a_name_is_held_by_one_worker_at_a_time(tmp_path: Path) -> None:
    with WorkerHome(tmp_path, "w").locked():
        with WorkerHome(tmp_path, "other").locked():
            pass
        with pytest.raises(FieldError, match="NIGHTSHIFT_WORKER_NAME"), WorkerHome(tmp_path, "w").locked():
            pass
    with WorkerHome(tmp_path, "w").locked():
        pass


def test_a_worker_waits_for_its_predecessor_to_drain(tmp_path: Path) -> None:
    held, waiting = threading.Event(), threading.Event()

    def predecessor() -> None:
        with WorkerHome(tmp_path, "w").locked():
            held.set()
            assert waiting.wait(10)

    drains = threading.Thread(target=predecessor)
    drains.start()
    assert held.wait(10)
    threading.Timer(0.3, waiting.set).start()
    with WorkerHome(tmp_path, "w").locked(wait_s=10.0):
        assert waiting.is_set()
    drains.join()


def test_the_engines_session_is_remembered_until_it_is_gone(tmp_path: Path) -> None:
    home, session = WorkerHome(tmp_path, "w"), Session(123, 45.5)
    with home.locked():
        assert home.recall() is None
        home.remember(session)
        assert WorkerHome(tmp_path, "w").recall() == session
        home.forget()
        home.forget()
        assert home.recall() is None


def test_a_note_cut_off_by_a_crash_is_no_note(tmp_path: Path) -> None:
    home = WorkerHome(tmp_path, "w")
    with home.locked():
        (tmp_path / "workers" / "w" / "engine.json").write_text('{"leader": 1')
        assert home.recall() is None


def test_attempts_have_fresh_folders_and_the_oldest_go(tmp_path: Path) -> None:
    home = WorkerHome(tmp_path, "w")
    for number in range(5):
        folder = home.attempt_folder(f"lease/{number}", keep=2)
        (folder / "engine.log").touch()
        os.utime(folder, (number, number))
    names = sorted(path.name for path in folder.parent.iterdir())
    assert names == ["lease_2", "lease_3", "lease_4"]
    assert list(home.attempt_folder("lease/4", keep=2).iterdir()) == []
