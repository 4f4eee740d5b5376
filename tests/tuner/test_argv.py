"""From arguments to a command line, for exec and for a shell."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.argv import render_args, serve_line
from tuner.protocol import ArgValue

TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)


@pytest.mark.parametrize(
    ("value", "rendered"),
    [
        (True, ["--a-flag"]),
        (False, ["--no-a-flag"]),
        (0, ["--a-flag", "0"]),
        (8192, ["--a-flag", "8192"]),
        (8192.0, ["--a-flag", "8192"]),
        (0.9, ["--a-flag", "0.9"]),
        ("auto", ["--a-flag", "auto"]),
        ('{"level": 3}', ["--a-flag", '{"level": 3}']),
    ],
)
def test_value_on_the_command_line(value: ArgValue, rendered: list[str]) -> None:
    assert render_args({"a_flag": value}) == rendered


def test_order_is_kept() -> None:
    assert render_args({"b": 1, "a": 2}) == ["--b", "1", "--a", "2"]


@given(model=TEXT, value=TEXT, variable=TEXT)
def test_shell_splits_the_line_into_what_was_meant(model: str, value: str, variable: str) -> None:
    line = serve_line(model, {"max_num_seqs": 8, "chat_template": value}, {"VLLM_X": variable})
    assert shlex.split(line) == [
        f"VLLM_X={variable}",
        *("vllm", "serve", model, "--max-num-seqs", "8", "--chat-template", value),
    ]


def test_real_shell_runs_nothing_that_is_quoted() -> None:
    line = serve_line("$(exit 3); `false` & 'm'", {"dtype": 'a"b\\'}, {"VLLM_X": "$HOME *"})
    command = line.replace("vllm serve", 'sh -c \'printf "%s|" "$VLLM_X" "$@"\' sh', 1)
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == "$HOME *|$(exit 3); `false` & 'm'|--dtype|a\"b\\|"
