"""The logical handle: the id of one execution names its logical run, and acts reach the live attempt (L-2, L-3, L-7)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from uuid import UUID

from harvest.errors import RetryChainTooLong, WorkflowClosed, WorkflowNotFound
from harvest.hub import executions
from harvest.hub.database import Row
from harvest.operations.site import Site

log = logging.getLogger("harvest.operations")
T = TypeVar("T")
MOST_ATTEMPTS = 256
"""Attempts that are walked. A deeper chain is an error: an attempt that is not the last one would get what is not for it."""


async def live_attempt(site: Site, execution_id: UUID) -> Row:
    """execution_id, workflow_id, type, pool, partition, state, open, continued_to of the attempt that counts.

    Raises `WorkflowNotFound`, or `RetryChainTooLong` past 256 attempts.
    """
    row = await executions.live_attempt(site.db, execution_id, MOST_ATTEMPTS)
    if row is None:
        raise WorkflowNotFound(f"no run has the execution id {execution_id}")
    if row["n"] > MOST_ATTEMPTS:
        log.error("the retry chain of %s is longer than %d attempts", execution_id, MOST_ATTEMPTS)
        raise RetryChainTooLong(execution_id, MOST_ATTEMPTS)
    return row


async def find(site: Site, workflow_id: str, execution_id: UUID | None) -> Row:
    """The live attempt of an execution, else the newest run of the workflow id. Raises as `live_attempt`."""
    if execution_id is None:
        latest = await site.latest.submit(workflow_id)
        if latest is None:
            raise WorkflowNotFound(f"no run has the workflow id {workflow_id!r}")
        execution_id = latest["execution_id"]
    row = await live_attempt(site, execution_id)
    if row["workflow_id"] != workflow_id:
        raise WorkflowNotFound(f"execution {execution_id} is one of {row['workflow_id']!r}, not of {workflow_id!r}")
    return row


async def exactly(site: Site, workflow_id: str, execution_id: UUID | None) -> Any:
    """This very execution, else the newest of the id. Raises `WorkflowNotFound`."""
    row = await executions.describe(site.db, workflow_id=workflow_id, execution_id=execution_id)
    if row is None or row["workflow_id"] != workflow_id:
        raise WorkflowNotFound(f"no run {execution_id or ''} has the workflow id {workflow_id!r}".replace("  ", " "))
    return row


async def act_on_live(site: Site, workflow_id: str, execution_id: UUID | None, act: Callable[[Row], Awaitable[T | None]]) -> T:
    """`act(attempt)`, on the live attempt; where it provably did nothing (None), and a new attempt has come about, on that one.

    Raises `WorkflowClosed` when the last attempt takes nothing any more.
    """
    last = None
    for _ in range(MOST_ATTEMPTS):
        target = await find(site, workflow_id, execution_id)
        if target["execution_id"] == last:
            raise closed_error(target)
        done = await act(target) if target["open"] else None
        if done is not None:
            return done
        last = target["execution_id"]
    raise RetryChainTooLong(last, MOST_ATTEMPTS)


def closed_error(row: Row) -> WorkflowClosed:
    after = row["continued_to"]
    hint = "rerun or reset it: see `harvest run rerun --help`" if after is None else f"it goes on as {after}"
    return WorkflowClosed(row["workflow_id"], row["execution_id"], row["state"], hint=hint)
