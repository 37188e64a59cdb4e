"""One owner per queue, others beside it (O-1, O-5, O-6)."""

from __future__ import annotations

import asyncio

import pytest

from harvest import Worker, WorkerConfig, activity, errors, workflow
from harvest.hub import partitions
from harvest.ids import PARTITIONS
from harvest.ownership.assignment import plan, target
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
    ("state", "lapsed", "locked", "dead"),
    [
        ("active", False, True, False),
        ("draining", False, True, False),
        ("active", True, True, True),
        ("active", False, False, True),
        ("fenced", False, True, True),
    ],
)
def test_who_is_dead(state, lapsed, locked, dead):
    assert is_dead(state, lapsed, locked) is dead


def test_a_term_is_counted_from_before_the_renewal_was_sent():
    term = Term(TTL)
    term.renewed(sent_at=100.0)
    assert term.trusts(100.0 + TTL * (1 - MARGIN) - 0.01)
    assert not term.trusts(100.0 + TTL * (1 - MARGIN))


async def settled(*workers: Worker, pool: str = "default") -> list[int]:
    """Scans until the shares of these workers cover the pool and none is leaving; their sizes."""
    for _ in range(40):
        for each in workers:
            await each.keeper.run_once()
        shares = [each.keeper.shares[pool] for each in workers]
        sizes = [len(s.epochs) for s in shares]
        if sum(sizes) == PARTITIONS and max(sizes) <= target(len(sizes)) + 1:
            return sizes
    raise AssertionError([len(each.keeper.shares[pool].epochs) for each in workers])


@pytest.mark.parametrize(
    ("held", "live", "free", "acquire", "surplus"),
    [
        (0, 1, 512, 512, 0),
        (0, 2, 512, 256, 0),
        (0, 3, 100, 100, 0),
        (256, 2, 0, 0, 0),
        (257, 2, 10, 0, 0),  # one above its share is tolerated
        (258, 2, 10, 0, 2),
        (512, 3, 0, 0, 341),
        (170, 3, 2, 1, 0),
        (512, 0, 0, 0, 0),
        (3, 600, 0, 0, 2),
    ],
)
def test_what_an_owner_plans(held, live, free, acquire, surplus):
    """O-3."""
    made = plan(range(held), live, free)
    assert (made.acquire, len(made.surplus)) == (acquire, surplus)


def test_the_shares_cover_all_partitions():
    assert all(target(n) * n >= PARTITIONS for n in range(1, 600))


async def test_shares_follow_the_size_of_the_fleet(client, remote, worker):
    """O-3: joiners get their share in two phases, leavers hand theirs over at once."""
    async with worker(wait_for) as first:
        assert await settled(first) == [512]
        handles = [await client.start(wait_for, "go", id=f"w{n}") for n in range(30)]
        async with worker(wait_for) as second, worker(wait_for) as third:
            ids = {w.keeper.worker_id for w in (first, second, third)}
            assert sorted(await settled(first, second, third)) == [170, 171, 171]
            assert {w.keeper.worker_id for w in (first, second, third)} == ids, "they fenced each other"
            for handle in handles[:15]:
                await remote.handle(handle.id).signal("go", handle.id)
            assert [await h.result(timeout=20) for h in handles[:15]] == [h.id for h in handles[:15]]
            await first.stop()
            assert sorted(await settled(second, third)) == [256, 256]
            for handle in handles[15:]:
                await remote.handle(handle.id).signal("go", handle.id)
            assert [await h.result(timeout=20) for h in handles[15:]] == [h.id for h in handles[15:]]


async def test_no_partition_moves_in_a_fleet_at_rest(worker, client):
    async with worker(wait_for) as first, worker(wait_for) as second:
        await settled(first, second)
        before = [dict(row) for row in await partitions.owned(client.db, "default")]
        for _ in range(5):
            await first.keeper.run_once()
            await second.keeper.run_once()
        assert [dict(row) for row in await partitions.owned(client.db, "default")] == before


async def test_a_decision_in_flight_keeps_its_partition(worker):
    async with worker(wait_for) as first:
        share = first.keeper.shares["default"]
        share.busy = lambda: {5}
        share.leave(range(10))
        assert 5 not in share.epochs and share.idle() == [0, 1, 2, 3, 4, 6, 7, 8, 9]


async def test_other_types_are_refused_with_the_difference(client, remote, worker, caplog):
    """Owners of a pool run the same types. Who differs stands by, says why, and takes over when the others are gone."""
    async with worker(wait_for) as first:
        await settled(first)
        newer = Worker(remote, definitions=[wait_for, ask, echo])
        async with newer:
            await newer.keeper.run_once()
            assert newer.keeper.partitions == 0 and newer.keeper.grants == []
            assert await settled(first) == [512]
            why = newer.keeper.refusals["default"]
            assert "workflows ask" in why and "activities echo" in why and str(first.keeper.worker_id) in why
            assert why in caplog.text
            assert newer.effective_config()["refusals"] == {"default": why}
            await first.stop()
            assert await settled(newer) == [512]
            assert newer.keeper.refusals == {}
            assert await client.execute(ask, "hello", id="a") == "hello"


async def test_a_pinned_run_stays_with_its_build(client, remote):
    """O-9: pinned builds own partitions of their own."""

    def of_build(build: str, on: object) -> Worker:
        return Worker(on, definitions=[wait_for], config=WorkerConfig(build_id=build))

    async with of_build("v1", client) as old:
        pinned = await client.start(wait_for, "go", id="pinned", build_id="v1")
        free = await client.start(wait_for, "go", id="free")
        async with of_build("v2", remote) as new:
            await settled(old, new)
            assert old.keeper.shares["default@v1"].epochs and "default@v1" not in new.keeper.shares
            assert (await pinned.describe()).build_id == "v1" and (await free.describe()).build_id is None
            for handle in (pinned, free):
                await handle.signal("go", handle.id)
                assert await handle.result(timeout=20) == handle.id
            again = await client.start(wait_for, "go", id="pinned again", build_id="v1")
            await old.stop()
            await again.signal("go", "x")
            with pytest.raises(TimeoutError):
                await again.result(timeout=0.3)
            async with of_build("v1", client):
                assert await again.result(timeout=20) == "x"


async def test_unstamped_rows_find_their_owner(client, remote, worker):
    """O-2."""
    async with worker(wait_for) as first, worker(wait_for) as second:
        await settled(first, second)
        handles = [await client.start(wait_for, "go", id=f"w{n}", delay=0.4) for n in range(20)]
        async with client.db.transaction() as session:
            await session.connection.execute("update workflow_tasks set partition = null")
        for handle in handles:
            await remote.handle(handle.id).signal("go", handle.id)
        assert [await h.result(timeout=20) for h in handles] == [h.id for h in handles]


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
        assert helper.keeper.partitions == 0
    busy = Worker(client, definitions=[ask, echo], config=WorkerConfig(max_activity_slots=0))
    async with busy, Worker(remote, definitions=[echo]):
        assert await client.execute(ask, "hello", id="b") == "hello"


async def test_a_worker_that_distrusts_its_lease_decides_nothing(client, worker):
    async with worker(wait_for) as running:
        keeper = running.keeper
        term, keeper.term = keeper.term, Term(TTL)
        assert keeper.distrusted()
        start = asyncio.create_task(client.start(wait_for, "go", id="w"))
        await asyncio.sleep(0.05)
        assert not start.done()
        keeper.term = term
        assert not keeper.distrusted()
        running.decider.pump_soon()
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
    with pytest.raises(errors.DefinitionError, match="neither a workflow nor an entity nor an activity"):
        Worker(client, definitions=[print])

    @activity.defn(name="echo")
    async def other() -> None: ...

    with pytest.raises(errors.DefinitionError, match="two different definitions"):
        Worker(client, definitions=[echo, other])
