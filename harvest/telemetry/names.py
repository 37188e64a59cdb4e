"""The closed list of metrics. A test holds what a worker exports against it, and `docs/reference/metrics.md`."""

from __future__ import annotations

from typing import NamedTuple


class Metric(NamedTuple):
    """`kind` is counter, gauge or histogram."""

    kind: str
    unit: str
    labels: tuple[str, ...]
    meaning: str


WORKER: dict[str, Metric] = {
    "harvest.workflow.resident": Metric(
        "counter",
        "{decision}",
        ("workflow", "queue", "outcome"),
        "decisions by how they began: hit (the run was in memory), first, cold (replayed), engine (ended without its code), "
        "blocked (failed)",
    ),
    "harvest.workflow.resident.duration": Metric(
        "histogram", "s", ("workflow", "queue", "outcome"), "from before the load to the end of the first drive"
    ),
    "harvest.workflow.disk_cache": Metric(
        "counter",
        "{read}",
        ("workflow", "queue", "outcome"),
        "reads of the owner's disk cache: hit, miss, stale (of another epoch, or behind the hub), corrupt",
    ),
    "harvest.workflow.cache_hit": Metric(
        "counter", "{decision}", ("workflow",), "decisions and queries that found their run in memory"
    ),
    "harvest.workflow.cache_miss": Metric("counter", "{decision}", ("workflow",), "decisions that had to replay their run"),
    "harvest.workflow.commits": Metric("counter", "{commit}", ("queue",), "commit statements that landed"),
    "harvest.workflow.committed": Metric("counter", "{decision}", ("queue",), "decisions in these commits"),
    "harvest.workflow.in_memory": Metric("gauge", "{run}", ("queue",), "suspended runs kept in memory"),
    "harvest.workflow.in_memory.bytes": Metric("gauge", "By", ("queue",), "their estimated size"),
    "harvest.workflow.waiting": Metric("gauge", "{run}", ("queue",), "runs that are ready and not yet driven"),
    "harvest.activity.running": Metric("gauge", "{activity}", ("queue",), "activity attempts under way, local steps left out"),
    "harvest.activity.free_slots": Metric("gauge", "{slot}", ("queue",), "activity slots that are free"),
    "harvest.owner.partitions": Metric("gauge", "{partition}", ("pool",), "partitions that this worker owns"),
    "harvest.owner.refused": Metric("gauge", "{pool}", (), "pools in which this worker is refused ownership"),
    "harvest.owner.failovers": Metric("counter", "{worker}", (), "dead workers that this one fenced"),
    "harvest.owner.tenures": Metric(
        "counter", "{tenure}", (), "identities this process has had: a second one means it was fenced"
    ),
    "harvest.worker.loop_blocked": Metric("gauge", "1", (), "1 while code holds the event loop for longer than 2 s"),
    "sticky_execution.active_sticky_runs": Metric("gauge", "{run}", ("pool",), "open runs with a pin that holds"),
    "sticky_execution.ready_sticky_tasks": Metric("gauge", "{task}", ("pool",), "pinned tasks that are due"),
    "sticky_execution.leased_sticky_tasks": Metric(
        "gauge", "{task}", ("pool",), "claimed tasks that were pinned to the claimer"
    ),
    "sticky_execution.hit_expected_last_minute": Metric("gauge", "{claim}", ("pool",), "claims by the pin's holder"),
    "sticky_execution.miss_last_minute": Metric("gauge", "{decision}", ("pool",), "decisions and queries that had to replay"),
    "sticky_execution.forced_cold_replay_last_minute": Metric(
        "gauge", "{decision}", ("pool",), "decisions that had to replay although a pin existed"
    ),
    "sticky_execution.cold_replay_last_minute": Metric("gauge", "{claim}", ("pool",), "claims of runs without a pin"),
    "sticky_execution.hit_rate_last_minute": Metric("gauge", "1", ("pool",), "share of decisions whose run was in memory"),
    "sticky_execution.miss_rate_last_minute": Metric("gauge", "1", ("pool",), "share of decisions that had to replay"),
    "sticky_execution.capacity_pressure_tasks": Metric(
        "gauge", "{task}", ("pool",), "pinned runs of workers whose cache is nine tenths full"
    ),
    "sticky_execution_workers.capacity": Metric("gauge", "{run}", (), "runs that the cache may hold"),
    "sticky_execution_workers.size": Metric("gauge", "{run}", (), "runs in the cache"),
    "sticky_execution_workers.hits": Metric(
        "counter", "{decision}", (), "decisions and queries that found their run in memory"
    ),
    "sticky_execution_workers.misses": Metric("counter", "{decision}", (), "decisions and queries that had to replay"),
    "sticky_execution_workers.forced_cold_replays": Metric("counter", "{decision}", (), "misses of pinned runs"),
    "sticky_execution_workers.evictions": Metric("counter", "{run}", (), "runs that left the cache for others"),
    "sticky_execution_workers.pressure": Metric("gauge", "1", (), "1 while the cache is nine tenths full"),
}
SERVER: dict[str, Metric] = {
    "harvest.server.requests": Metric("counter", "{request}", ("route", "method", "status"), "requests of the HTTP API"),
    "harvest.server.request.duration": Metric("histogram", "s", ("route", "method"), "how long they took, streams left out"),
    "harvest.server.streams": Metric("gauge", "{stream}", (), "streams of events that are open"),
    "harvest.hub.workers": Metric("gauge", "{worker}", ("queue",), "workers whose lease holds"),
    "harvest.hub.partitions.unowned": Metric("gauge", "{partition}", ("pool",), "partitions of served pools without an owner"),
    "harvest.hub.open_runs": Metric("gauge", "{run}", (), "open runs"),
    "harvest.hub.workflow_backlog": Metric("gauge", "{task}", (), "runs that are due, and wait for a decision"),
    "harvest.hub.activity_backlog": Metric("gauge", "{task}", (), "activities that are due, and wait for a worker"),
    "harvest.hub.dead_letters": Metric("gauge", "{run}", (), "runs that nobody can decide, and those that ended at the cap"),
    "harvest.hub.decisions.rate": Metric("gauge", "{decision}/s", (), "decisions of all workers, in the last half minute"),
    "harvest.hub.replays.rate": Metric("gauge", "{decision}/s", ("mode",), "the same by how they began: warm, first, disk, …"),
    "harvest.hub.closed.rate": Metric("gauge", "{run}/s", ("state",), "runs that ended, by state, in the last half minute"),
    "harvest.hub.commit.latency": Metric("gauge", "s", ("quantile",), "how long commits took (0.5 and 0.95)"),
    "harvest.hub.schedule_to_start": Metric("gauge", "s", ("quantile",), "activities from due to claimed (0.5 and 0.95)"),
    "harvest.hub.failovers": Metric("counter", "{worker}", (), "workers that were fenced, as far as the hub remembers"),
}
METRICS: dict[str, Metric] = {**WORKER, **SERVER}
"""All of them: what a worker exports, and what the server does."""
PRESSURE = 0.9
"""The part of the cache from which on its worker counts as under pressure."""
