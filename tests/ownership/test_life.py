"""Workers that are cancelled while they start or stop leave nothing behind."""

from __future__ import annotations

import asyncio

import pytest

from harvest import Worker, WorkerConfig, activity, workflow
from harvest.hub.queries import Query


@workflow.defn
async def quick() -> str:
    return "quick"


@activity.defn(mode="queue")
async def slow() -> str:
    await asyncio.sleep(1.5)
    return "done"


@workflow.defn
async def waits_for_slow() -> str:
    return await slow()


@pytest.mark.parametrize("after", [0.0, 0.01, 0.03, 0.1])
async def test_a_cancelled_start_owns_nothing(client, worker, after):
    task = asyncio.create_task(worker(quick).run())
    await asyncio.sleep(after)  # wherever it is by then
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await client.workers() == []
    assert not await client.db.fetch(Query("t", "select 1 from partitions where worker_id is not null"))
    async with worker(quick):
        assert await client.execute(quick, id="q") == "quick"


async def test_who_stops_waiting_does_not_stop_the_end(client, worker):
    running = Worker(client, definitions=[slow, waits_for_slow], config=WorkerConfig(drain_timeout=5))
    await running.__aenter__()
    handle = await client.start(waits_for_slow, id="w")
    while not running.activities.running:
        await asyncio.sleep(0.01)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(running.stop(), 0.1)
    while await client.workers():
        await asyncio.sleep(0.02)
    async with worker(waits_for_slow, slow):
        assert await handle.result(timeout=20) == "done"
