"""Runs that nobody can decide, or that ended at the cap of history: looked at by cause, tried again, or put away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from harvest.errors import NotRedrivable, WorkflowNotFound
from harvest.failure import Failure, decode_failure
from harvest.hub import dead_letters
from harvest.hub.database import Row
from harvest.operations.again import command
from harvest.operations.message import terminate
from harvest.operations.site import Site


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """`state` is that of the run: an open one is parked until it is redriven, a new worker comes, or it is discarded."""

    execution_id: UUID
    workflow_id: str
    type: str
    queue: str
    state: str
    at: datetime
    strikes: int
    error: Failure


@dataclass(frozen=True, slots=True)
class Cause:
    """Dead letters of one type with one kind of error; in `message` numbers and ids are replaced by #."""

    type: str
    error: str
    message: str
    count: int
    oldest: datetime
    newest: datetime
    example: UUID


def _letter(row: Row) -> DeadLetter:
    return DeadLetter(**{**dict(row), "error": decode_failure(row["error"])})


async def listing(
    site: Site, *, size: int, cursor: tuple[datetime, UUID] | None = None, **filters: Any
) -> Sequence[DeadLetter]:
    """Newest first. `filters`: type, queue, error (the error's type), workflow_id."""
    return [_letter(row) for row in await dead_letters.listing(site.db, size=size, cursor=cursor, **filters)]


async def show(site: Site, execution_id: UUID) -> DeadLetter:
    """Raises `WorkflowNotFound`."""
    row = await dead_letters.one(site.db, execution_id)
    if row is None:
        raise WorkflowNotFound(f"execution {execution_id} is not in the dead letters")
    return _letter(row)


async def causes(site: Site, **filters: Any) -> Sequence[Cause]:
    """What the dead letters died of, the most frequent first."""
    return [Cause(**dict(row)) for row in await dead_letters.causes(site.db, **filters)]


async def redrive(site: Site, execution_id: UUID) -> None:
    """Has a parked run decided again, with all its strikes forgiven.

    Raises `WorkflowNotFound`, or `NotRedrivable` for one that is closed.
    """
    letter = await show(site, execution_id)
    row = await dead_letters.redrive(site.db, execution_id)
    if row is None:
        if letter.state == "PAUSED":
            raise NotRedrivable(f"run {letter.workflow_id!r} is paused", hint=command("run resume", letter.workflow_id))
        raise NotRedrivable(
            f"execution {execution_id} of {letter.workflow_id!r} is {letter.state}: there is nothing to try again",
            hint=f"{command('run reset', letter.workflow_id, '--execution-id', execution_id)}, or rerun it",
        )
    site.wake(row["pool"], execution_id, row["partition"], row["workflow_id"])


async def discard(site: Site, execution_id: UUID, reason: str, patience: float) -> None:
    """Puts a letter away; a run that is open still is terminated. Raises `WorkflowNotFound`, `NoAnswer`."""
    letter = await show(site, execution_id)
    if letter.state in ("RUNNING", "PAUSED"):
        why = f"discarded from the dead letters{f': {reason}' if reason else ''}"
        await terminate(site, letter.workflow_id, why, attempt=execution_id, patience=patience)
    await dead_letters.delete(site.db, execution_id)
