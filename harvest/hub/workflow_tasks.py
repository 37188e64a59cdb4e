"""The tasks of open runs: what is due, what is claimed, and what failed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from harvest.hub.database import Database, Row, Runs
from harvest.hub.queries import queries

_Q = queries("workflow_tasks")
STRIKES = 3
"""Failed decisions after which a run is parked in the dead letters (F-4)."""


async def scan(
    db: Database,
    pool: str,
    partitions: Sequence[int],
    *,
    ahead: float,
    size: int,
    queue: str = "",
    names: Sequence[str] = (),
) -> Sequence[Row]:
    """What an owner of these partitions should look at: kind, execution_id, partition, due_us.

    Kinds: `due` (now or within `ahead` seconds; about `size` at most), `mail` (unread, or finished activities), `unstamped`,
    and `activity`: microseconds until the next activity of `queue` with one of these `names` is due.
    """
    each = max(8, size // max(1, len(partitions)))
    return await db.fetch_once(
        _Q["scan"], pool=pool, partitions=list(partitions), ahead=ahead, each=each, queue=queue, names=list(names)
    )


async def stamp(db: Runs, pool: str) -> Sequence[Row]:
    """Gives rows without a partition theirs (O-2); returns execution_id and partition of each."""
    return await db.fetch(_Q["stamp"], pool=pool)


async def running(db: Runs, pool: str, partitions: Sequence[int]) -> Sequence[Row]:
    """Runs of these partitions whose work lived in the memory of their last owner."""
    return await db.fetch(_Q["running"], pool=pool, partitions=list(partitions))


# --- claims (sticky mode)


async def claim(db: Database, *, pool: str, worker_id: UUID, size: int) -> Sequence[Row]:
    """Claims up to `size` due tasks in claim order: execution_id, partition, claim, wakes, decision (the last one),
    scheduled, sticky_replay_mode, sticky_worker_id, sticky_until."""
    return await db.fetch_once(_Q["claim"], pool=pool, worker_id=worker_id, size=size)


async def claim_one(db: Runs, *, worker_id: UUID, execution_id: UUID) -> Row | None:
    """Claims this run if nobody decides it now."""
    rows = await db.fetch(_Q["claim_one"], worker_id=worker_id, execution_id=execution_id)
    return rows[0] if rows else None


async def next_open(db: Database, pool: str, worker_id: UUID) -> float | None:
    """Seconds until the next task of the pool may be claimed by this worker."""
    seconds: float | None = (await db.fetch_once(_Q["next_open"], pool=pool, worker_id=worker_id))[0]["seconds"]
    return seconds


async def poke(db: Runs, execution_ids: Sequence[UUID]) -> set[UUID]:
    """Makes parked runs due, and has those that are being decided look again. Returns those that are open."""
    return {row["execution_id"] for row in await db.fetch(_Q["poke"], execution_ids=list(execution_ids))}


async def overlooked(db: Database, pool: str) -> tuple[list[tuple[UUID, int]], list[UUID]]:
    """Runs with something to read that nobody was woken for: parked ones with their partition, and closed ones."""
    rows = await db.fetch_once(_Q["overlooked"], pool=pool)
    parked = [(row["execution_id"], row["partition"]) for row in rows if row["open"]]
    return parked, [row["execution_id"] for row in rows if not row["open"]]


async def wakes(db: Runs, execution_ids: Sequence[UUID]) -> dict[UUID, int]:
    return {row["execution_id"]: row["wakes"] for row in await db.fetch(_Q["wakes"], execution_ids=list(execution_ids))}


async def unclaim(db: Runs, worker_id: UUID, claims: dict[UUID, int]) -> None:
    await db.fetch(_Q["unclaim"], worker_id=worker_id, execution_ids=list(claims), claims=list(claims.values()))


async def unclaim_of(db: Runs, worker_ids: Sequence[UUID]) -> list[str]:
    """Frees what these workers had claimed or pinned; returns the pools where something was."""
    return [row["pool"] for row in await db.fetch(_Q["unclaim_of"], worker_ids=list(worker_ids))]


async def still_paused(db: Runs, execution_id: UUID, claim: int) -> None:
    """A claimed run is paused after all: its task goes back to where it was."""
    await db.fetch(_Q["still_paused"], execution_id=execution_id, claim=claim)


async def claims_of(db: Database, worker_id: UUID, pool: str) -> dict[UUID, int]:
    rows = await db.fetch_once(_Q["claims_of"], worker_id=worker_id, pool=pool)
    return {row["execution_id"]: row["claim"] for row in rows}


async def unpin(db: Runs, worker_id: UUID) -> None:
    """Lets go of the pins of a worker that stops (S-5); its claims stay."""
    await db.fetch(_Q["unpin"], worker_id=worker_id)


async def responder(db: Runs, *, pool: str, execution_id: UUID, type: str) -> tuple[str, UUID | None]:
    """The hub's mode, and in sticky mode who should answer a query about a run."""
    row = (await db.fetch(_Q["responder"], pool=pool, execution_id=execution_id, type=type))[0]
    return row["mode"], row["worker_id"] if row["mode"] == "sticky" else None


async def sticky_figures(db: Runs, pool: str | None) -> dict[str, int]:
    """active_sticky_runs, ready_sticky_tasks, leased_sticky_tasks, capacity_pressure_tasks (W-4); of one pool, or of all."""
    return dict((await db.fetch(_Q["sticky_figures"], pool=pool))[0])


# --- failed decisions


async def strike(
    db: Runs,
    execution_id: UUID,
    *,
    worker_id: UUID,
    claim: int | None,
    strikes: int,
    error: str | None,
    delay: float | None,
) -> bool:
    """Records a failed decision; `delay` seconds until the next try, None to park it. `claim` in sticky mode.

    False when the run is not this worker's any more: nothing is written then. Without `error` the last one stays.
    """
    rows = await db.fetch(
        _Q["strike"], execution_id=execution_id, worker_id=worker_id, claim=claim, strikes=strikes, error=error, delay=delay
    )
    return bool(rows)


async def strike_stuck(db: Runs, execution_id: UUID, worker_id: UUID, where: str, seconds: float) -> None:
    """A strike for a run whose code held the loop for `seconds`; the third one parks it."""
    error: dict[str, Any] = {"message": f"the code held the event loop for {seconds:.0f} s, in {where}", "type": "LoopStuck"}
    text = json.dumps(error)
    await db.fetch(_Q["strike_stuck"], execution_id=execution_id, worker_id=worker_id, error=text, most=STRIKES, delay=5.0)


async def bury(db: Runs, execution_id: UUID, *, workflow_id: str, type: str, pool: str, strikes: int, error: str) -> None:
    """Puts a poisoned run into the dead letters; the run stays open."""
    await db.fetch(
        _Q["bury"], execution_id=execution_id, workflow_id=workflow_id, type=type, pool=pool, strikes=strikes, error=error
    )


async def retry_failed(db: Runs, pool: str) -> int:
    """Makes runs parked with an error due again; returns how many."""
    rows = await db.fetch(_Q["retry_failed"], pool=pool)
    count: int = rows[0]["count"]
    return count


async def healed(db: Runs, execution_ids: Sequence[UUID]) -> None:
    """Forgets the strikes of runs that decided again."""
    await db.fetch(_Q["healed"], execution_ids=list(execution_ids))
