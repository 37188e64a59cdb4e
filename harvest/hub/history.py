"""Decisions of runs, whole for replay or event by event for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from harvest.core.events import Event, decode_event
from harvest.core.replay import StoredDecision
from harvest.hub.database import Row, Runs
from harvest.hub.queries import queries

_Q = queries("history")


async def load(
    db: Runs, execution_ids: Sequence[UUID], *, starting: Mapping[UUID, int] | None = None
) -> dict[UUID, list[StoredDecision]]:
    """All decisions of the runs, in order (of an entity those since its state was recorded); one query for all of them.

    `starting` names the decision to begin with for some of them.
    """
    starts = [(starting or {}).get(execution_id, 1) for execution_id in execution_ids]
    found: dict[UUID, list[StoredDecision]] = {execution_id: [] for execution_id in execution_ids}
    for row in await db.fetch(_Q["load"], execution_ids=list(execution_ids), starts=starts):
        found[row["execution_id"]].append(StoredDecision(row["decision"], row["at_us"], row["events"], row["first_event_id"]))
    return found


async def landed(db: Runs, worker_id: UUID, keys: Sequence[tuple[UUID, int]]) -> int:
    """How many of these (execution_id, decision) this worker wrote: what a lost connection leaves open."""
    rows = await db.fetch(_Q["landed"], worker_id=worker_id, execution_ids=[k[0] for k in keys], decisions=[k[1] for k in keys])
    count: int = rows[0]["count"]
    return count


async def of_update(db: Runs, execution_id: UUID, update_id: str) -> list[Event]:
    """What history has of one update, in order."""
    found = [decode_event(row["event"]) for row in await db.fetch(_Q["of_update"], execution_id=execution_id)]
    return [event for event in found if getattr(event, "update_id", None) == update_id]


async def events(db: Runs, execution_id: UUID, *, after: int = 0, size: int = 1000) -> Sequence[Row]:
    """Events one by one: event_id, decision, at, type, event (JSON text)."""
    return await db.fetch(_Q["events"], execution_id=execution_id, after=after, size=size)
