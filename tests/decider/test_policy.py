"""Policy without loops: tables of values."""

from __future__ import annotations

import asyncio
import uuid

import msgspec
import pytest

from harvest.activities.sweeper import verdict
from harvest.backoff import Backoff
from harvest.clock import MICRO, at_us, to_us, us_of
from harvest.coalesce import Coalescer
from harvest.core.events import ActivityOptions, RetrySpec
from harvest.decider.inbox import Inbox
from harvest.decider.timers import Timers
from harvest.decisions.residents import Residents
from harvest.decisions.run import Run
from harvest.definitions.retry import next_try
from harvest.failure import Failure
from harvest.wakes.topics import chunks, dump


def run_of(size: int = 0, *, priority: int = 0, decision: int = 1, known: bool = True) -> Run:
    run = Run(uuid.uuid4(), 1)
    run.history_bytes, run.priority, run.decision, run.known = size, priority, decision, known
    return run


@pytest.mark.parametrize(("retry", "expected"), [(1, 0.1), (2, 0.2), (3, 0.4), (7, 6.4), (8, 10.0), (1_000, 10.0)])
def test_backoff_grows_to_its_cap(retry, expected):
    assert Backoff(0.1, 2.0, 10.0, 0.1).delay(retry, roll=0.5) == pytest.approx(expected)
    assert Backoff(0.1, 2.0, 10.0, 0.1).delay(retry, roll=0.0) == pytest.approx(expected * 0.9)
    assert Backoff(0.1, 2.0, 10.0, 0.1).delay(retry, roll=1.0) == pytest.approx(expected * 1.1)


BASE = RetrySpec(initial=1.0, factor=2.0, cap=5.0, jitter=0.0)


@pytest.mark.parametrize(
    ("spec", "attempt", "failure", "left", "expected"),
    [
        (BASE, 1, Failure("x", "OSError"), None, 1.0),
        (BASE, 3, Failure("x", "OSError"), None, 4.0),
        (BASE, 9, Failure("x", "OSError"), None, 5.0),
        (BASE, 1, Failure("x", "OSError", non_retryable=True), None, None),
        (msgspec.structs.replace(BASE, non_retryable=("OSError",)), 1, Failure("x", "OSError"), None, None),
        (msgspec.structs.replace(BASE, max_attempts=3), 2, Failure("x"), None, 2.0),
        (msgspec.structs.replace(BASE, max_attempts=3), 3, Failure("x"), None, None),
        (BASE, 1, Failure("x"), 1.5, 1.0),
        (BASE, 1, Failure("x"), 0.5, None),
        (BASE, 1, Failure("x", "ActivityTimeout.schedule_to_close"), None, None),
        (BASE, 1, Failure("x", "ActivityTimeout.start_to_close"), None, 1.0),
    ],
)
def test_whether_and_when_to_try_again(spec, attempt, failure, left, expected):
    assert next_try(spec, attempt, failure, left=left, roll=0.5) == expected


@pytest.mark.parametrize(
    ("options", "state", "closed", "kind", "again"),
    [
        (ActivityOptions(schedule_to_close=5), "running", True, "schedule_to_close", False),
        (ActivityOptions(schedule_to_start=5), "pending", False, "schedule_to_start", False),
        (ActivityOptions(start_to_close=5), "running", False, "start_to_close", True),
        (ActivityOptions(start_to_close=5, heartbeat=1), "running", False, "heartbeat", True),
        (ActivityOptions(start_to_close=1, retry=RetrySpec(max_attempts=1)), "running", False, "start_to_close", False),
    ],
)
def test_why_a_task_is_overdue(options, state, closed, kind, again):
    row = {"options": msgspec.json.encode(options).decode(), "closed": closed, "state": state, "name": "a", "attempt": 1}
    failure, delay = verdict(row)
    assert failure.type == f"ActivityTimeout.{kind}"
    assert (delay is not None) is again


def test_residents_are_bounded_by_entries_and_bytes():
    residents = Residents(entries=3, max_bytes=100_000)
    runs = [run_of() for _ in range(5)]
    gone = [left for run in runs[:4] for left in residents.put(run)]
    assert gone == [runs[0]], "the least recently used leaves"
    assert residents.take(runs[1]) and not residents.take(runs[1]), "a hit takes the entry out"
    assert residents.put(runs[1]) == []
    assert residents.put(runs[4]) == [runs[2]]
    big = run_of(40_000)
    assert set(residents.put(big)) <= {runs[3], runs[1], runs[4]}
    assert residents.bytes <= 100_000
    huge = run_of(60_000)
    assert huge in residents.put(huge), "what does not fit at all is not kept"
    residents.put(runs[0])
    assert runs[0] in residents.clear() and residents.bytes == len(residents) == 0
    assert Residents(0, 10).put(runs[0]) == [runs[0]]


def test_the_inbox_keeps_claim_order():
    """S-6: priority, then due time; a new start counts as due 30 s later."""
    inbox = Inbox()
    new, old, urgent, late = run_of(decision=0), run_of(), run_of(priority=-5), run_of()
    for run, now in ((new, 0), (old, 5 * MICRO), (urgent, 9 * MICRO), (late, 31 * MICRO)):
        assert inbox.put(run, now)
        assert not inbox.put(run, now), "one entry per run"
    assert [inbox.take() for _ in range(5)] == [urgent, old, new, late, None]
    busy = run_of()
    busy.busy = True
    assert not inbox.put(busy, 0)


class Hand:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.us = 1_000 * MICRO

    def now_us(self) -> int:
        return self.us

    def monotonic(self) -> float:
        return self.us / MICRO


async def test_timers_fire_once_at_their_latest_setting():
    clock, fired = Hand(), []
    timers = Timers(clock, lambda execution_id, partition: fired.append(partition))
    ids = [uuid.uuid4() for _ in range(4)]
    for n, execution_id in enumerate(ids):
        timers.arm(clock.us + (n + 1) * 1_000, execution_id, n)
    timers.arm(clock.us + 500, ids[2], 2)
    timers.forget(ids[1])
    clock.us += 600
    timers.fire_due()
    assert fired == [2]
    clock.us += 10_000
    timers.fire_due()
    assert fired == [2, 0, 3]
    for n in range(10_000):
        timers.arm(clock.us + n, ids[0], 0)
    assert len(timers) < 200, "what was set anew does not pile up"
    timers.clear()


def test_clock_arithmetic():
    assert to_us(1.5) == 1_500_000
    moment = at_us(1_700_000_000_123_456)
    assert us_of(moment) == 1_700_000_000_123_456


def test_wakes_fit_a_notification():
    items = [f"{n:04d}-" + "é" * 30 for n in range(1_000)]
    parts = list(chunks(items, cap=500))
    assert [item for part in parts for item in part] == items
    assert all(len(dump(part).encode()) <= 500 for part in parts)
    assert list(chunks([])) == []


async def test_calls_gather_while_a_batch_is_on_its_way():
    batches: list[list[int]] = []
    gate = asyncio.Event()

    async def work(items):
        batches.append(list(items))
        await gate.wait()
        if len(items) > 1 and 13 in items:
            raise ValueError("bad batch")
        if 13 in items:
            raise ValueError("bad item")
        return [n * 2 for n in items]

    group: Coalescer[int, int] = Coalescer(work)
    calls = [asyncio.create_task(group.submit(n)) for n in (1, 2, 13, 3)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    later = asyncio.create_task(group.submit(4))
    gate.set()
    found = await asyncio.gather(*calls, later, return_exceptions=True)
    assert [f for f in found if isinstance(f, int)] == [2, 4, 6, 8]
    assert isinstance(found[2], ValueError), "bad input harms only its own caller"
    assert batches[0] == [1, 2, 13, 3] and [4] in batches
