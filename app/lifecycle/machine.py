"""A state machine as data: which moves are allowed. Moving is the business of ``app.db``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

__all__ = ["IllegalMoveError", "Machine"]

State = TypeVar("State", bound=StrEnum)


class IllegalMoveError(Exception):
    """A move that the table does not have.

    Attributes:
        machine: what moves, e.g. ``study``.
        source, target: the states.
    """

    def __init__(self, machine: str, source: StrEnum, target: StrEnum) -> None:
        super().__init__(f"a {machine} cannot go from {source.value} to {target.value}")
        self.machine = machine
        self.source = source
        self.target = target


@dataclass(frozen=True, slots=True)
class Machine(Generic[State]):
    """All moves of one kind of thing.

    Attributes:
        name: what moves.
        moves: targets by source; a final state has none.
    """

    name: str
    moves: Mapping[State, frozenset[State]]

    def check(self, source: State, target: State) -> None:
        """Raise unless ``source`` may become ``target``.

        Raises:
            IllegalMoveError: it may not.
        """
        if target not in self.moves[source]:
            raise IllegalMoveError(self.name, source, target)

    def sources_of(self, target: State) -> frozenset[State]:
        """The states from which ``target`` may be reached in one move."""
        return frozenset(source for source, targets in self.moves.items() if target in targets)

    @property
    def final(self) -> frozenset[State]:
        """The states that nothing leaves."""
        return frozenset(state for state, targets in self.moves.items() if not targets)
