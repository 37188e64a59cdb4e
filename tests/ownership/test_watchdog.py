"""Code that holds the event loop: named, broken off, and in the end left behind (R-2)."""

from __future__ import annotations

import asyncio
import time

import pytest

from harvest import Worker, WorkerConfig, errors, workflow
from harvest.hub.queries import Query

LEASE = {"lease_ttl": 2.5}


@workflow.defn
async def spins(seconds: float) -> str:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    return "done"


@workflow.defn
async def blocks(seconds: float) -> str:
    time.sleep(seconds)  # one call into C: nothing can be raised in it
    return "done"


@workflow.defn
async def quick() -> str:
    return "quick"


async def test_a_loop_held_for_a_while_is_named_and_costs_no_lease(client, caplog):
    async with Worker(client, definitions=[spins], config=WorkerConfig(lease_ttl=4)) as running:
        before = running.keeper.worker_id
        assert await client.execute(spins, 3.0, id="s") == "done"
        assert running.keeper.worker_id == before and running.keeper.partitions == 512
        assert "test_watchdog.py" in caplog.text and "in spins" in caplog.text and "'s'" in caplog.text


async def test_code_that_never_gives_way_fails_its_decision_only(client, caplog):
    async with Worker(client, definitions=[spins, quick], config=WorkerConfig(**LEASE)) as running:
        before = running.keeper.worker_id
        handle = await asyncio.wait_for(asyncio.shield(started(client, 600.0)), 20)
        while not (await handle.describe()).strikes:
            await asyncio.sleep(0.02)
        assert await client.execute(quick, id="q") == "quick"
        assert running.keeper.worker_id == before
        described = await handle.describe()
        assert described.state == "RUNNING" and described.error is not None and "LoopStuck" in described.error.message
        await handle.terminate("enough")


async def started(client, seconds: float):
    return await client.start(spins, seconds, id="s", delay=0.05)


@pytest.mark.timeout(60)
async def test_a_loop_that_nothing_frees_gives_its_lease_up(client, remote, dsn):
    """The run gets a strike, and a peer goes on with everything else."""
    import subprocess
    import sys
    from pathlib import Path

    code = (
        "import asyncio, harvest, sys; from harvest import Worker, WorkerConfig\n"
        "from tests.ownership.test_watchdog import blocks, quick\n"
        "async def main():\n"
        f"    async with harvest.connect({dsn!r}) as c:\n"
        "        await Worker(c, definitions=[blocks, quick], config=WorkerConfig(lease_ttl=2.5)).run()\n"
        "asyncio.run(main())"
    )
    stuck = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2], stderr=subprocess.DEVNULL)
    try:
        while not await remote.workers():
            await asyncio.sleep(0.02)
        handle = await remote.start("blocks", 300.0, id="b")
        async with Worker(client, definitions=[quick, blocks], config=WorkerConfig(**LEASE)) as peer:
            while peer.keeper.partitions < 512:
                await asyncio.sleep(0.02)
            strikes = Query("t", "select strikes, error ->> 'message' as why from workflow_tasks")
            [row] = await remote.db.fetch(strikes)
            assert row["strikes"] == 1 and "test_watchdog.py" in row["why"]
            assert await remote.execute("quick", id="q") == "quick"
            with pytest.raises(errors.NoAnswer):
                await handle.update("none", timeout=0.1)
            await remote.db.fetch(Query("t", "delete from workflow_tasks"))
    finally:
        stuck.kill()
        stuck.wait()


@workflow.defn
class Asked:
    @workflow.run
    async def run(self) -> None:
        await workflow.receive("end")

    @workflow.query
    def forever(self) -> int:
        while True:
            pass

    @workflow.query
    def quickly(self) -> int:
        return 1


async def test_a_query_that_never_returns_is_broken_off(client):
    async with Worker(client, definitions=[Asked, quick], config=WorkerConfig(**LEASE)) as running:
        before = running.keeper.worker_id
        handle = await client.start(Asked, id="a")
        with pytest.raises(errors.QueryFailed):
            await handle.query(Asked.forever, timeout=30)
        assert await handle.query(Asked.quickly) == 1
        assert await client.execute(quick, id="q") == "quick"
        assert running.keeper.worker_id == before
        assert not (await handle.describe()).strikes
