"""Follow a run to its end, without polling: a waiter on its `closed` wake, and a look once in a while."""

from __future__ import annotations

import asyncio
from typing import NamedTuple
from uuid import UUID

from harvest.errors import RetryChainTooLong
from harvest.hub.database import Row
from harvest.operations.live import MOST_ATTEMPTS
from harvest.operations.site import Site
from harvest.wakes.topics import CLOSED

LOOK_EVERY = 1.0
"""Seconds between looks for a wake that was lost (F-5)."""


class Outcome(NamedTuple):
    """How one execution ended; `result` and `failure` are JSON texts."""

    execution_id: UUID
    type: str
    state: str
    result: str | None
    failure: str | None
    successor: UUID | None
    erased: bool = False


def _outcome(execution_id: UUID, row: Row) -> Outcome:
    return Outcome(
        execution_id, row["type"], row["state"], row["result"], row["failure"], row["successor"], row["erased_at"] is not None
    )


async def closed(site: Site, execution_id: UUID) -> Outcome:
    """The end of this very execution."""
    key = str(execution_id)
    while True:
        waiter = site.router.waiter(CLOSED, key)
        try:
            if not site.holds_open(execution_id):
                row = await site.outcomes.submit(execution_id)  # it may have closed before we waited
                if row is not None:
                    return _outcome(execution_id, row)
            done, _ = await asyncio.wait({waiter}, timeout=LOOK_EVERY)
            if done and waiter.result() is not None:
                return Outcome(execution_id, *waiter.result())
        finally:
            site.router.forget(CLOSED, key, waiter)


async def result(site: Site, execution_id: UUID) -> Outcome:
    """The end of the logical run: continue-as-new, retries and resets are followed.

    Raises `RetryChainTooLong` past 256 attempts (L-7).
    """
    attempts = 1
    while True:
        outcome = await closed(site, execution_id)
        if outcome.successor is None:
            return outcome
        attempts = attempts + 1 if outcome.state == "FAILED" else 1
        if attempts > MOST_ATTEMPTS:
            raise RetryChainTooLong(execution_id, MOST_ATTEMPTS)
        execution_id = outcome.successor


async def closed_within(site: Site, execution_id: UUID, seconds: float) -> bool:
    try:
        await asyncio.wait_for(closed(site, execution_id), seconds)
    except TimeoutError:
        return False
    return True
