"""The lines of an engine's log: which process wrote them, how loudly, and what they say.

One engine is several processes that write to one pipe: an API server, an engine core and one worker per
GPU. vLLM marks its log records with ``(EngineCore pid=898) ERROR 12-01 06:14:57 [core.py:1330]``; whatever
the interpreter prints by itself may carry the process alone, or nothing. Containers and log shippers put
their own marks in front.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

__all__ = ["Line", "Loudness", "parse"]


class Loudness(Enum):
    """Level of a line, as far as it matters for a verdict."""

    QUIET = auto()
    """DEBUG, INFO, WARNING: request logs, progress, advice. Never evidence of a failure."""
    LOUD = auto()
    """ERROR and CRITICAL records."""
    RAW = auto()
    """No level: printed by the interpreter, a C++ library or argparse."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line.

    Attributes:
        number: position in the log, from 0.
        process: the mark of its process, e.g. ``EngineCore pid=898``; empty without one.
        source: file and line that logged it, e.g. ``core.py:1330``; empty where it is not told.
        text: what it says, without the marks but with its indentation.
        whole: the line without colours and line ends.
    """

    number: int
    process: str
    loudness: Loudness
    source: str
    text: str
    whole: str


COLOUR = re.compile(r"\x1b\[[0-9;]*m")
SHIPPER = re.compile(
    r"""^(?:
        [\w.-]{1,60}[ ]+\|[ ]                                                    # docker compose
      | \d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[ ]?[+-]\d\d:?\d\d)?[ ]   # kubernetes, journal
      | (?:stdout|stderr)[ ][FP][ ]                                              # container runtime
      | [A-Z][a-z]{2}[ ][ \d]\d[ ]\d\d:\d\d:\d\d[ ]\S+[ ]\S+?(?:\[\d+\])?:[ ]     # syslog
    )""",
    re.VERBOSE,
)
PROCESS = re.compile(
    r"""^(?:
        \( (?P<vllm> (?:APIServer|ApiServer|EngineCore|VllmWorker|Worker|RayWorker|DPCoordinator) [^()]{0,120}
                   | [A-Za-z][^()]{0,120}\bpid=\d+[^()]{0,60} ) \) [ ]?
      | \[ (?P<rank> rank\d+ ) \]: [ ]?
    )""",
    re.VERBOSE,
)
LEVELS = r"(?P<level>TRACE|DEBUG|INFO|WARNING|ERROR|CRITICAL)"
VLLM_RECORD = re.compile(
    rf"^{LEVELS} \d\d-\d\d \d\d:\d\d(?::\d\d)? "
    r"(?:\[(?P<source>[^\]\s]*)\]|(?P<old_source>[^\]\s]+)\])(?: (?P<text>.*))?$"
)
OTHER_RECORD = re.compile(rf"^{LEVELS}:(?P<text>.*)$")
"""uvicorn's ``INFO:     …`` and the standard library's ``WARNING:root:…``."""
NATIVE_RECORD = re.compile(r"^\[[WIEF]\d{4} ")
"""Of PyTorch's C++ part; even its errors are repeated as an exception when they matter."""
MAX_SHIPPER_MARKS = 3
MAX_LINE_CHARS = 20_000


def parse(log_lines: Iterable[str]) -> list[Line]:
    """The lines of a log in their order; an entry that holds several lines is split."""
    pieces = (piece for entry in log_lines for piece in entry.split("\n"))
    return [_line(number, piece) for number, piece in enumerate(pieces)]


def _line(number: int, piece: str) -> Line:
    whole = COLOUR.sub("", piece[:MAX_LINE_CHARS]).strip("\r")
    text = _without_shipper(whole)
    process = ""
    while mark := PROCESS.match(text):
        process = process or mark["vllm"] or mark["rank"]
        text = text[mark.end() :]
    if record := VLLM_RECORD.match(text):
        source = record["source"] or record["old_source"] or ""
        return Line(number, process, _loudness(record["level"]), source, record["text"] or "", whole)
    if record := OTHER_RECORD.match(text):
        return Line(number, process, _loudness(record["level"]), "", record["text"].lstrip(), whole)
    loudness = Loudness.QUIET if NATIVE_RECORD.match(text) else Loudness.RAW
    return Line(number, process, loudness, "", text, whole)


def _without_shipper(text: str) -> str:
    for _ in range(MAX_SHIPPER_MARKS):
        mark = SHIPPER.match(text)
        if mark is None:
            break
        text = text[mark.end() :]
    return text


def _loudness(level: str) -> Loudness:
    return Loudness.LOUD if level in {"ERROR", "CRITICAL"} else Loudness.QUIET
