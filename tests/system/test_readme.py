"""The commands of the readme do what they say, on the stand-in and with short windows."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys

import pytest

from tests.system.conftest import ROOT, World, document, eventually, free_port

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```", README, re.M | re.S)
COMMANDS = [line.split("  #")[0].strip() for block in BLOCKS for line in block.splitlines()]
SHORT = {"--trials 30": "--trials 2 --warmup 0.2 --measure 0.5 --gpus 0"}
IN_BACKGROUND = {"serve", "worker"}
MAY_FIND_FAULT = {"doctor"}


def prepare(world: World) -> None:
    """What the readme's commands find in their folder."""
    shutil.copytree(world.model, world.folder / "my-model")
    shutil.copytree(ROOT / "examples", world.folder / "examples")
    example = world.folder / "examples" / "tiny-cpu.yaml"
    example.write_text(example.read_text().replace("_s: 3", "_s: 0.2").replace("_s: 6", "_s: 0.5"))
    (world.folder / "workers").symlink_to(ROOT / "workers")
    (world.folder / "vllm.log").write_text(
        "ValueError: max_num_batched_tokens (8) must be >= max_num_seqs (16)\n"
    )


def run_command(world: World, command: str, port: int) -> None:
    for text, shorter in SHORT.items():
        command = command.replace(text, shorter)
    words = shlex.split(command.replace("8765", str(port)))
    if words[0] == ".venv-vllm/bin/python":
        subprocess.run([sys.executable, *words[1:]], cwd=world.folder, check=True)
    elif words[1] == "serve":
        world.serve(port)
    elif words[1] in IN_BACKGROUND:
        world.start(*words[1:])
    else:
        done = world.run(*words[1:], within_s=200.0)
        assert done.returncode in ({0, 1} if words[1] in MAY_FIND_FAULT else {0}), (command, done.stderr)


def test_readme_has_commands() -> None:
    assert {"make quickstart", "make test"} <= set(COMMANDS)
    assert len(COMMANDS) > 10


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("make ")])
def test_make_knows_the_targets_of_the_readme(command: str) -> None:
    done = subprocess.run(["make", "-n", command.split()[1]], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0


def test_commands_of_the_readme_work_in_their_order(world: World) -> None:
    prepare(world)
    port = free_port()
    for command in COMMANDS:
        if not command.startswith("make "):
            run_command(world, command, port)
    assert document(world.run("study", "show", "tiny-cpu", "--json").stdout)["state"] == "completed"
    workers = ("worker-list", "--json", "--server", f"http://127.0.0.1:{port}")
    eventually(lambda: len(document(world.run(*workers).stdout)) >= 1)
