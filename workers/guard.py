"""Work that ends when one of its guards objects."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, NoReturn, TypeVar

__all__ = ["guarded"]

T = TypeVar("T")


async def guarded(work: Coroutine[Any, Any, T], *guards: Coroutine[Any, Any, NoReturn]) -> T:
    """Await ``work`` while the guards watch; a guard objects by raising, which cancels the work.

    All have ended when this returns. Work that is done wins over a guard that objects at the same moment.
    """
    task = asyncio.create_task(work)
    watchers = [asyncio.create_task(guard) for guard in guards]
    try:
        done, _ = await asyncio.wait({task, *watchers}, return_when=asyncio.FIRST_COMPLETED)
        if task not in done:
            next(iter(done)).result()
        return task.result()
    finally:
        for each in (task, *watchers):
            each.cancel()
        await asyncio.gather(task, *watchers, return_exceptions=True)
