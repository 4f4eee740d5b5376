"""An engine's process tree: nothing of it is left, whoever dies first."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from tests.workers.processes import assert_gone
from workers.process import EngineProcess, LeftoversError, Session, read_log, sweep

# An engine as bad as they come: a child in a session of its own without our mark, which has a child too;
# all of them ignore SIGTERM.
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
TREE = f"""
import os, subprocess, sys
{DEAF}
inner = "{DEAF} signal.pause()"
start = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {{inner!r}}], env={{{{}}}})"
middle = f"{{start}}; {{inner}}"
subprocess.Popen([sys.executable, "-c", middle], env={{}}, start_new_session=SESSION)
print("up", flush=True)
signal.pause()
"""
POLITE = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
print("up", flush=True)
signal.pause()
"""

Start = Callable[..., Awaitable[EngineProcess]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    engines: list[EngineProcess] = []

    async def run(script: str, *, grace_s: float = 0.2) -> EngineProcess:
        engine = await EngineProcess.start(
            [sys.executable, "-c", script],
            env=dict(os.environ),
            log=tmp_path / "engine.log",
            mark=str(tmp_path),
            grace_s=grace_s,
        )
        engines.append(engine)
        return engine

    yield run
    for engine in engines:
        await engine.stop(at_once=True)


async def tree_of(engine: EngineProcess, size: int) -> list[psutil.Process]:
    """The keeper and all below it, once there are so many."""
    keeper = psutil.Process(engine.session.leader)
    while len(below := keeper.children(recursive=True)) < size:
        await asyncio.to_thread(psutil.wait_procs, [keeper], timeout=0.02)
    return [keeper, *below]


@pytest.fixture(params=["False", "True"], ids=["same session", "own session"])
def tree(request: pytest.FixtureRequest) -> str:
    return TREE.replace("SESSION", request.param)


class TestStopping:
    async def test_lets_an_engine_end_by_itself(self, start: Start) -> None:
        engine = await start(POLITE, grace_s=30.0)
        await tree_of(engine, 1)
        await asyncio.to_thread(wait_for_text, engine, "up")
        await engine.stop()
        assert engine.exit_code == 3

    async def test_kills_a_tree_that_does_not_listen(self, start: Start, tree: str) -> None:
        engine = await start(tree)
        processes = await tree_of(engine, 3)
        await engine.stop()
        assert engine.exit_code == -signal.SIGKILL
        assert_gone(processes)

    async def test_at_once_does_not_wait_for_the_grace_time(self, start: Start, tree: str) -> None:
        engine = await start(tree, grace_s=600.0)
        processes = await tree_of(engine, 3)
        await engine.stop(at_once=True)
        assert_gone(processes)

    async def test_is_harmless_when_it_has_ended(self, start: Start) -> None:
        engine = await start("raise SystemExit(7)")
        assert await engine.wait() == 7
        await engine.stop()
        await engine.stop()


class TestTheEnginesEnd:
    async def test_takes_its_children_with_it(self, start: Start, tree: str) -> None:
        engine = await start(tree)
        keeper, first, *rest = await tree_of(engine, 3)
        first.kill()
        assert await engine.wait() == -signal.SIGKILL
        assert_gone([keeper, *rest])

    async def test_leaves_its_last_words_in_the_log(self, start: Start) -> None:
        engine = await start("import sys; print('out', flush=True); sys.exit('last words')")
        assert await engine.wait() == 1
        await engine.stop()
        assert read_log(engine.log) == ["out", "last words"]

    async def test_by_a_program_that_does_not_exist_is_told(self, tmp_path: Path) -> None:
        log = tmp_path / "engine.log"
        engine = await EngineProcess.start(["/nowhere"], env={}, log=log, mark="m", grace_s=0.1)
        assert await engine.wait() == 127
        await engine.stop()
        assert read_log(log) == ["/nowhere: No such file or directory"]


class TestTheKeepersEnd:
    async def test_is_noticed_and_the_tree_is_swept(self, start: Start) -> None:
        engine = await start(TREE.replace("SESSION", "False"))
        keeper, *rest = await tree_of(engine, 3)
        keeper.kill()
        assert await engine.wait() == -signal.SIGKILL
        assert_gone(rest)

    async def test_by_sigterm_stops_the_engine_first(self, start: Start, tree: str) -> None:
        engine = await start(tree)
        keeper, *rest = await tree_of(engine, 3)
        keeper.terminate()
        assert await engine.wait() == -signal.SIGKILL
        assert_gone([keeper, *rest])


class TestTheSweep:
    async def test_finds_processes_whose_environment_is_erased_by_their_session(
        self, start: Start, tmp_path: Path
    ) -> None:
        engine = await start(TREE.replace("SESSION", "False"))
        _, *rest = await tree_of(engine, 3)
        assert await sweep(str(tmp_path), engine.session) >= 3
        assert_gone(rest)

    async def test_leaves_processes_of_other_workers_alone(self, start: Start) -> None:
        engine = await start(POLITE)
        await tree_of(engine, 1)
        assert await sweep("another worker", None) == 0
        assert engine.exit_code is None

    async def test_does_not_trust_a_process_id_that_was_given_out_again(self, start: Start) -> None:
        engine = await start(POLITE)
        await tree_of(engine, 1)
        stale = Session(engine.session.leader, engine.session.started_at - 3600.0)
        assert await sweep("another worker", stale) == 0
        assert engine.exit_code is None

    async def test_that_cannot_end_a_process_names_it(
        self, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = await start(POLITE)
        keeper, first = await tree_of(engine, 1)
        with monkeypatch.context() as stuck:
            stuck.setattr(psutil.Process, "kill", lambda _: None)
            with pytest.raises(LeftoversError) as caught:
                await sweep(str(tmp_path), engine.session, within_s=0.0)
        assert set(caught.value.pids) == {keeper.pid, first.pid}


class TestTheLog:
    async def test_keeps_its_beginning_and_its_end_and_is_bounded(
        self, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("workers.process.LOG_LIMIT_BYTES", 20_000)
        engine = await start("[print(f'line {n}') for n in range(200_000)]")
        assert await engine.wait() == 0
        await engine.stop()
        lines = read_log(engine.log)
        assert lines[0] == "line 0"
        assert lines[-1] == "line 199999"
        assert any("left out" in line for line in lines)
        assert sum(path.stat().st_size for path in engine.log.parent.iterdir()) <= 3 * 20_000 + 65_536


def wait_for_text(engine: EngineProcess, text: str) -> None:
    """Until the engine's log holds a text."""
    keeper = psutil.Process(engine.session.leader)
    while not any(text in line for line in read_log(engine.log)):
        psutil.wait_procs([keeper], timeout=0.02)
