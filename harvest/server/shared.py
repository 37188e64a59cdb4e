"""Reads that many viewers want at once are made once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")
MOST = 1_000


class Shared:
    """`get(key, read, keep)` answers from what was read at most `keep` seconds ago, else reads; who comes meanwhile waits for
    the same answer. What took long is kept for twenty times as long, so that no page keeps the hub busy."""

    def __init__(self) -> None:
        self._found: dict[Hashable, tuple[float, Any]] = {}
        self._reading: dict[Hashable, asyncio.Future[Any]] = {}

    async def get(self, key: Hashable, read: Callable[[], Awaitable[T]], keep: float = 0.5) -> T:
        known = self._found.get(key)
        if known is not None and time.monotonic() < known[0]:
            value: T = known[1]
            return value
        reading = self._reading.get(key)
        if reading is None:
            reading = self._reading[key] = asyncio.ensure_future(self._read(key, read, keep))
        return await asyncio.shield(reading)

    async def _read(self, key: Hashable, read: Callable[[], Awaitable[T]], keep: float) -> T:
        try:
            began = time.monotonic()
            value = await read()
            now = time.monotonic()
            if len(self._found) >= MOST:
                self._found.clear()
            self._found[key] = (now + max(keep, min(60.0, 20 * (now - began))) if keep else 0.0, value)
            return value
        finally:
            self._reading.pop(key, None)

    def forget(self) -> None:
        self._found.clear()
