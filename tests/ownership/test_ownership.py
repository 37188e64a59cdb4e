"""One owner per queue, others beside it (O-1, O-5, O-6)."""

from __future__ import annotations

import asyncio

import pytest

from harvest import Worker, WorkerConfig, activity, errors, workflow
from harvest.hub import partitions
from harvest.ownership.term import MARGIN, TTL, Term, is_dead


@workflow.defn
async def wait_for(name: str) -> str:
    return await workflow.receive(name, str)


@activity.defn(mode="queue")
async def echo(word: str) -> str:
    return word


@workflow.defn
async def ask(word: str) -> str:
    return await workflow.start_activity(echo, word, mode="queue")


@pytest.mark.parametrize(
    ("state", "lapsed", "lock_free", "dead"),
    [
        ("active", False, False, False),
        ("draining", False, False, False),
        ("active", True, False, True),
        ("active", False, True, True),
        ("fenced", False, False, True),
    ],
)
def test_who_is_dead(state, lapsed, lock_free, dead):
    assert is_dead(state, lapsed, lock_free) is dead


def test_a_term_is_counted_from_before_the_renewal_was_sent():
    term = Term(TTL)
    term.renewed(sent_at=100.0)
    assert term.trusts(100.0 + TTL - MARGIN - 0.01)
    assert not term.trusts(100.0 + TTL - MARGIN)


async def test_two_workers_of_one_queue_on_one_client(client, worker):
    async with worker(wait_for) as first, worker(wait_for) as second:
        owner, standby = (first, second) if first.keeper.epochs else (second, first)
        assert len(owner.keeper.epochs) == 512 and not standby.keeper.epochs
        ids = {owner.keeper.worker_id, standby.keeper.worker_id}
        for _ in range(3):
            await owner.keeper.run_once()
            await standby.keeper.run_once()
        assert {owner.keeper.worker_id, standby.keeper.worker_id} == ids, "they fenced each other"
        handle = await client.start(wait_for, "go", id="w")
        await owner.stop()
        await standby.keeper.run_once()
        assert len(standby.keeper.epochs) == 512
        await handle.signal("go", "on")
        assert await handle.result(timeout=20) == "on"


async def test_queues_started_together_own_their_own(client):
    workers = [Worker(client, definitions=[wait_for], queue=f"q{n}") for n in range(3)]
    await asyncio.gather(*(w.__aenter__() for w in workers))
    try:
        handles = [await client.start(wait_for, "go", id=f"w{n}", queue=f"q{n}") for n in range(3)]
        for handle in handles:
            await handle.signal("go", handle.id)
        assert [await h.result(timeout=20) for h in handles] == ["w0", "w1", "w2"]
    finally:
        await asyncio.gather(*(w.stop() for w in workers))
    owned = await partitions.owned(client.db, "q1")
    assert len(owned) == 512 and all(row["worker_id"] is None for row in owned)


async def test_a_worker_without_workflows_owns_nothing(client, remote):
    """O-4."""
    async with (
        Worker(client, definitions=[ask], queue="default"),
        Worker(remote, definitions=[echo], queue="default") as helper,
    ):
        assert not helper.keeper.epochs
    busy = Worker(client, definitions=[ask, echo], config=WorkerConfig(max_activity_slots=0))
    async with busy, Worker(remote, definitions=[echo]):
        assert await client.execute(ask, "hello", id="b") == "hello"


async def test_a_worker_that_distrusts_its_lease_decides_nothing(client, worker):
    async with worker(wait_for) as running:
        running.keeper.term.trusted_until = 0.0
        assert running.keeper.distrusted()
        start = asyncio.create_task(client.start(wait_for, "go", id="w"))
        await asyncio.sleep(0.05)
        assert not start.done()
        await running.keeper.run_once()
        assert not running.keeper.distrusted()
        handle = await start
        await handle.signal("go", "on")
        assert await handle.result(timeout=20) == "on"


def test_worker_settings_are_checked():
    for field, value in [("max_activity_slots", -1), ("scan_interval", "soon"), ("build_id", ""), ("slots", 3)]:
        with pytest.raises(errors.ConfigError, match=field):
            WorkerConfig(**{field: value})


async def test_definitions_are_checked(client):
    with pytest.raises(errors.ConfigError, match="at least one"):
        Worker(client, definitions=[])
    with pytest.raises(errors.DefinitionError, match="neither a workflow nor an activity"):
        Worker(client, definitions=[print])

    @activity.defn(name="echo")
    async def other() -> None: ...

    with pytest.raises(errors.DefinitionError, match="two different definitions"):
        Worker(client, definitions=[echo, other])
