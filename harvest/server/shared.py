"""Reads that many viewers want at once are made once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")
MOST = 1_000
SLOW = 0.025
"""Seconds from which a read is kept for its time, whatever changes meanwhile."""


def _seen(reading: asyncio.Future[Any]) -> None:
    """Who asked may be gone by now: an error that nobody takes is no news for the log."""
    if not reading.cancelled():
        reading.exception()


class Shared:
    """`get(key, read, keep)` answers from what was read at most `keep` seconds ago, else reads; who comes meanwhile waits for
    the same answer. What took long is kept for twenty times as long, so that no page keeps the hub busy."""

    def __init__(self) -> None:
        self._found: dict[Hashable, tuple[float, bool, Any]] = {}
        self._reading: dict[Hashable, asyncio.Future[Any]] = {}
        self._generation = 0

    async def get(self, key: Hashable, read: Callable[[], Awaitable[T]], keep: float = 0.5) -> T:
        known = self._found.get(key)
        if known is not None and time.monotonic() < known[0]:
            value: T = known[2]
            return value
        reading = self._reading.get(key)
        if reading is None:
            reading = self._reading[key] = asyncio.ensure_future(self._read(key, read, keep))
            reading.add_done_callback(_seen)
        return await asyncio.shield(reading)

    async def _read(self, key: Hashable, read: Callable[[], Awaitable[T]], keep: float) -> T:
        mine, generation = asyncio.current_task(), self._generation
        try:
            began = time.monotonic()
            value = await read()
            now = time.monotonic()
            took = now - began
            slow = took > SLOW
            if slow or generation == self._generation:
                if len(self._found) >= MOST:
                    self._found.clear()
                self._found[key] = (now + max(keep, min(60.0, 20 * took)), slow, value)
            return value
        finally:
            if self._reading.get(key) is mine:
                del self._reading[key]

    def forget(self) -> None:
        """Something has changed: what was quick to read is read again, also where a read is under way."""
        self._generation += 1
        self._found = {key: entry for key, entry in self._found.items() if entry[1]}
        self._reading.clear()
