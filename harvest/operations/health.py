"""How the hub did over the last hour: the figures of all workers as series. Reading is one statement, merging is pure."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from harvest.hub import figures
from harvest.operations.site import Site
from harvest.telemetry.counts import BOUNDS, quantile

HOUR = 3600.0
STEP = 30.0
"""Seconds of one point."""
SPREADS = ("commit", "wait", "schedule_to_start")


@dataclass(frozen=True, slots=True)
class Point:
    """One interval that ends at `at` (seconds since 1970), as `workers` counted it.

    Rates are per second. `commit`, `wait` (of decisions, from ready to driven) and `schedule_to_start` (of activities, from
    due to claimed) are (p50, p95) in seconds, None where nothing was counted. `hub` is what it held: workflow_backlog,
    activity_backlog, dead_letters, open_runs, unowned_partitions; None where nobody looked. The last point has the newest
    look that there was.
    """

    at: float
    workers: int
    decisions: float
    commits: float
    batch: float | None
    modes: dict[str, float]
    closed: dict[str, float]
    commit: tuple[float | None, float | None]
    wait: tuple[float | None, float | None]
    schedule_to_start: tuple[float | None, float | None]
    failovers: float
    hub: dict[str, float] | None


@dataclass(slots=True)
class _Sum:
    counts: Counter[str] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)
    closed: Counter[str] = field(default_factory=Counter)
    spreads: dict[str, list[int]] = field(default_factory=lambda: {name: [0] * (len(BOUNDS) + 1) for name in SPREADS})
    hub: dict[str, float] | None = None
    workers: set[UUID] = field(default_factory=set)

    def add(self, worker_id: UUID, found: dict[str, Any]) -> None:
        self.workers.add(worker_id)
        for name in ("commits", "decisions", "failovers"):
            self.counts[name] += found.get(name, 0)
        self.modes.update(found.get("modes", {}))
        self.closed.update(found.get("closed", {}))
        for name in SPREADS:
            theirs: Sequence[int] = found.get(name, ())
            if len(theirs) == len(self.spreads[name]):
                self.spreads[name] = [a + b for a, b in zip(self.spreads[name], theirs, strict=True)]

    def point(self, at: float, step: float) -> Point:
        both = {name: (quantile(counts, 0.5), quantile(counts, 0.95)) for name, counts in self.spreads.items()}
        commits, decisions = self.counts["commits"], self.counts["decisions"]
        return Point(
            at=at,
            workers=len(self.workers),
            decisions=decisions / step,
            commits=commits / step,
            batch=decisions / commits if commits else None,
            modes={name: n / step for name, n in sorted(self.modes.items())},
            closed={name: n / step for name, n in sorted(self.closed.items())},
            commit=both["commit"],
            wait=both["wait"],
            schedule_to_start=both["schedule_to_start"],
            failovers=self.counts["failovers"],
            hub=self.hub,
        )


def _part(found: dict[str, Any], parts: int) -> dict[str, Any]:
    """One of so many equal parts of what was counted."""

    def part(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: part(each) for name, each in value.items()}
        return [part(each) for each in value] if isinstance(value, list) else value / parts

    return {name: part(value) for name, value in found.items()}


def series(rows: Iterable[Any], *, now: float, seconds: float = HOUR, step: float = STEP) -> list[Point]:
    """Points from the oldest to now, one per `step`, also where nobody counted. Pure."""
    sums: defaultdict[int, _Sum] = defaultdict(_Sum)
    for row in rows:
        slot = int(row["at"] // step)
        found = json.loads(row["figures"])
        if row["worker_id"] == figures.HUB:
            sums[slot].hub = found
        else:
            covered = max(1, round(row["seconds"] / step))  # more than one where the hub was away for a while
            share = found if covered == 1 else _part(found, covered)
            for earlier in range(covered):
                sums[slot - earlier].add(row["worker_id"], share)
    last = int(now // step) - 1  # the slot that is not over would look like a fall
    if last + 1 in sums and sums[last + 1].hub is not None:  # but what the hub holds now is no rate
        sums[last].hub = sums[last + 1].hub
    return [sums[slot].point((slot + 1) * step, step) for slot in range(last - int(seconds // step) + 1, last + 1)]


async def health(site: Site, seconds: float = HOUR, step: float = STEP) -> list[Point]:
    """The last hour, over all workers that there were in it."""
    now, rows = await figures.since(site.db, seconds + 2 * step)
    return series(rows, now=now, seconds=seconds, step=step)
