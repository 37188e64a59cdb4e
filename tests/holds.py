"""Named points at which a test holds the engine still, so that a race happens rather than may happen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from harvest.decider.lanes import Lane
from harvest.operations import live

POINTS = ("sealing", "sealed", "claimed", "resolved")
"""sealing: the attempt has failed in memory, and its commit has not been sent.
sealed: that commit has landed (the next attempt is there, its retry scheduled), and nothing of it has been told.
claimed: the next attempt has been taken up and driven, and its first commit has not been sent.
resolved: an act knows which attempt it goes to, and has not gone."""


class Holds:
    """`arm(point)` has the next one who comes there wait; `reached` tells when; `release` lets it go."""

    def __init__(self) -> None:
        self._armed: dict[str, tuple[asyncio.Event, asyncio.Event]] = {}

    def arm(self, point: str) -> None:
        assert point in POINTS
        self._armed[point] = (asyncio.Event(), asyncio.Event())

    async def reached(self, point: str) -> None:
        async with asyncio.timeout(20):
            await self._armed[point][0].wait()

    def release(self, point: str) -> None:
        self._armed[point][1].set()

    async def come(self, point: str) -> None:
        held = self._armed.get(point)
        if held is not None and not held[0].is_set():
            held[0].set()
            await held[1].wait()


def install(monkeypatch: pytest.MonkeyPatch) -> Holds:
    """Holds in this process, until the test is over."""
    holds = Holds()
    persist: Callable[..., Any] = Lane._persist
    find: Callable[..., Any] = live.find

    async def held_persist(self: Lane, drafts: list[Any]) -> Any:
        if any(d.fork is not None for d in drafts):
            await holds.come("sealing")
        if any(d.number == 1 and d.run.info.attempt > 1 for d in drafts):
            await holds.come("claimed")
        done = await persist(self, drafts)
        if any(d.fork is not None for d in drafts):
            await holds.come("sealed")
        return done

    async def held_find(*args: Any) -> Any:
        found = await find(*args)
        await holds.come("resolved")
        return found

    monkeypatch.setattr(Lane, "_persist", held_persist)
    monkeypatch.setattr(live, "find", held_find)
    return holds
