"""What an attempt needs of an engine, whichever it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tuner.protocol import ArgValue
from workers.load.prompts import Vocabulary

__all__ = ["Engine", "EngineDescription", "EngineUnreadableError"]


class EngineUnreadableError(Exception):
    """A ready engine does not tell what an attempt cannot do without."""


@dataclass(frozen=True, slots=True)
class EngineDescription:
    """What a ready engine says about itself.

    Attributes:
        version: the engine's version, ``None`` if it does not tell.
        model: name under which it serves the model.
        max_model_len: longest request in tokens, prompt and output together; ``None`` if it does not tell.
        resolved_args: values of its arguments, as far as it tells.
        vocabulary: token ids that it takes in prompts.
    """

    version: str | None
    model: str
    max_model_len: int | None
    resolved_args: Mapping[str, ArgValue]
    vocabulary: Vocabulary


class Engine(Protocol):
    """A server of the OpenAI completions API, as a tree of processes of its own."""

    @property
    def url(self) -> str:
        """Its address."""

    @property
    def argv(self) -> Sequence[str]:
        """Its arguments, the program first; no secrets."""

    @property
    def env(self) -> Mapping[str, str]:
        """The environment variables set for it on purpose; no secrets."""

    @property
    def exit_code(self) -> int | None:
        """Exit code of its first process, negative for a signal; ``None`` while it runs."""

    async def start(self) -> None:
        """Start its processes; they are not ready yet."""

    async def wait(self) -> int:
        """Wait for its first process to end; the exit code."""

    async def health(self) -> int | None:
        """HTTP status of its health check; ``None`` if it does not answer."""

    async def describe(self) -> EngineDescription:
        """Ask the ready engine about itself.

        Raises:
            EngineUnreadableError: it does not tell what an attempt cannot do without.
        """

    async def metrics(self) -> str | None:
        """Its Prometheus text; ``None`` if it does not answer."""

    def log_lines(self) -> list[str]:
        """Its output so far, standard output and error together."""

    async def stop(self, *, at_once: bool = False) -> None:
        """End it and wait until none of its processes is left; harmless when it has ended or never started.

        Raises:
            LeftoversError: processes are left that even SIGKILL does not end.
        """
