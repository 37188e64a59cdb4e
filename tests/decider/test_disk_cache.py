"""D-1 to D-6 in the engine: a memory miss reads the disk and what is new, and decides as it would have."""

from __future__ import annotations

import asyncio

import pytest

from harvest import activity, workflow
from harvest.hub.queries import Query

pytestmark = pytest.mark.owner_only


@activity.defn(local=True)
async def step(n: int) -> int:
    return n


@workflow.defn
class Long:
    def __init__(self) -> None:
        self.total = 0
        self.rounds = 0

    @workflow.run
    async def run(self, steps: int) -> int:
        for n in range(steps):
            self.total += await step(n)
        await workflow.wait_until(lambda: self.rounds >= 3)
        return self.total

    @workflow.signal
    async def more(self, n: int) -> None:
        self.total += await step(n)
        self.rounds += 1

    @workflow.query
    def state(self) -> list[int]:
        return [self.total, self.rounds]


def outcomes(worker):
    return {name: count for (_, name), count in worker.units["default"].shelf.outcomes.items()}


async def settled(worker):
    """What was spawned beside the decisions is done."""
    while worker.decider._tasks:
        await asyncio.wait(set(worker.decider._tasks))


async def evict(worker, handle):
    run = worker.decider.runs.get(handle.execution_id)
    if run is not None:
        worker.decider.let_go(run)
    await settled(worker)


@pytest.fixture
def cached(worker, tmp_path):
    return lambda **config: worker(Long, step, owner_disk_cache=tmp_path / "cache", **config)


async def test_a_memory_miss_reads_the_disk_and_the_rest_from_the_hub(client, remote, cached):
    async with cached() as worker:
        handle = await client.start(Long, 80, id="long")
        short = await client.start(Long, 5, id="short")
        while await handle.query(Long.state) != [3160, 0] or await short.query(Long.state) != [10, 0]:
            await asyncio.sleep(0.01)
        for round_ in range(1, 3):
            for each in (handle, short):
                await evict(worker, each)
                assert (await each.query(Long.state))[1] == round_ - 1
                await settled(worker)
                await each.signal(Long.more, 1)
            while (await handle.query(Long.state))[1] < round_ or (await short.query(Long.state))[1] < round_:
                await asyncio.sleep(0.01)
        assert outcomes(worker) == {"miss": 1, "hit": 1}  # the short one never goes to disk
        assert len(list(worker.cache.directory.glob("*.sealed"))) == 1
        for each in (handle, short):
            await evict(worker, each)
            await each.signal(Long.more, 1)
        assert await handle.result(timeout=10) == 3163 and await short.result(timeout=10) == 13
        await settled(worker)
        assert not any(worker.cache.entries().values())
        modes = await remote.db.fetch(Query("t", "select replay_mode, count(*) from decisions group by 1"))
        assert {row["replay_mode"] for row in modes} == {"first", "warm", "cold", "disk"}


async def loaded_once(client, worker, id="long"):
    handle = await client.start(Long, 80, id=id)
    while await handle.query(Long.state) != [3160, 0]:
        await asyncio.sleep(0.01)
    await evict(worker, handle)
    await handle.query(Long.state)
    await settled(worker)
    assert worker.units["default"].shelf.outcomes["Long", "miss"] >= 1
    return handle


async def test_a_cache_that_the_hub_does_not_agree_with_is_dropped(client, remote, cached):
    async with cached() as worker:
        handle = await loaded_once(client, worker)
        await evict(worker, handle)
        last = Query(
            "t",
            "update decisions set at = at + interval '1 second' where (execution_id, decision) in"
            " (select execution_id, max(decision) from decisions group by 1) returning 1",
        )
        await remote.db.fetch(last)
        assert await handle.query(Long.state) == [3160, 0]
        await settled(worker)
        assert outcomes(worker) == {"miss": 1, "stale": 1}
        await evict(worker, handle)
        assert await handle.query(Long.state) == [3160, 0]
        assert outcomes(worker) == {"miss": 1, "stale": 1, "hit": 1}


async def test_damage_is_a_miss(client, cached):
    async with cached() as worker:
        handle = await loaded_once(client, worker)
        for path in worker.cache.directory.glob("*.sealed"):
            data = bytearray(path.read_bytes())
            data[-200:] = b"\x55" * 200
            path.write_bytes(data)
        await evict(worker, handle)
        assert await handle.query(Long.state) == [3160, 0]
        await settled(worker)
        assert set(outcomes(worker)) <= {"miss", "corrupt", "hit"}
        for path in worker.cache.directory.glob("*.sealed"):
            path.unlink()
        await evict(worker, handle)
        assert await handle.query(Long.state) == [3160, 0]
        assert outcomes(worker).get("stale", 0) + outcomes(worker).get("corrupt", 0) >= 1


async def test_what_ends_elsewhere_is_reconciled_and_a_stop_deletes_all(client, remote, cached):
    async with cached() as worker:
        handle = await loaded_once(client, worker)
        shelf, directory = worker.units["default"].shelf, worker.cache.directory
        assert await shelf.run_once() == 0
        await evict(worker, handle)
        await remote.db.fetch(Query("t", "update executions set state = 'TERMINATED', closed_at = now()"))
        assert await shelf.run_once() == 1
        assert not any(worker.cache.entries().values())
        await remote.db.fetch(Query("t", "update executions set state = 'RUNNING', closed_at = null"))
        await handle.query(Long.state)
        await settled(worker)
        assert any(worker.cache.entries().values())
        worker.cache.generation += 1
        await shelf.run_once()
        assert not list(directory.glob("*.sealed"))
    assert [path.name for path in directory.iterdir()] == ["lock"]


async def test_a_lost_tenure_takes_its_files_along(client, remote, cached):
    async with cached() as worker:
        handle = await loaded_once(client, worker)
        assert list(worker.cache.directory.glob("*.sealed"))
        partition = worker.decider.runs[handle.execution_id].partition
        worker.keeper.shares["default"].leave([partition])
        await settled(worker)
        assert not list(worker.cache.directory.glob("*.sealed"))
