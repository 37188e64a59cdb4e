"""Whether those who have a stream open may still look: one statement for all of them, at most every few seconds."""

from __future__ import annotations

import time
from collections.abc import Sequence

from harvest.coalesce import Coalescer
from harvest.operations import tokens
from harvest.operations.site import Site

FRESH = 5.0
"""Seconds that an answer holds for all; a change of tokens that was heard of ends it at once."""
REMEMBERED = 60.0
"""Seconds since a stream last asked, after which its token is not asked about any more."""


class Standing:
    """`holds(digest)`; None stands for whoever came in while there was no token at all. Safe to share."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._asked: dict[bytes | None, float] = {}
        self._known: dict[bytes | None, bool] = {}
        self._until = 0.0
        self._generation = 0
        self._reads: Coalescer[None, None] = Coalescer(self._read)

    def forget(self) -> None:
        self._until = 0.0
        self._generation += 1

    async def holds(self, digest: bytes | None) -> bool:
        now = time.monotonic()
        self._asked[digest] = now
        if now >= self._until or digest not in self._known:
            await self._reads.submit(None)
        return self._known.get(digest, False)

    async def _read(self, callers: Sequence[None]) -> Sequence[None]:
        now, generation = time.monotonic(), self._generation
        self._asked = {each: at for each, at in self._asked.items() if now - at < REMEMBERED}
        asked = [each for each in self._asked if each is not None]
        held = await tokens.holds(self.site, asked) if asked else set()
        known: dict[bytes | None, bool] = {each: each in held for each in asked}
        if None in self._asked:
            known[None] = not await tokens.configured(self.site)
        self._known = known  # at once: others look while one reads
        if generation == self._generation:  # else something changed meanwhile: whoever comes next reads again
            self._until = now + FRESH
        return [None] * len(callers)
