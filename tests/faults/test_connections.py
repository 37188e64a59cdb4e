"""Connections that break, and a database that goes away (F-3, F-5)."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import asyncpg

from harvest import activity, workflow


@activity.defn(local=True)
async def step(n: int) -> int:
    return n


@workflow.defn
class Tally:
    def __init__(self) -> None:
        self.seen: list[int] = []

    @workflow.run
    async def run(self, until: int) -> list[int]:
        while len(self.seen) < until:
            await asyncio.sleep(0.01)
            await step(1)
        return self.seen

    @workflow.signal
    def put(self, n: int) -> None:
        self.seen.append(n)


async def test_cut_connections_lose_nothing(client, remote, worker, server, dsn):
    """Every connection of worker and client is terminated again and again while signals flow both ways."""
    database = urlsplit(dsn).path.lstrip("/")
    killer = await asyncpg.connect(server)
    cut = "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = $1 and pid <> pg_backend_pid()"
    async with worker(Tally, step):
        handle = await client.start(Tally, 60, id="cut")
        for n in range(60):
            await (handle if n % 2 else remote.handle("cut")).signal("put", n, idempotency_key=f"k{n}")
            if n % 15 == 7:
                assert await killer.fetchval(cut, database) > 3
        assert sorted(await handle.result(timeout=60)) == list(range(60))
    await killer.close()


async def test_lost_notifies_cost_one_scan(client, remote, worker, monkeypatch):
    """F-5: nobody is woken, everything still happens."""
    monkeypatch.setattr("harvest.wakes.notifier.Notifier._note", lambda *_: None)
    async with worker(Tally, step):
        handle = await remote.start(Tally, 3, id="quiet")
        for n in range(3):
            await handle.signal(Tally.put, n)
        assert await handle.result(timeout=20) == [0, 1, 2]


async def test_a_fenced_worker_starts_over(client, worker, dsn):
    connection = await asyncpg.connect(dsn)
    async with worker(Tally, step) as running:
        handle = await client.start(Tally, 2, id="fenced")
        old = running.keeper.worker_id
        await connection.execute("update harvest.tenures set fenced = true")
        await connection.execute("update harvest.workers set state = 'fenced'")
        await handle.signal(Tally.put, 1)
        await handle.signal(Tally.put, 2)
        assert await handle.result(timeout=30) == [1, 2]
        assert running.keeper.worker_id != old
    await connection.close()
