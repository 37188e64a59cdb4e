"""kill -9 at random points of real worker processes: nothing acknowledged is lost or doubled (F-1), and what is
written replays."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from pathlib import Path

import asyncpg
import pytest

from harvest import errors
from harvest.testing import Replayer
from tests.faults import flows
from tests.faults.flows import Ledger

ROOT = Path(__file__).parents[2]


async def spawn(dsn: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "harvest.cli.main", "worker", "tests.faults.flows", "--log-level", "error"),
        env={**os.environ, "HARVEST_DATABASE_URL": dsn},
        cwd=ROOT,
        stderr=asyncio.subprocess.DEVNULL,
    )


async def end(process: asyncio.subprocess.Process, number: int) -> None:
    if process.returncode is None:
        process.send_signal(number)
        await process.wait()


async def check(client, handles, sent: dict[str, list[int]]) -> None:
    """Every acknowledged message is in the result exactly once; every history replays."""
    for handle in handles:
        found = Counter(await handle.result(timeout=60))
        assert found == Counter(sent[handle.id]), handle.id
    replayer = Replayer([flows])
    async for run in client.list():
        exported = await client.handle(run.workflow_id, execution_id=run.execution_id).export_history()
        verdict = replayer.replay_file(exported)
        assert verdict.fits, verdict


async def talk(client, handle, sent: list[int], dice: random.Random, done: asyncio.Event) -> None:
    """Signals and updates one after another; what is acknowledged goes into the ledger."""
    n = 0
    while not done.is_set():
        n += 1
        if dice.random() < 0.7:
            await handle.signal(Ledger.put, n)
        else:
            while True:  # the same update id until it is answered: once, whatever happens
                try:
                    await handle.update(Ledger.add, n, update_id=f"u{n}", timeout=2)
                    break
                except errors.NoAnswer:
                    pass
        sent.append(n)
        await asyncio.sleep(0.02)


@pytest.mark.timeout(150)
@pytest.mark.parametrize("seed", [1, 2])
async def test_kill_at_random(dsn, remote, seed):
    dice = random.Random(seed)
    sent: dict[str, list[int]] = {f"run-{n}": [] for n in range(8)}
    process = await spawn(dsn)
    try:
        handles = [await remote.start(Ledger, 12, id=name) for name in sent]
        done = asyncio.Event()
        talkers = [
            asyncio.create_task(talk(remote, h, sent[h.id], random.Random(seed + n), done)) for n, h in enumerate(handles)
        ]
        for _ in range(5):
            await asyncio.sleep(dice.uniform(0.4, 1.2))  # a fault comes at any moment
            await end(process, signal.SIGKILL)
            process = await spawn(dsn)
        done.set()
        await asyncio.gather(*talkers)
        for handle in handles:
            await handle.signal(Ledger.close)
        await check(remote, handles, sent)
    finally:
        await end(process, signal.SIGTERM)
    assert sum(map(len, sent.values())) > 10
    left = await asyncpg.connect(dsn)
    try:
        assert await left.fetchval("select count(*) from harvest.workflow_tasks") == 0
        assert await left.fetchval("select count(*) from harvest.activity_tasks") == 0
        assert await left.fetchval("select count(*) from harvest.messages where consumed_at is null") == 0
    finally:
        await left.close()


@pytest.mark.timeout(90)
async def test_a_stopped_worker_writes_nothing_more_under_its_old_tenure(dsn, remote):
    """F-2: SIGSTOP, a take-over by fencing, SIGCONT."""
    first = await spawn(dsn)
    connection = await asyncpg.connect(dsn)
    try:
        handle = await remote.start(Ledger, 400, id="stopped")
        while not await connection.fetchval("select count(*) from harvest.decisions where decision > 5"):
            await asyncio.sleep(0.02)
        first.send_signal(signal.SIGSTOP)
        old = await connection.fetchval("select worker_id from harvest.partitions where worker_id is not null limit 1")
        await connection.execute("update harvest.workers set lease_until = now() - interval '1 second'")  # its lease lapses
        second = await spawn(dsn)
        while await connection.fetchval("select count(*) from harvest.partitions where worker_id = $1", old):
            await asyncio.sleep(0.02)
        count = "select count(*) from harvest.decisions where worker_id = $1"
        before = await connection.fetchval(count, old)
        first.send_signal(signal.SIGCONT)
        moved = await connection.fetchval("select max(decision) from harvest.decisions")
        while await connection.fetchval("select max(decision) from harvest.decisions") < moved + 20:
            await asyncio.sleep(0.02)
        assert await connection.fetchval(count, old) == before
        await handle.terminate("seen enough")
        await end(second, signal.SIGTERM)
    finally:
        await end(first, signal.SIGKILL)
        await connection.close()


async def test_a_graceful_stop_hands_over_at_once(dsn, remote):
    first = await spawn(dsn)
    handle = await remote.start(Ledger, 5, id="handed over")
    await handle.update(Ledger.add, 1)
    second = await spawn(dsn)
    await end(first, signal.SIGTERM)
    try:
        assert await handle.update(Ledger.add, 2) == 2
        await handle.signal(Ledger.close)
        assert sorted(await handle.result(timeout=30)) == [1, 2]
    finally:
        await end(second, signal.SIGTERM)
