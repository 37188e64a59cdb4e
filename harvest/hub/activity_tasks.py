"""Activity tasks: claimed with SKIP LOCKED, finished by a guarded write that says whether it landed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from harvest.hub.database import Database, Row, Runs
from harvest.hub.queries import queries

_Q = queries("activity_tasks")


class Finished(NamedTuple):
    """The end of an attempt; exactly one of `result` and `failure` (JSON texts) is set."""

    execution_id: UUID
    seq: int
    attempt: int
    result: str | None
    failure: str | None


class Again(NamedTuple):
    """A failed attempt that is to be tried again after `delay` seconds."""

    execution_id: UUID
    seq: int
    attempt: int
    delay: float
    failure: str


class Beat(NamedTuple):
    execution_id: UUID
    seq: int
    attempt: int
    details: str | None


async def claim(db: Database, *, queue: str, names: Sequence[str], worker_id: UUID, size: int) -> Sequence[Row]:
    return await db.fetch_once(_Q["claim"], queue=queue, names=list(names), worker_id=worker_id, size=size)


async def next_due(db: Database, *, queue: str, names: Sequence[str]) -> float | None:
    """Seconds until the next waiting task is due, or None."""
    rows = await db.fetch_once(_Q["next_due"], queue=queue, names=list(names))
    found: float | None = rows[0][next(iter(rows[0].keys()))]
    return found


async def complete(db: Runs, worker_id: UUID, ends: Sequence[Finished]) -> Sequence[Row]:
    """Rows that landed: execution_id, seq, pool, partition. Not there: cancelled, overdue, or run closed."""
    return await db.fetch(
        _Q["complete"],
        worker_id=worker_id,
        execution_ids=[e.execution_id for e in ends],
        seqs=[e.seq for e in ends],
        attempts=[e.attempt for e in ends],
        results=[e.result for e in ends],
        failures=[e.failure for e in ends],
    )


async def retry(db: Runs, again: Sequence[Again], worker_id: UUID | None) -> Sequence[Row]:
    """Back to the queue for another try; by `worker_id` only where it still holds the task, by None (the sweeper) anyway."""
    return await db.fetch(
        _Q["retry"],
        worker_id=worker_id,
        execution_ids=[a.execution_id for a in again],
        seqs=[a.seq for a in again],
        attempts=[a.attempt for a in again],
        delays=[a.delay for a in again],
        failures=[a.failure for a in again],
    )


async def beat(db: Runs, worker_id: UUID, beats: Sequence[Beat]) -> set[tuple[UUID, int]]:
    """(execution_id, seq) of the attempts that still hold their task."""
    rows = await db.fetch(
        _Q["beat"],
        worker_id=worker_id,
        execution_ids=[b.execution_id for b in beats],
        seqs=[b.seq for b in beats],
        attempts=[b.attempt for b in beats],
        details=[b.details for b in beats],
    )
    return {(row["execution_id"], row["seq"]) for row in rows}


async def expired(db: Database, size: int = 200) -> Sequence[Row]:
    return await db.fetch_once(_Q["expired"], size=size)


async def expire(db: Runs, ends: Sequence[Finished]) -> Sequence[Row]:
    """Final failures for overdue tasks; rows that landed: execution_id, seq, pool, partition."""
    return await db.fetch(
        _Q["expire"],
        execution_ids=[e.execution_id for e in ends],
        seqs=[e.seq for e in ends],
        attempts=[e.attempt for e in ends],
        failures=[e.failure for e in ends],
    )


async def release(db: Runs, worker_ids: Sequence[UUID]) -> list[str]:
    """Gives back the tasks of dead or stopping workers; returns their queues, one per task."""
    return [row["queue"] for row in await db.fetch(_Q["release"], worker_ids=list(worker_ids))]


async def release_lost(db: Database) -> list[str]:
    """Gives back tasks whose worker is not alive; returns their queues, one per task."""
    return [row["queue"] for row in await db.fetch_once(_Q["release_lost"])]


async def held(db: Database, worker_id: UUID) -> set[tuple[UUID, int]]:
    """(execution_id, seq) of the tasks that the hub thinks this worker runs."""
    return {(row["execution_id"], row["seq"]) for row in await db.fetch_once(_Q["held"], worker_id=worker_id)}


async def give_back(db: Database, worker_id: UUID, keys: Sequence[tuple[UUID, int]]) -> list[str]:
    rows = await db.fetch_once(
        _Q["give_back"], worker_id=worker_id, execution_ids=[k[0] for k in keys], seqs=[k[1] for k in keys]
    )
    return [row["queue"] for row in rows]


async def done(db: Runs, execution_ids: Sequence[UUID]) -> Sequence[Row]:
    """Finished tasks that their runs have not ingested."""
    return await db.fetch(_Q["done"], execution_ids=list(execution_ids))


async def retry_now(db: Runs, execution_id: UUID, seq: int) -> str | None:
    """Makes a waiting task due and returns its queue; None where none waits."""
    rows = await db.fetch(_Q["retry_now"], execution_id=execution_id, seq=seq)
    return rows[0]["queue"] if rows else None


async def fail_now(db: Runs, execution_id: UUID, seq: int, failure: str) -> Row | None:
    """Gives a task its final failure, whoever holds it: pool and partition of its run; None where there is no such task."""
    rows = await db.fetch(_Q["fail_now"], execution_id=execution_id, seq=seq, failure=failure)
    return rows[0] if rows else None


def of_description(row: Row) -> list[dict[str, Any]]:
    """The tasks that `executions.describe` found."""
    found: list[dict[str, Any]] = json.loads(row["activities"])
    return found
