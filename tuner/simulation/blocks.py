"""The KV cache's blocks: a free queue in the order in which blocks are reused, and a shared prefix.

As in vLLM's ``BlockPool``, a freed block that holds cached tokens goes to the end of the free queue, last
block of its request first, and any other to the front; blocks are taken from the front. Blocks are counted in
segments, one per request that freed some: eating a segment from its request's tail leaves a prefix, which
is what a request that returns can still hit.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

__all__ = ["BlockPool"]

SHARED = -1
"""Owner of the blocks of the prefix that all prompts share; requests are numbered from 0."""


@dataclass(slots=True)
class _Segment:
    """``blocks`` free blocks in a row; ``owner`` may hit them again, ``None`` is nobody."""

    owner: int | None
    blocks: int


class BlockPool:
    """Counts free blocks and remembers whose tokens they still hold.

    Attributes:
        total: number of blocks.
        free: blocks that can be taken now.
        caching: whether freed blocks can be hit again.
    """

    def __init__(self, total: int, *, caching: bool) -> None:
        self.total = total
        self.free = total
        self.caching = caching
        self._queue: deque[_Segment] = deque([_Segment(None, total)])
        self._cached: dict[int, _Segment] = {}
        self._shared_blocks = 0
        self._shared_holders = 0

    @property
    def held_shared(self) -> int:
        """Blocks of the shared prefix that running requests hold, counted once."""
        return self._shared_blocks if self._shared_holders else 0

    def take(self, blocks: int) -> None:
        """Take blocks for new tokens from the front of the queue.

        Raises:
            ValueError: fewer are free.
        """
        if blocks > self.free:
            raise ValueError(f"{blocks} blocks asked for, {self.free} are free")
        self.free -= blocks
        while blocks:
            segment = self._queue[0]
            eaten = min(blocks, segment.blocks)
            segment.blocks -= eaten
            blocks -= eaten
            if not segment.blocks:
                self._forget(self._queue.popleft())

    def _forget(self, segment: _Segment) -> None:
        if segment.owner is not None and self._cached.get(segment.owner) is segment:
            del self._cached[segment.owner]
        if segment.owner == SHARED and not self._shared_holders:
            self._shared_blocks = 0

    def give(self, cached: int, uncached: int, *, owner: int | None = None) -> None:
        """Free a request's blocks; with an ``owner``, it can hit the cached ones while they last."""
        if not self.caching:
            cached, uncached = 0, cached + uncached
        self.free += cached + uncached
        if uncached:
            self._queue.appendleft(_Segment(None, uncached))
        if cached:
            self._append(_Segment(owner, cached))

    def _append(self, segment: _Segment) -> None:
        self._queue.append(segment)
        if segment.owner is not None:
            self._cached[segment.owner] = segment

    def cached_blocks(self, owner: int) -> int:
        """Blocks in the free queue that still hold the first tokens of this owner."""
        segment = self._cached.get(owner)
        return segment.blocks if segment else 0

    def reclaim(self, owner: int, blocks: int) -> None:
        """Take the owner's first ``blocks`` cached blocks back out of the free queue, and forget the rest."""
        segment = self._cached.pop(owner)
        segment.blocks -= blocks
        segment.owner = None
        self.free -= blocks

    # ------------------------------------------------------------ the shared prefix

    def shared_hit(self) -> int:
        """Blocks of the shared prefix that are cached, held or free."""
        return self._shared_blocks if self._shared_holders else self.cached_blocks(SHARED)

    def shared_in_queue(self) -> int:
        """Blocks of the shared prefix that lie in the free queue: to hit them uses them up."""
        return 0 if self._shared_holders else self.cached_blocks(SHARED)

    def hold_shared(self) -> None:
        """One more running request holds the shared prefix, or begins to compute it."""
        if not self._shared_holders:
            self._shared_blocks = self.cached_blocks(SHARED)
            if self._shared_blocks:
                self.reclaim(SHARED, self._shared_blocks)
        self._shared_holders += 1

    def grow_shared(self, blocks: int) -> None:
        """Count ``blocks``, taken before, as computed blocks of the shared prefix."""
        self._shared_blocks += blocks

    def release_shared(self) -> None:
        """One request fewer holds it; when none does, its blocks join the free queue."""
        self._shared_holders -= 1
        if not self._shared_holders and self._shared_blocks:
            self.free += self._shared_blocks
            self._append(_Segment(SHARED, self._shared_blocks))
