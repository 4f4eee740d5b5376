"""How vLLM arguments become a command line; standard library only, so that workers may use it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from tuner.protocol import ArgValue

__all__ = ["render_args", "serve_line"]


def render_args(args: Mapping[str, ArgValue]) -> list[str]:
    """Arguments as a list for ``exec``: ``True`` is ``--flag``, ``False`` is ``--no-flag``; order is kept."""
    rendered: list[str] = []
    for name, value in args.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            rendered.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            rendered += [f"--{flag}", _text(value)]
    return rendered


def serve_line(model: str, args: Mapping[str, ArgValue], env: Mapping[str, str]) -> str:
    """A line for a shell that starts vLLM like this, quoted, with the environment in front."""
    assignments = [f"{name}={shlex.quote(value)}" for name, value in env.items()]
    return " ".join([*assignments, shlex.join(["vllm", "serve", model, *render_args(args)])])


def _text(value: float | str) -> str:
    """``0.9`` as ``0.9`` and ``8192.0`` as ``8192``: vLLM's integer arguments refuse a decimal point."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
