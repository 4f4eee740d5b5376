"""The order in which freed blocks are reused decides what a request can still hit."""

import pytest

from tuner.simulation.blocks import BlockPool


class TestBlockPool:
    def test_no_more_can_be_taken_than_are_free(self) -> None:
        pool = BlockPool(3, caching=True)
        pool.take(2)
        with pytest.raises(ValueError, match="2 blocks asked for, 1 are free"):
            pool.take(2)

    def test_cached_blocks_are_reused_last_and_from_their_requests_end(self) -> None:
        pool = BlockPool(10, caching=True)
        pool.take(5)
        pool.give(5, 0, owner=7)
        pool.take(5)  # the five that were never used
        assert pool.cached_blocks(7) == 5
        pool.take(2)
        assert pool.cached_blocks(7) == 3

    def test_uncached_blocks_are_reused_first(self) -> None:
        pool = BlockPool(5, caching=True)
        pool.take(5)
        pool.give(3, 2, owner=7)
        pool.take(2)
        assert pool.cached_blocks(7) == 3

    def test_blocks_freed_earlier_are_reused_earlier(self) -> None:
        pool = BlockPool(4, caching=True)
        pool.take(4)
        pool.give(2, 0, owner=1)
        pool.give(2, 0, owner=2)
        pool.take(3)
        assert (pool.cached_blocks(1), pool.cached_blocks(2)) == (0, 1)

    def test_a_returning_request_takes_its_blocks_back(self) -> None:
        pool = BlockPool(4, caching=True)
        pool.take(4)
        pool.give(4, 0, owner=1)
        pool.reclaim(1, 3)
        assert pool.free == 1
        assert pool.cached_blocks(1) == 0
        pool.take(1)

    def test_without_caching_nothing_is_hit(self) -> None:
        pool = BlockPool(4, caching=False)
        pool.take(2)
        pool.give(2, 0, owner=1)
        assert pool.cached_blocks(1) == 0
        assert pool.free == 4


class TestSharedPrefix:
    def test_it_is_held_once_however_many_hold_it(self) -> None:
        pool = BlockPool(10, caching=True)
        pool.hold_shared()
        pool.take(3)
        pool.grow_shared(3)
        pool.hold_shared()
        assert pool.held_shared == 3
        pool.release_shared()
        assert pool.free == 7
        pool.release_shared()
        assert (pool.free, pool.held_shared, pool.shared_in_queue()) == (10, 0, 3)

    def test_what_others_took_of_it_is_gone(self) -> None:
        pool = BlockPool(4, caching=True)
        pool.hold_shared()
        pool.take(3)
        pool.grow_shared(3)
        pool.release_shared()
        pool.take(2)
        assert pool.shared_hit() == 2
        pool.hold_shared()
        assert pool.free == 0
