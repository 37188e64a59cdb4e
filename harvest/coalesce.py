"""Group calls the way decisions are grouped: while one batch is on its way, the next one gathers.

No timer ever delays a call: a lone one leaves at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from harvest.errors import HubUnreachable

T = TypeVar("T")
R = TypeVar("R")


class Coalescer(Generic[T, R]):
    """`await submit(item)` gives the item's result; `run(items)` answers for a whole batch, in order.

    An answer that is an exception is raised to its caller.

    An error of `run` reaches every caller of a batch of one; a larger batch is tried again one by one, so
    that bad input harms only its own caller.
    """

    def __init__(self, run: Callable[[Sequence[T]], Awaitable[Sequence[R]]], *, limit: int = 500) -> None:
        self._run, self._limit = run, limit
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._task: asyncio.Task[None] | None = None

    async def submit(self, item: T) -> R:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._waiting.append((item, future))
        if self._task is None:
            self._task = loop.create_task(self._drain())
        return await future

    async def _drain(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._limit], self._waiting[self._limit :]
                await self._one(batch)
        finally:
            self._task = None

    async def _one(self, batch: list[tuple[T, asyncio.Future[R]]]) -> None:
        try:
            results = await self._run([item for item, _ in batch])
        except Exception as exc:
            if len(batch) == 1 or isinstance(exc, HubUnreachable):
                for _, future in batch:
                    if not future.done():
                        future.set_exception(exc)
                return
            for single in batch:
                await self._one([single])
            return
        except BaseException:
            for _, future in batch:
                future.cancel()
            raise
        for (_, future), result in zip(batch, results, strict=True):
            if future.done():
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)
