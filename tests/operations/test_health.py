"""The last hour as series: tables of rows."""

from __future__ import annotations

import json
from uuid import UUID

from harvest.hub.figures import HUB
from harvest.operations.health import series
from harvest.telemetry.counts import BOUNDS

A, B = UUID(int=1), UUID(int=2)


def row(at: float, worker_id: UUID, seconds: float = 10.0, **figures: object) -> dict[str, object]:
    return {"at": at, "worker_id": worker_id, "seconds": seconds, "figures": json.dumps(figures)}


def spread(bucket: int, count: int) -> list[int]:
    return [count if n == bucket else 0 for n in range(len(BOUNDS) + 1)]


def test_what_workers_counted_adds_up_per_step():
    rows = [
        row(65.0, A, decisions=30, commits=3, modes={"warm": 20, "cold": 10}, closed={"COMPLETED": 6}, commit=spread(2, 3)),
        row(70.0, B, decisions=30, commits=12, modes={"warm": 30}, closed={"FAILED": 3}, commit=spread(2, 5), failovers=1),
        row(89.9, A, decisions=60, commits=15),
        row(95.0, A, decisions=600, commits=600),  # of the step that is not over
    ]
    before, point = series(rows, now=100.0, seconds=60.0, step=30.0)
    assert (before.at, before.workers, before.decisions, before.batch) == (60.0, 0, 0.0, None)
    assert (point.at, point.workers, point.decisions, point.commits, point.batch) == (90.0, 2, 4.0, 1.0, 4.0)
    assert point.modes == {"cold": 10 / 30, "warm": 50 / 30}
    assert point.closed == {"COMPLETED": 0.2, "FAILED": 0.1}
    assert point.failovers == 1
    assert point.commit[0] is not None and point.commit[0] <= BOUNDS[2]
    assert point.wait == (None, None)


def test_what_the_hub_holds_is_the_newest_look():
    looks = [row(40.0, HUB, open_runs=1), row(55.0, HUB, open_runs=2), row(65.0, HUB, open_runs=3)]
    assert [p.hub for p in series(looks, now=89.0, seconds=60.0, step=30.0)] == [None, {"open_runs": 3}]
    assert [p.hub for p in series(looks[:2], now=95.0, seconds=60.0, step=30.0)] == [{"open_runs": 2}, None]


def test_buckets_of_another_version_are_left_out():
    (point,) = series([row(10.0, A, decisions=1, commits=1, commit=[1, 2, 3])], now=30.0, seconds=30.0, step=30.0)
    assert (point.decisions, point.commit) == (1 / 30, (None, None))


def test_what_was_counted_while_the_hub_was_away_is_spread_over_that_time():
    late = row(118.0, A, 90.0, decisions=900, commits=90, modes={"warm": 900}, commit=spread(1, 90))
    points = series([late], now=125.0, seconds=120.0, step=30.0)
    assert [p.decisions for p in points] == [0.0, 10.0, 10.0, 10.0]
    assert [p.modes for p in points] == [{}, {"warm": 10.0}, {"warm": 10.0}, {"warm": 10.0}]
    assert len({p.commit for p in points[1:]}) == 1 and points[1].commit[0] is not None
