"""Who owns what, who is alive, and where the decisions of a run were taken: reads for people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from harvest.hub import diagnosis, partitions, settings, workers, workflow_tasks
from harvest.ids import queue_of
from harvest.operations.live import exactly
from harvest.operations.site import Site
from harvest.telemetry.counts import rate


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One living worker. `partitions` is by pool; `config` are its settings, `figures` those of its cache, as its
    heartbeat told them."""

    worker_id: UUID
    host: str
    pid: int
    queue: str
    build_id: str
    state: str
    started_at: datetime
    heartbeat_at: datetime
    scanned_at: datetime | None
    workflows: list[str]
    activities: list[str]
    pools: list[str]
    can_own: bool
    grants: list[str]
    refusals: dict[str, str]
    partitions: dict[str, int]
    cache_capacity: int
    config: dict[str, Any]
    figures: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """`owners` and `epochs` have one entry per partition, in order; None where nobody owns it."""

    pool: str
    owners: list[UUID | None]
    epochs: list[int]

    @property
    def free(self) -> int:
        return sum(1 for owner in self.owners if owner is None)


@dataclass(frozen=True, slots=True)
class OwnerStatus:
    """`mode` is owner or sticky, in force since `since`."""

    mode: str
    since: datetime
    pools: list[PoolStatus]
    workers: list[WorkerStatus]


async def living_workers(site: Site) -> list[WorkerStatus]:
    """Workers whose lease holds, oldest first."""
    shares: dict[UUID, dict[str, int]] = {}
    for row in await partitions.shares(site.db):
        if row["worker_id"] is not None:
            shares.setdefault(row["worker_id"], {})[row["pool"]] = row["partitions"]
    return [_status(row, shares.get(row["worker_id"], {})) for row in await workers.live(site.db)]


def _status(row: Any, shares: dict[str, int]) -> WorkerStatus:
    names = json.loads(row["definitions"])
    return WorkerStatus(
        worker_id=row["worker_id"],
        host=row["host"],
        pid=row["pid"],
        queue=row["pool"],
        build_id=row["build_id"],
        state=row["state"],
        started_at=row["started_at"],
        heartbeat_at=row["heartbeat_at"],
        scanned_at=row["scanned_at"],
        workflows=names.get("workflows", []),
        activities=names.get("activities", []),
        pools=row["pools"],
        can_own=row["can_own"],
        grants=row["grants"],
        refusals=json.loads(row["refusals"] or "{}"),
        partitions=shares,
        cache_capacity=row["sticky_cache_capacity"],
        config=json.loads(row["config"] or "{}"),
        figures=json.loads(row["figures"] or "{}"),
    )


async def owner_status(site: Site, queue: str | None = None) -> OwnerStatus:
    """The whole picture; with `queue` only the pools and workers of that queue."""
    names = sorted({row["pool"] for row in await partitions.shares(site.db)})
    pools = []
    for name in names:
        if queue is None or queue_of(name) == queue:
            rows = await partitions.owned(site.db, name)
            pools.append(PoolStatus(name, [row["worker_id"] for row in rows], [row["epoch"] for row in rows]))
    mode, since = await settings.mode(site.db), await settings.since(site.db)
    return OwnerStatus(mode, since, pools, [w for w in await living_workers(site) if queue is None or w.queue == queue])


@dataclass(frozen=True, slots=True)
class Failover:
    """A dead worker. `noticed_after` is from its last heartbeat to the fence, `recovered_after` from there until the last of
    its partitions had an owner again, both in seconds; None where that has not come to pass (or in sticky mode)."""

    worker_id: UUID
    host: str
    pid: int
    queue: str
    build_id: str
    at: datetime
    noticed_after: float
    recovered_after: float | None


async def failover_count(site: Site) -> int:
    """Of all time."""
    return await workers.failover_count(site.db)


async def failovers(site: Site, size: int = 20) -> list[Failover]:
    """The last ones, newest first."""
    return [
        Failover(
            row["worker_id"],
            row["host"],
            row["pid"],
            row["pool"],
            row["build_id"],
            row["fenced_at"],
            (row["fenced_at"] - row["heartbeat_at"]).total_seconds(),
            None if row["recovered_at"] is None else (row["recovered_at"] - row["fenced_at"]).total_seconds(),
        )
        for row in await workers.failovers(site.db, size)
    ]


@dataclass(frozen=True, slots=True)
class DecisionReport:
    """Where one decision was taken (W-5). `scheduled`: owner, sticky (its pin held), normal, or expired (a window ran out)."""

    decision: int
    at: datetime
    scheduled: str
    replay_mode: str
    events: int
    worker_id: UUID
    host: str | None
    pid: int | None
    build_id: str | None


@dataclass(frozen=True, slots=True)
class StickyReport:
    """`windows_timed_out` are the decisions whose pin ran out before its holder came; `task` is what is next."""

    workflow_id: str
    execution_id: UUID
    state: str
    workers: int
    windows_timed_out: list[int]
    decisions: list[DecisionReport]
    task: dict[str, Any] | None


async def sticky_report(site: Site, workflow_id: str, execution_id: UUID | None = None) -> StickyReport:
    """Raises `WorkflowNotFound`."""
    row = await exactly(site, workflow_id, execution_id)
    taken = [
        DecisionReport(**{**dict(d), "scheduled": d["scheduled"] or "owner"})
        for d in await diagnosis.decisions(site.db, row["execution_id"])
    ]
    task = await diagnosis.task(site.db, row["execution_id"])
    return StickyReport(
        row["workflow_id"],
        row["execution_id"],
        row["state"],
        len({d.worker_id for d in taken}),
        [d.decision for d in taken if d.scheduled == "expired"],
        taken,
        None if task is None else dict(task),
    )


async def sticky_figures(site: Site) -> dict[str, float]:
    """The figures of W-4, over all living workers."""
    figures: dict[str, float] = dict(await workflow_tasks.sticky_figures(site.db, None))
    return figures | last_minute([w.figures.get("last_minute", {}) for w in await living_workers(site)])


def last_minute(of_workers: Sequence[dict[str, int]]) -> dict[str, float]:
    """Sums over workers, and the rates. Pure."""
    total = {name: sum(counts.get(name, 0) for counts in of_workers) for name in _COUNTED}
    found: dict[str, float] = {f"{name}_last_minute": total[name] for name in _COUNTED}
    return found | {f"{what}_rate_last_minute": rate(total, what) for what in ("hit", "miss")}


_COUNTED = ("hit", "hit_expected", "miss", "forced_cold_replay", "cold_replay")
