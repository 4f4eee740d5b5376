"""Exceptions as they stand in a log: chains of causes, one process at a time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from workers.failures.log import Line, Loudness

__all__ = ["Chain", "Frame", "Link", "Raised", "read_chains"]


@dataclass(frozen=True, slots=True)
class Frame:
    """One call of a traceback."""

    file: str
    function: str


@dataclass(frozen=True, slots=True)
class Raised:
    """One exception.

    Attributes:
        type: as printed, e.g. ``torch.OutOfMemoryError``.
        message: its lines joined by newlines.
        frames: outermost call first; empty where the log does not show them.
        numbers: positions of its exception line and the lines of its message.
    """

    type: str
    message: str
    frames: tuple[Frame, ...] = ()
    numbers: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The type without its module."""
        return self.type.rsplit(".", 1)[-1]


class Link(Enum):
    """How an exception came out of the one before it."""

    CAUSE = auto()
    """``raise … from …``: the earlier one is the reason."""
    CONTEXT = auto()
    """Raised while the earlier one was being handled, which may have been an expected one."""


@dataclass(frozen=True, slots=True)
class Chain:
    """An exception with its causes, the earliest first, as a traceback prints them.

    Attributes:
        links: how each exception followed from the one before; one fewer than ``raised``.
        loud: told by an ERROR record.
        structured: its traceback is there, or a part of it.
        headline: what the log says right before it, e.g. ``EngineCore failed to start.``
        source: file that logged it, e.g. ``core.py:1330``.
        start: position of its first line.
    """

    process: str
    raised: tuple[Raised, ...]
    links: tuple[Link, ...]
    loud: bool
    structured: bool
    headline: str
    source: str
    start: int


HEADER = "Traceback (most recent call last)"
FRAME = re.compile(r'^\s{2,}File "(?P<file>[^"]+)", line \d+, in (?P<function>.+)$')
IN_TRACEBACK = re.compile(
    r"^(?P<type>(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*|[a-z_]*error))(?:: (?P<message>.*)|:?\s*)$"
)
ALONE = re.compile(
    r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]?\w*(?:Error(?:_\w+)?|Exception|Interrupt|OutOfResources|Exit))"
    r"(?:: (?P<message>.*)|:?\s*)$"
)
OS_ERROR = re.compile(r"^(?P<message>\[Errno \d+\] .*)$")
USAGE = re.compile(r"^(?:vllm(?: [\w-]+)*|[\w.-]+\.py|python[\d.]* -m \S+): error: (?P<message>\S.*)$")
LAUNCHER = re.compile(
    r"^(?:\S*/)?python[\d.]*: (?P<message>(?:No module named|Error while finding module|can't open).*)$"
)
NATIVE = re.compile(r"^\s*what\(\):\s+(?P<message>.*)$")
FATAL = re.compile(r"^Fatal Python error: (?P<message>.*)$")
CAUSE = "The above exception was the direct cause of the following exception"
CONTEXT = "During handling of the above exception, another exception occurred"
ANNOUNCEMENT = re.compile(
    r"^(?:Process \S+:|Exception ignored in|Exception in thread|Exception in ASGI application"
    r"|--- Logging error ---|terminate called after)"
)
MAX_MESSAGE_LINES = 12


def read_chains(lines: Iterable[Line]) -> list[Chain]:
    """All exceptions of a log, in the order in which they begin.

    Quiet lines are not read at all. Records of one process from one place, and what each process prints
    without a level, are read as separate streams: so lines of others in between do no harm.
    """
    streams: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        if line.loudness is not Loudness.QUIET:
            streams.setdefault((line.process, line.source), []).append(line)
    chains = [chain for stream in streams.values() for chain in _Stream().read(stream)]
    return sorted(chains, key=lambda chain: chain.start)


@dataclass(slots=True)
class _Stream:
    """Reads the lines of one stream; holds the exception that is being put together."""

    chains: list[Chain] = field(default_factory=list)
    raised: list[Raised] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    awaited: Link | None = None
    in_traceback: bool = False
    structured: bool = False
    loud: bool = False
    headline: str = ""
    announced: str = ""
    start: int = 0

    def read(self, lines: Sequence[Line]) -> list[Chain]:
        for line in lines:
            self._take(line)
        self._finish(lines[-1])
        return self.chains

    def _take(self, line: Line) -> None:
        text = line.text
        if text.lstrip().startswith(HEADER):
            self._open_traceback(line)
        elif frame := FRAME.match(text):
            if not self.in_traceback:
                self._open_traceback(line)
            self.frames.append(Frame(frame["file"], frame["function"]))
        elif self.in_traceback:
            self._end_traceback(line)
        elif text.strip().startswith((CAUSE, CONTEXT)):
            self.awaited = (Link.CAUSE if CAUSE in text else Link.CONTEXT) if self.raised else None
        elif alone := _alone(text):
            self._finish(line)
            self._add(line, alone)
        elif not self._continues(line):
            self._announce(line)

    def _open_traceback(self, line: Line) -> None:
        if self.awaited is None:
            self._finish(line)
        self.in_traceback = True
        self.structured = True
        self.frames = []
        if not self.raised:
            self.start = line.number
            self.headline, self.announced = self.announced, ""
            self.loud = line.loudness is Loudness.LOUD

    def _end_traceback(self, line: Line) -> None:
        """Only an exception's own line ends it; code, markers and lines of others are passed over."""
        if ended := IN_TRACEBACK.match(line.text):
            self._add(line, Raised(ended["type"], ended["message"] or ""))
            self.in_traceback = False

    def _add(self, line: Line, found: Raised) -> None:
        if not self.raised and not self.in_traceback:
            self.start = line.number
            self.headline, self.announced = self.announced, ""
            self.loud = line.loudness is Loudness.LOUD
        if self.raised:
            self.links.append(self.awaited or Link.CONTEXT)
        self.awaited = None
        self.raised.append(Raised(found.type, found.message, tuple(self.frames), (line.number,)))

    def _continues(self, line: Line) -> bool:
        """Append a further line of the last exception's message, if this is one."""
        if not self.raised or self.awaited is not None or ANNOUNCEMENT.match(line.text):
            return False
        last = self.raised[-1]
        adjacent = line.number == last.numbers[-1] + 1
        marked = line.process != "" or line.source != ""
        if len(last.numbers) > MAX_MESSAGE_LINES or not (adjacent or marked or line.text.startswith(" ")):
            return False
        message = f"{last.message}\n{line.text}"
        self.raised[-1] = Raised(last.type, message, last.frames, (*last.numbers, line.number))
        return True

    def _announce(self, line: Line) -> None:
        if line.text.strip() and (line.loudness is Loudness.LOUD or ANNOUNCEMENT.match(line.text)):
            self._finish(line)
            self.announced = line.text.strip()

    def _finish(self, line: Line) -> None:
        if self.raised:
            self.chains.append(
                Chain(
                    process=line.process,
                    raised=tuple(self.raised),
                    links=tuple(self.links),
                    loud=self.loud,
                    structured=self.structured,
                    headline=self.headline,
                    source=line.source,
                    start=self.start,
                )
            )
        self.raised, self.links, self.frames = [], [], []
        self.awaited, self.in_traceback, self.structured = None, False, False


def _alone(text: str) -> Raised | None:
    """An exception told by one line without a traceback, whoever formats it."""
    if found := ALONE.match(text):
        return Raised(found["type"], found["message"] or "")
    for pattern, kind in (
        (OS_ERROR, "OSError"),
        (USAGE, "UsageError"),
        (LAUNCHER, "ModuleNotFoundError"),
        (NATIVE, "NativeError"),
        (FATAL, "FatalPythonError"),
    ):
        if found := pattern.match(text):
            return Raised(kind, found["message"])
    return None
