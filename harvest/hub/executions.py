"""Runs: starting, finding, describing, listing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from harvest.core.program import RunInfo
from harvest.hub.database import Row, Runs
from harvest.hub.queries import queries
from harvest.ids import queue_of

_Q = queries("executions")
OPEN = ("RUNNING", "PAUSED")


class NewRun(msgspec.Struct, gc=False):
    """A run to be started by a client. `timeout` and `delay` in seconds; payloads are JSON texts.

    `reuse`: allow_duplicate, allow_failed (a completed run blocks the id) or reject_duplicate.
    """

    execution_id: UUID
    workflow_id: str
    type: str
    pool: str
    seed: int
    input: str
    reuse: str = "allow_duplicate"
    priority: int = 0
    timeout: float | None = None
    delay: float = 0.0
    memo: str | None = None
    attributes: str | None = None
    retry: str | None = None
    chain_timeout: float | None = None
    rerun_of: UUID | None = None

    @property
    def plain(self) -> bool:
        """True where its owner may store it together with its first decision."""
        return self.delay <= 0 and self.reuse == "allow_duplicate" and self.chain_timeout is None and self.rerun_of is None

    def info(self) -> RunInfo:
        """What the run will know of itself."""
        return RunInfo(
            workflow_id=self.workflow_id,
            execution_id=str(self.execution_id),
            type=self.type,
            queue=queue_of(self.pool),
            seed=self.seed,
            input=msgspec.Raw(self.input.encode()),
        )


async def start(db: Runs, runs: Sequence[NewRun]) -> set[UUID]:
    """Stores the runs whose workflow id is free under their policy, and returns their execution ids."""
    rows = await db.fetch(
        _Q["start"],
        execution_ids=[r.execution_id for r in runs],
        workflow_ids=[r.workflow_id for r in runs],
        types=[r.type for r in runs],
        pools=[r.pool for r in runs],
        seeds=[r.seed for r in runs],
        inputs=[r.input for r in runs],
        reuses=[r.reuse for r in runs],
        priorities=[r.priority for r in runs],
        timeouts=[r.timeout for r in runs],
        delays=[r.delay for r in runs],
        memos=[r.memo for r in runs],
        attributes=[r.attributes for r in runs],
        retries=[r.retry for r in runs],
        chain_timeouts=[r.chain_timeout for r in runs],
        reruns=[r.rerun_of for r in runs],
    )
    return {row["execution_id"] for row in rows}


async def latest(db: Runs, workflow_ids: Sequence[str]) -> dict[str, Row]:
    """The newest run of each workflow id: execution_id, type, pool, state, open."""
    return {row["workflow_id"]: row for row in await db.fetch(_Q["latest"], workflow_ids=list(workflow_ids))}


async def outcomes(db: Runs, execution_ids: Sequence[UUID]) -> dict[UUID, Row]:
    """State, result, failure and successor of those that are closed."""
    return {row["execution_id"]: row for row in await db.fetch(_Q["outcomes"], execution_ids=list(execution_ids))}


async def load(db: Runs, execution_ids: Sequence[UUID]) -> dict[UUID, Row]:
    """What the decider needs to know of runs before it touches their history."""
    return {row["execution_id"]: row for row in await db.fetch(_Q["load"], execution_ids=list(execution_ids))}


async def describe(db: Runs, *, workflow_id: str | None, execution_id: UUID | None) -> Row | None:
    rows = await db.fetch(_Q["describe"], workflow_id=workflow_id, execution_id=execution_id)
    return rows[0] if rows else None


async def listing(
    db: Runs,
    *,
    size: int,
    state: str | None = None,
    type: str | None = None,
    queue: str | None = None,
    prefix: str | None = None,
    attributes: str | None = None,
    after: datetime | None = None,
    before: datetime | None = None,
    cursor: tuple[datetime, UUID] | None = None,
    entities: bool = False,
    open: bool = False,
) -> Sequence[Row]:
    """Newest first, entities only when asked for (or by their `type`); with `open` only runs that are not closed.

    `cursor` is (created_at, execution_id) of the last row already seen."""
    at, last = cursor or (None, None)
    return await db.fetch(
        _Q["listing"],
        state=state,
        type=type,
        queue=queue,
        prefix=prefix,
        attributes=attributes,
        after=after,
        before=before,
        cursor_at=at,
        cursor_id=last,
        entities=entities,
        open=open or state in OPEN,
        closed=state is not None and state not in OPEN,
        size=size,
    )


async def home(db: Runs, execution_id: UUID) -> str | None:
    """The workflow id of an execution."""
    rows = await db.fetch(_Q["home"], execution_id=execution_id)
    return rows[0]["workflow_id"] if rows else None


async def counts(db: Runs, type: str | None = None, *, entities: bool = False) -> dict[str, int]:
    return {row["state"]: row["runs"] for row in await db.fetch(_Q["counts"], type=type, entities=entities)}


async def open_runs(db: Runs, pool: str | None, size: int) -> Sequence[Row]:
    return await db.fetch(_Q["open_runs"], pool=pool, size=size)


async def live_attempt(db: Runs, execution_id: UUID, most: int) -> Row | None:
    """The deepest attempt that failed attempts lead to; its `n` is above `most` where the chain is longer."""
    rows = await db.fetch(_Q["live_attempt"], execution_id=execution_id, most=most)
    return rows[0] if rows else None


async def chain(db: Runs, execution_id: UUID, most: int) -> Sequence[Row]:
    """All runs that belong together, oldest first."""
    return await db.fetch(_Q["chain"], execution_id=execution_id, most=most)


async def resume(db: Runs, execution_id: UUID, taken_back: str) -> Row:
    """resumed (0 or 1), the keys of pause requests that were taken back, and the queues whose activities may go on."""
    return (await db.fetch(_Q["resume"], execution_id=execution_id, taken_back=taken_back))[0]
