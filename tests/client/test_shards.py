"""Several hubs as one: a workflow id always lands on the same, and a hub that is down is named, not fatal."""

from __future__ import annotations

import asyncio
import uuid
from urllib.parse import urlsplit

import asyncpg
import pytest
from pydantic import BaseModel

import harvest
from harvest import ShardedWorker, WorkerConfig, entity, errors, workflow
from harvest.ids import shard_of
from tests.conftest import with_database

pytestmark = pytest.mark.owner_only
DOWN = "postgresql://nobody:secret@127.0.0.1:9/none"


class Number(BaseModel):
    n: int = 0


@entity.defn
class Counted:
    state: Number

    @entity.operation
    def add(self, n: int) -> int:
        self.state.n += n
        return self.state.n


@workflow.defn
async def leaf(n: int) -> int:
    return n + await workflow.receive("more", int)


@workflow.defn
async def root(n: int) -> int:
    child = workflow.start_child(leaf, n)
    return await child


@pytest.fixture
async def hubs(server, template, dsn):
    """Three migrated databases."""
    names = [f"t_{uuid.uuid4().hex[:16]}" for _ in range(2)]
    connection = await asyncpg.connect(server)
    for name in names:
        await connection.execute(f'create database "{name}" template "{template}"')
    yield [dsn, *(with_database(server, name) for name in names)]
    for name in names:
        await connection.execute(f'drop database if exists "{name}" with (force)')
    await connection.close()


def test_where_a_run_lives():
    counts = [0] * 5
    for n in range(5_000):
        home = shard_of(f"order-{n}", 5)
        counts[home] += 1
        assert shard_of(f"order-{n}/3-abc", 5) == shard_of(f"order-{n}/3-abc/9", 5) == home
    assert min(counts) > 850
    assert [shard_of(name, 4) for name in ("", "a", "order-7", "é")] == [0, 1, 2, 3]  # written down: it must never change


async def test_runs_are_spread_and_found_again(hubs):
    async with harvest.connect(shards=hubs) as client, ShardedWorker(client, definitions=[root, leaf]) as worker:
        handles = [await client.start(root, n, id=f"r{n}") for n in range(12)]
        homes = {client.shard(h.id) for h in handles}
        assert homes == {0, 1, 2} and sorted(worker.workers) == [0, 1, 2]
        kids: dict[str, str] = {}
        while len(kids) < 12:
            kids = {r.parent_workflow_id: r.workflow_id async for r in client.list(type="leaf")}
        for n, handle in enumerate(handles):
            await client.handle(kids[handle.id]).signal("more", 100)
            assert await client.handle(handle.id, root).result(timeout=20) == 100 + n
        listing = client.list(type="root", page=2)
        found = [run async for run in listing]
        assert [run.workflow_id for run in found] == [f"r{n}" for n in reversed(range(12))]
        assert listing.unavailable == []
        assert await client.counts() == {"COMPLETED": 24}
        assert sorted(row["shard"] for row in await client.workers()) == [0, 1, 2]


async def test_a_hub_that_is_down_is_named(hubs):
    async with harvest.connect(shards=hubs):
        pass  # the first time all are up, and learn which they are
    shards = [hubs[0], DOWN, hubs[2]]
    async with (
        harvest.connect(shards=shards, patience=0.5) as client,
        ShardedWorker(client, definitions=[root, leaf]) as worker,
    ):
        assert client.up == [0, 2] and sorted(worker.workers) == [0, 2]
        names = [f"x{n}" for n in range(12)]
        for name in names:
            if client.shard(name) == 1:
                with pytest.raises(errors.HubUnreachable, match="shard 1 of 3"):
                    await client.start(leaf, 1, id=name)
            else:
                await client.start(leaf, 1, id=name)
        with pytest.raises(errors.HubUnreachable, match="shard 1 of 3 is down"):
            await client.handle(next(n for n in names if client.shard(n) == 1)).describe()
        newest = [run.workflow_id async for run in client.list(limit=3)]
        assert newest == [n for n in reversed(names) if client.shard(n) != 1][:3]
        listing = client.list()
        assert {run.workflow_id async for run in listing} == {n for n in names if client.shard(n) != 1}
        [missing] = listing.unavailable
        assert missing.shard == 1 and "secret" not in missing.hub and "127.0.0.1" in missing.hub and missing.error
        counts, workers = await client.counts(), await client.workers()
        assert counts["RUNNING"] == len([n for n in names if client.shard(n) != 1])
        assert [u.shard for u in counts.unavailable] == [u.shard for u in workers.unavailable] == [1]


async def test_a_shard_that_comes_up_later_is_taken_in(hubs, server):
    connection = await asyncpg.connect(server)
    async with harvest.connect(shards=hubs[:2]):
        pass
    away = urlsplit(hubs[1]).path.lstrip("/")
    await connection.execute(f'alter database "{away}" rename to "{away}_away"')
    async with (
        harvest.connect(shards=hubs[:2], patience=0.5) as client,
        ShardedWorker(client, definitions=[root, leaf]) as worker,
    ):
        assert client.up == [0]
        await connection.execute(f'alter database "{away}_away" rename to "{away}"')
        while sorted(worker.workers) != [0, 1]:
            await asyncio.sleep(0.05)
        handle = await client.start(leaf, 1, id=next(f"z{n}" for n in range(99) if client.shard(f"z{n}") == 1))
        await handle.signal("more", 1)
        assert await handle.result(timeout=20) == 2
    await connection.close()


async def test_the_list_must_not_change(hubs):
    with pytest.raises(errors.HubUnreachable, match="first time"):
        async with harvest.connect(shards=[*hubs[:2], DOWN], patience=0.5):
            pass
    async with harvest.connect(shards=hubs[:2]):
        pass
    wrong = {"is shard": hubs[1::-1], "never a shard": [hubs[0], hubs[2]], "not 0 of 3": hubs}
    for why, shards in wrong.items():
        with pytest.raises(errors.ConfigError, match=why):
            async with harvest.connect(shards=shards):
                pass
    async with harvest.connect(hubs[2]) as untouched:
        assert untouched.site.shard is None
    for bad in ([], [hubs[0], hubs[0]], "postgresql://x"):
        with pytest.raises(errors.ConfigError, match="shards"):
            harvest.connect(shards=bad)
    with pytest.raises(errors.HubUnreachable, match="none of the 1 shards"):
        async with harvest.connect(shards=[DOWN], patience=0.5):
            pass


async def test_a_shard_takes_its_own_runs_only(hubs):
    async with harvest.connect(shards=hubs[:2]):
        pass
    async with harvest.connect(hubs[1]) as alone:
        ids = {shard_of(f"a{n}", 2): f"a{n}" for n in range(20)}
        await alone.start("leaf", 1, id=ids[1])
        with pytest.raises(errors.ConfigError, match="lives on shard 0 of 2"):
            await alone.start("leaf", 1, id=ids[0])


async def test_entities_over_shards(hubs, tmp_path):
    """Each lives on one shard; questions go to all, and a shard that is down is named."""
    config = WorkerConfig(owner_disk_cache=tmp_path, owner_entity_sql=True)
    question = "SELECT count(*), sum(state ->> '$.n') FROM entity"
    async with harvest.connect(shards=hubs[:2]) as client, ShardedWorker(client, definitions=[Counted], config=config):
        for n in range(20):
            assert await client.entity(Counted, f"k{n}").call(Counted.add, n) == n
        assert [e.key async for e in client.entities(Counted, prefix="k1", limit=3)] == ["k1", "k10", "k11"]
        assert await client.entity_types() == {"Counted": 20}
        rows = await client.query_entities_sql(Counted, question)
        assert rows.rows == [(20, 190)] and rows.complete and {each.shard for each in rows.freshness} == {0, 1}
        top = await client.query_entities_sql(Counted, "SELECT key FROM entity ORDER BY state ->> '$.n' DESC LIMIT 2")
        assert top.rows == [("k19",), ("k18",)]
    async with (
        harvest.connect(shards=[hubs[0], DOWN], patience=0.5) as half,
        ShardedWorker(half, definitions=[Counted], config=config),
    ):
        rows = await half.query_entities_sql(Counted, question)
        here = sum(shard_of(f"@Counted:k{n}", 2) == 0 for n in range(20))
        assert rows.rows[0][0] == here and not rows.complete
        assert rows.unanswered[-1].shard == 1 and "down" in rows.unanswered[-1].reason
