"""What the commands print: JSON for programs, aligned text for people, one line for an error."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["complain", "console", "figure", "note", "print_json", "print_pairs", "print_table", "when"]

PLAIN_WIDTH = 400
"""Columns where the output is no terminal: wide enough that no cell is cut, since a program may read it."""


def console() -> Console:
    """A console on today's standard output; made anew each time, since tests and pipes replace it."""
    return Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False, soft_wrap=True)


def print_json(data: BaseModel | Mapping[str, object] | Sequence[object]) -> None:
    """Print data as JSON; nothing else of the command goes to standard output."""
    typer.echo(json.dumps(_plain(data), indent=2, ensure_ascii=False))


def _plain(data: object) -> object:
    if isinstance(data, BaseModel):
        return data.model_dump(mode="json")
    if isinstance(data, Mapping):
        return {key: _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(item) for item in data]
    return data


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, empty: str) -> None:
    """Print aligned columns, or the sentence ``empty`` when there is no row."""
    table = Table(*columns, box=None, pad_edge=False, show_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    if table.row_count:
        console().print(table)
    else:
        typer.echo(empty)


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Print one ``name  value`` line each, aligned; a pair with an empty value is left out."""
    shown = [(name, value) for name, value in pairs if value]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        typer.echo(f"{name:<{width}}  {value}")


def note(message: str) -> None:
    """Tell a person something that is not the command's result: it goes to standard error."""
    typer.echo(message, err=True)


def complain(message: str) -> None:
    """Print an error as one line on standard error."""
    typer.echo(f"nightshift: {' '.join(message.split())}", err=True)


def figure(value: float | None) -> str:
    """A figure to three or four significant digits, ``-`` for one that is unknown."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"


def when(timestamp: float | str | None) -> str:
    """A moment in local time, to the second; ``-`` for none.

    Args:
        timestamp: Unix seconds, or ISO 8601 as the API renders it.
    """
    if timestamp is None:
        return "-"
    moment = (
        datetime.fromisoformat(timestamp)
        if isinstance(timestamp, str)
        else datetime.fromtimestamp(timestamp, tz=UTC)
    )
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")
