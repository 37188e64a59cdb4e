"""E1 to E6: entities, the disk cache and SQL over entities. Each function measures one round of one variant."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import apsw
import msgspec
from harvest.diskcache import Cache, Scope

from benchmarks.flows import Account, steps
from benchmarks.measure import floor, latency, percentile
from harvest import Client, Worker, WorkerConfig
from harvest.hub import history

QUEUE = "entities"
CALLERS, ENTITIES = 32, 1_000


@asynccontextmanager
async def kept(client: Client, **config: Any) -> AsyncIterator[Worker]:
    """A worker in this process that keeps the entities."""
    with tempfile.TemporaryDirectory() as directory:
        settings = WorkerConfig(owner_disk_cache=Path(directory) / "cache", owner_entity_sql=True, **config)
        async with Worker(client, queue=QUEUE, definitions=[Account, steps], config=settings) as worker:
            yield worker


def account(client: Client, key: str, queue: str = QUEUE) -> Any:
    return client.entity(Account, key, queue=queue)


def fresh(name: str) -> str:
    return f"{name}-{uuid4().hex[:10]}"


async def e1(client: Client, variant: str) -> dict[str, Any]:
    """Operations per second, each acknowledged when it is durable: 32 callers of one entity, or one of each of 1,000."""
    tag = fresh("e1")
    async with kept(client, workflow_cache_size=5_000):
        if variant == "one hot entity":
            keys, each = [tag] * CALLERS, 300
        else:
            keys, each = [f"{tag}-{n}" for n in range(ENTITIES)], 10
        await asyncio.gather(*(account(client, key).call(Account.add, 1) for key in keys))

        async def caller(key: str) -> None:
            for _ in range(each):
                await account(client, key).call(Account.add, 1)

        began = time.perf_counter()
        await asyncio.gather(*map(caller, keys))
        spent = time.perf_counter() - began
    return {"ops_per_s": round(len(keys) * each / spent), "seconds": round(spent, 3)}


async def e2(client: Client, variant: str) -> dict[str, Any]:
    """One call after another: in the owner's process beside the bare commit, or from another process."""
    key, times = fresh("e2"), []
    if variant == "elsewhere":
        for n in range(330):
            began = time.perf_counter()
            await account(client, key, "elsewhere").call(Account.add, 1)
            times += [time.perf_counter() - began] if n >= 30 else []
        return latency(times)
    commit = (await floor(client.db.dsn))["commit_ms"]
    async with kept(client):
        for n in range(1_050):
            began = time.perf_counter()
            await account(client, key).call(Account.add, 1)
            times += [time.perf_counter() - began] if n >= 50 else []
    found = latency(times)
    return {**found, "bare_commit_ms": commit, "commits": round(found["p50_ms"] / commit, 2)}


async def e3(client: Client, variant: str) -> dict[str, Any]:
    """The cost of a lone operation at number 100 and at number 100,000, warm and after leaving memory."""
    key = fresh("e3")
    async with kept(client) as worker:

        async def lone(count: int) -> float:
            times = []
            for _ in range(count):
                began = time.perf_counter()
                await account(client, key).call(Account.add, 1)
                times.append(time.perf_counter() - began)
            return percentile(times, 50) * 1000

        async def cold() -> float:
            times = []
            for _ in range(15):
                run = worker.decider.runs.get(worker.decider.open_ids.get(account(client, key).id, UUID(int=0)))
                if run is not None:
                    worker.decider.let_go(run)
                began = time.perf_counter()
                await account(client, key).call(Account.add, 1)
                times.append(time.perf_counter() - began)
            return percentile(times, 50) * 1000

        async def many(count: int) -> None:
            for _ in range(count):
                await account(client, key).call(Account.add, 1)

        await many(100)
        early, early_cold = await lone(300), await cold()
        await asyncio.gather(*(many(99_000 // 64) for _ in range(64)))
        late, late_cold = await lone(300), await cold()
    return {
        "at_100_ms": round(early, 3),
        "at_100k_ms": round(late, 3),
        "ratio": round(late / early, 3),
        "cold_at_100_ms": round(early_cold, 3),
        "cold_at_100k_ms": round(late_cold, 3),
    }


async def e4(client: Client, variant: str) -> dict[str, Any]:
    """Reading the history of a run: all of it from Postgres, or from the sealed file with the last decision from Postgres."""
    events = int(variant.split()[0].replace(",", ""))
    handle = await client.start(steps, events // 2, "local", id=fresh("e4"))
    await handle.result()
    assert handle.execution_id is not None
    run, place = handle.execution_id, Scope("bench/1", 1)
    rows = (await history.load(client.db, [run]))[run]
    with tempfile.TemporaryDirectory() as directory:
        async with Cache(directory) as cache:
            data = msgspec.msgpack.encode(rows)
            await cache.append(place, run.bytes, "history", 1, len(rows), data)
            postgres, disk = [], []
            decoder = msgspec.msgpack.Decoder(list[type(rows[0])])  # type: ignore[misc]
            for _ in range(60):
                began = time.perf_counter()
                whole = (await history.load(client.db, [run]))[run]
                postgres.append(time.perf_counter() - began)
                began = time.perf_counter()
                found = await cache.read(place, run.bytes, "history")
                known = [each for chunk in found.chunks for each in decoder.decode(chunk)]
                delta = (await history.load(client.db, [run], starting={run: known[-1].decision}))[run]
                assert delta[0] == known[-1]
                disk.append(time.perf_counter() - began)
                assert known == whole
    a, b = percentile(postgres, 50) * 1000, percentile(disk, 50) * 1000
    return {"postgres_ms": round(a, 3), "disk_ms": round(b, 3), "ratio": round(a / b, 2)}


async def e5(client: Client, variant: str) -> dict[str, Any]:
    """SQL over one entity from its owner: latency, queries per second with 8 askers, and the same query on a bare SQLite."""
    size = {"1 KB": 1_000, "100 KB": 100_000, "5 MB": 5_000_000}[variant]
    key, question = fresh("e5"), "SELECT count(*), sum(value ->> 'n') FROM entity, json_each(state, '$.items')"
    rounds = 300 if size < 1_000_000 else 15
    async with kept(client):
        await account(client, key).call(Account.fill, size)
        entity, times = account(client, key), []
        for n in range(rounds + 5):
            began = time.perf_counter()
            await entity.sql(question)
            times += [time.perf_counter() - began] if n >= 5 else []

        async def asker() -> None:
            for _ in range(max(3, rounds // 8)):
                await entity.sql(question)

        began = time.perf_counter()
        await asyncio.gather(*(asker() for _ in range(8)))
        rate = 8 * max(3, rounds // 8) / (time.perf_counter() - began)
        state = (await entity.state()).model_dump_json()
    bare = []
    for _ in range(rounds):
        began = time.perf_counter()
        connection = apsw.Connection(":memory:")
        connection.execute("create table entity (type text, key text, state text, event_id integer, updated_at text)")
        connection.execute("insert into entity values ('a', 'b', ?, 1, 'c')", (state,))
        connection.execute(question).fetchall()
        connection.close()
        bare.append(time.perf_counter() - began)
    return {**latency(times), "per_s": round(rate), "bare_sqlite_ms": round(percentile(bare, 50) * 1000, 3)}


async def e6(client: Client, variant: str) -> dict[str, Any]:
    """SQL over a whole type: 5,000 entities on one owner; the first question builds its table."""
    tag, count = fresh("e6"), 5_000
    async with kept(client, workflow_cache_size=20_000):
        gate = asyncio.Semaphore(512)

        async def one(n: int) -> None:
            async with gate:
                await account(client, f"{tag}-{n}").call(Account.fill, 500)

        await asyncio.gather(*map(one, range(count)))
        where = f" WHERE key >= '{tag}' AND key < '{tag}~'"
        questions = {
            "first": f"SELECT count(*) FROM entity{where}",
            "group": f"SELECT state ->> '$.balance' AS b, count(*), avg(state ->> '$.balance') FROM entity{where} GROUP BY b",
            "find": f"SELECT key FROM entity WHERE key = '{tag}-77'",
        }
        spent: dict[str, float] = {}
        for name, question in questions.items():
            times = []
            for _ in range(1 if name == "first" else 15):
                began = time.perf_counter()
                await client.query_entities_sql(Account, question)
                times.append(time.perf_counter() - began)
            spent[f"{name}_ms"] = round(percentile(times, 50) * 1000, 2)
    return spent


Measure = Callable[[Client, str], Awaitable[dict[str, Any]]]
ENTITY_WORKLOADS: dict[str, tuple[Measure, tuple[str, ...]]] = {
    "E1": (e1, ("one hot entity", "1,000 entities")),
    "E2": (e2, ("owner", "elsewhere")),
    "E3": (e3, ("100 against 100,000",)),
    "E4": (e4, ("100 events", "1,000 events", "10,000 events")),
    "E5": (e5, ("1 KB", "100 KB", "5 MB")),
    "E6": (e6, ("5,000 entities",)),
}
