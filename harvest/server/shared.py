"""Reads that many viewers want at once are made once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
MOST = 1_000
SLOW = 0.025
"""Seconds from which a read is kept for its time, whatever changes meanwhile."""


class Found(NamedTuple):
    """What was read, when, and until when it is good enough."""

    began: float
    until: float
    slow: bool
    value: Any


def _seen(reading: asyncio.Future[Any]) -> None:
    """Who asked may be gone by now: an error that nobody takes is no news for the log."""
    if not reading.cancelled():
        reading.exception()


class Shared:
    """`get(key, read, keep)` answers from what was read at most `keep` seconds ago, else reads; who comes meanwhile waits for
    the same answer. What took long is kept for twenty times as long, `most` seconds at most, so that no page keeps the hub
    busy."""

    def __init__(self) -> None:
        self._found: dict[Hashable, Found] = {}
        self._reading: dict[Hashable, asyncio.Future[Any]] = {}
        self._generation = 0

    async def get(self, key: Hashable, read: Callable[[], Awaitable[T]], keep: float = 0.5, most: float = 60.0) -> T:
        known = self._found.get(key)
        if known is not None and time.monotonic() < known.until:
            value: T = known.value
            return value
        reading = self._reading.get(key)
        if reading is None:
            reading = self._reading[key] = asyncio.ensure_future(self._read(key, read, keep, most))
            reading.add_done_callback(_seen)
        return await asyncio.shield(reading)

    async def _read(self, key: Hashable, read: Callable[[], Awaitable[T]], keep: float, most: float) -> T:
        mine, generation = asyncio.current_task(), self._generation
        try:
            began = time.monotonic()
            value = await read()
            now = time.monotonic()
            took = now - began
            slow, known = took > SLOW, self._found.get(key)
            overtaken = known is not None and known.began > began  # by a read that began after a change
            if (slow or generation == self._generation) and not overtaken:
                if len(self._found) >= MOST:
                    self._found.clear()
                self._found[key] = Found(began, now + max(keep, min(most, 20 * took)), slow, value)
            return value
        finally:
            if self._reading.get(key) is mine:
                del self._reading[key]

    def forget(self) -> None:
        """Something has changed: what was quick to read is read again, also where a read is under way."""
        self._generation += 1
        self._found = {key: entry for key, entry in self._found.items() if entry.slow}
        self._reading.clear()
