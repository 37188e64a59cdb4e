"""What a worker measures: its plain numbers as OpenTelemetry instruments (O-10, W-4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from harvest.ids import queue_of
from harvest.telemetry.counts import rate
from harvest.telemetry.export import Instruments, Sample
from harvest.telemetry.names import PRESSURE

if TYPE_CHECKING:
    from harvest.node.unit import Unit
    from harvest.node.worker import Worker

OUTCOMES = {
    "warm": "hit",
    "first": "first",
    "cold": "cold",
    "disk": "cold",
    "forced": "cold",
    "engine": "engine",
    "blocked": "blocked",
}
COLD = ("cold", "disk", "forced")
STICKY = ("active_sticky_runs", "ready_sticky_tasks", "leased_sticky_tasks", "capacity_pressure_tasks")
LAST_MINUTE = ("hit_expected", "miss", "forced_cold_replay", "cold_replay")


class Instrumented:
    """Registers a worker's metrics; `close` takes them away again."""

    def __init__(self, worker: Worker, instruments: Instruments, *, timed: bool) -> None:
        self.worker, self.instruments = worker, instruments
        self._reads: list[Callable[[], Iterable[Sample]]] = []
        self._sticky: dict[str, dict[str, int]] = {}
        for unit in worker.units.values():
            self._unit(unit, timed)
        self._worker()

    def _observe(self, name: str, read: Callable[[], Iterable[Sample]]) -> None:
        self._reads.append(read)
        self.instruments.observe(name, read)

    def _number(self, name: str, labels: dict[str, str], read: Callable[[], float]) -> None:
        self._observe(name, lambda: [(labels, read())])

    def close(self) -> None:
        for read in self._reads:
            self.instruments.forget(read)
        for unit in self.worker.units.values():
            unit.decider.timed = unit.claimer.on_figures = None

    # --- of one pool

    def _unit(self, unit: Unit, timed: bool) -> None:
        decider, queue, pool = unit.decider, {"queue": queue_of(unit.pool)}, {"pool": unit.pool}
        self._observe("harvest.workflow.resident", lambda: self._outcomes(unit))
        self._observe("harvest.workflow.disk_cache", lambda: self._disk(unit))
        self._observe("harvest.workflow.cache_hit", lambda: self._began(unit, "warm"))
        self._observe("harvest.workflow.cache_miss", lambda: self._began(unit, *COLD))
        self._number("harvest.workflow.commits", queue, lambda: sum(lane.commits for lane in decider.lanes))
        self._number("harvest.workflow.committed", queue, lambda: sum(lane.drafts for lane in decider.lanes))
        self._number("harvest.workflow.in_memory", queue, lambda: len(decider.residents))
        self._number("harvest.workflow.in_memory.bytes", queue, lambda: decider.residents.bytes)
        self._number("harvest.workflow.waiting", queue, lambda: len(decider.inbox))
        self._number("harvest.owner.partitions", pool, lambda: len(unit.share.epochs))
        for name in STICKY:
            self._number(f"sticky_execution.{name}", pool, partial(self._of_hub, unit, name))
        for name in LAST_MINUTE:
            self._number(f"sticky_execution.{name}_last_minute", pool, partial(self._last_minute, unit, name))
        self._number("sticky_execution.hit_rate_last_minute", pool, lambda: self._rate(unit, "hit"))
        self._number("sticky_execution.miss_rate_last_minute", pool, lambda: self._rate(unit, "miss"))
        if timed:
            record = self.instruments.histogram("harvest.workflow.resident.duration").record
            decider.timed = lambda seconds, workflow, mode: record(
                seconds, {"workflow": workflow, "outcome": OUTCOMES[mode], **queue}
            )
            unit.claimer.on_figures = lambda found: self._sticky.__setitem__(unit.pool, found)

    def _outcomes(self, unit: Unit) -> list[Sample]:
        queue, known = queue_of(unit.pool), {*self.worker.registry.workflows, *self.worker.registry.entities}
        found: Counter[tuple[str, str]] = Counter()
        for (workflow, mode), count in list(unit.decider.outcomes.items()):
            found[workflow if workflow in known else "?", OUTCOMES[mode]] += count  # others come from outside, without end
        return [({"workflow": name, "queue": queue, "outcome": outcome}, count) for (name, outcome), count in found.items()]

    def _disk(self, unit: Unit) -> list[Sample]:
        queue, shelf = queue_of(unit.pool), unit.shelf
        if shelf is None:
            return []
        counted = {**{(workflow, "miss"): 0 for workflow in self.worker.registry.workflows}, **shelf.outcomes}
        return [({"workflow": workflow, "queue": queue, "outcome": outcome}, n) for (workflow, outcome), n in counted.items()]

    def _began(self, unit: Unit, *modes: str) -> list[Sample]:
        outcomes = unit.decider.outcomes
        known = self.worker.registry.workflows
        return [({"workflow": workflow}, sum(outcomes[workflow, mode] for mode in modes)) for workflow in known]

    def _of_hub(self, unit: Unit, name: str) -> float:
        return self._sticky.get(unit.pool, {}).get(name, 0)

    def _last_minute(self, unit: Unit, name: str) -> float:
        return unit.decider.minute.totals()[name]

    def _of_caches(self, field: str) -> float:
        return float(sum(getattr(unit.decider.residents, field) for unit in self.worker.units.values()))

    def _rate(self, unit: Unit, what: str) -> float:
        return rate(unit.decider.minute.totals(), what)

    # --- of the worker

    def _worker(self) -> None:
        worker, keeper, queue = self.worker, self.worker.keeper, {"queue": self.worker.queue}
        units = list(worker.units.values())
        capacity = keeper.me.cache_capacity

        def size() -> int:
            return sum(len(unit.decider.residents) for unit in units)

        self._number("harvest.activity.running", queue, lambda: len(worker.activities.running))
        self._number("harvest.activity.free_slots", queue, lambda: worker.activities.free)
        self._number("harvest.owner.refused", {}, lambda: len(keeper.refusals))
        self._number("harvest.owner.failovers", {}, lambda: keeper.failovers)
        self._number("harvest.owner.tenures", {}, lambda: keeper.tenures)
        self._number("harvest.worker.loop_blocked", {}, lambda: int(bool(keeper.lease and keeper.lease.blocked_by)))
        self._number("sticky_execution_workers.capacity", {}, lambda: capacity)
        self._number("sticky_execution_workers.size", {}, size)
        for name, field in (
            ("hits", "hits"),
            ("misses", "misses"),
            ("forced_cold_replays", "forced"),
            ("evictions", "evictions"),
        ):
            self._number(f"sticky_execution_workers.{name}", {}, partial(self._of_caches, field))
        self._number("sticky_execution_workers.pressure", {}, lambda: int(capacity > 0 and size() >= PRESSURE * capacity))
