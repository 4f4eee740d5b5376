"""What the load client notes about each request."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["TIMEOUT", "Record", "Window"]

TIMEOUT = "timeout"
"""The request had not ended when the drain after the window was over: it took at least that long."""


@dataclass(slots=True)
class Record:
    """One request. Times are seconds on the monotonic clock; ``None`` is: did not happen (yet).

    Attributes:
        due: when the arrival process said it should be sent.
        sent: when it was handed to the connection.
        chunks: arrival of each streamed chunk that carried tokens.
        ended: when its answer was complete, or it failed.
        prompt_tokens: tokens of the prompt.
        wanted_tokens: output tokens asked for.
        output_tokens: output tokens by the server's ``usage``; known when the answer is complete.
        error: kind of failure: ``http_NNN``, ``timeout``, ``connection``, ``garbage``.
        detail: what the server or the connection said, for people.
    """

    due: float
    prompt_tokens: int = 0
    wanted_tokens: int = 0
    sent: float | None = None
    chunks: list[float] = field(default_factory=list)
    ended: float | None = None
    output_tokens: int | None = None
    error: str | None = None
    detail: str = ""

    @property
    def completed(self) -> bool:
        """Whether the answer came whole."""
        return self.ended is not None and self.error is None


@dataclass(frozen=True, slots=True)
class Window:
    """The measured window ``[opened, closed)`` on the monotonic clock."""

    opened: float
    closed: float

    def __contains__(self, moment: float | None) -> bool:
        return moment is not None and self.opened <= moment < self.closed

    @property
    def length_s(self) -> float:
        """Its length in seconds."""
        return self.closed - self.opened
