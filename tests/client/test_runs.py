"""Starting runs, their ids, their ends (R-1, R-6)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
import pytest
from pydantic import BaseModel

from harvest import ApplicationError, activity, errors, workflow


class Order(BaseModel):
    items: list[str]
    note: str = ""


@activity.defn(local=True)
async def price(item: str) -> int:
    return len(item)


@workflow.defn
async def total(order: Order) -> int:
    return sum(await asyncio.gather(*(price(item) for item in order.items)))


@workflow.defn
async def wait_for_word(name: str = "word") -> str:
    return await workflow.receive(name, str)


@workflow.defn
async def broken(kind: str) -> None:
    if kind == "application":
        raise ApplicationError("no stock", {"sku": 7}, type="OutOfStock")
    raise ValueError("plain")


@workflow.defn
async def nap(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "rested"


async def test_result_of_a_run(client, worker):
    async with worker(total, price):
        handle = await client.start(total, Order(items=["a", "bb"]), id="order-1")
        assert await handle.result() == 3
        described = await handle.describe()
    assert described.state == "COMPLETED"
    assert described.result == 3
    assert described.input == [{"items": ["a", "bb"], "note": ""}]
    kinds = [event["type"] async for event in handle.history()]
    assert kinds == ["ActivityScheduled", "ActivityScheduled", "ActivityCompleted", "ActivityCompleted", "RunCompleted"]


async def test_a_run_can_be_started_before_there_is_a_worker(client, worker):
    handle = await client.start(total, Order(items=["abc"]), id="early")
    assert (await handle.result_snapshot()).state == "RUNNING"
    async with worker(total, price):
        assert await handle.result(timeout=20) == 3


@pytest.mark.parametrize(("kind", "type_"), [("application", "OutOfStock"), ("plain", "ValueError")])
async def test_a_failed_run_says_why(client, worker, kind, type_):
    async with worker(broken):
        handle = await client.start(broken, kind, id="b")
        with pytest.raises(errors.WorkflowFailedError) as caught:
            await handle.result()
    assert caught.value.state == "FAILED"
    assert caught.value.type == type_
    snapshot = await handle.result_snapshot()
    assert snapshot.failure is not None and snapshot.failure.type == type_


async def test_conflict_policies(client, worker):
    async with worker(wait_for_word):
        first = await client.start(wait_for_word, id="one")
        with pytest.raises(errors.WorkflowAlreadyStarted) as caught:
            await client.start(wait_for_word, id="one")
        assert "one" in str(caught.value) and "use_existing" in str(caught.value)
        same = await client.start(wait_for_word, id="one", conflict="use_existing")
        assert same.execution_id == first.execution_id
        other = await client.start(wait_for_word, id="one", conflict="terminate_existing")
        assert other.execution_id != first.execution_id
        assert (await first.result_snapshot()).state == "TERMINATED"
        await other.signal("word", "x")
        assert await other.result() == "x"


async def test_reuse_policies(client, worker):
    async with worker(broken, total, price):
        with pytest.raises(errors.WorkflowFailedError):
            await client.execute(broken, "plain", id="r")
        with pytest.raises(errors.WorkflowAlreadyStarted):
            await client.start(broken, "plain", id="r", reuse="reject_duplicate")
        assert await client.execute(total, Order(items=["x"]), id="r", reuse="allow_failed") == 1
        with pytest.raises(errors.WorkflowAlreadyStarted):
            await client.start(total, Order(items=["x"]), id="r", reuse="allow_failed")
        assert await client.execute(total, Order(items=["x"]), id="r") == 1


async def test_start_belongs_to_the_callers_transaction(client, worker, dsn):
    connection = await asyncpg.connect(dsn)
    async with worker(total, price):
        await connection.execute("create table public.orders (id int)")
        with pytest.raises(ZeroDivisionError):
            async with connection.transaction():
                await connection.execute("insert into orders values (1)")
                await client.start(total, Order(items=["a"]), id="tx", connection=connection)
                raise ZeroDivisionError
        with pytest.raises(errors.WorkflowNotFound):
            await client.handle("tx").describe()
        async with connection.transaction():
            await connection.execute("insert into orders values (1)")
            handle = await client.start(total, Order(items=["a"]), id="tx", connection=connection)
            await connection.execute("insert into orders values (2)")
        assert await handle.result(timeout=20) == 1
        assert await connection.fetchval("select count(*) from orders") == 2
        with pytest.raises(errors.ConfigError, match="transaction"):
            await client.start(total, Order(items=["a"]), id="tx2", connection=connection)
    await connection.close()


async def test_many_starts_at_once(client, worker):
    async with worker(total, price):
        handles = await asyncio.gather(*(client.start(total, Order(items=["a"] * n), id=f"m{n}") for n in range(100)))
        assert await asyncio.gather(*(h.result() for h in handles)) == list(range(100))


async def test_delay_timeout_and_timer(client, worker):
    async with worker(nap):
        slow = await client.start(nap, 3600.0, id="slow", timeout=timedelta(milliseconds=50))
        with pytest.raises(errors.WorkflowFailedError) as caught:
            await slow.result(timeout=20)
        assert caught.value.state == "TIMED_OUT"
        delayed = await client.start(nap, 0.01, id="delayed", delay=0.2)
        assert await delayed.result(timeout=20) == "rested"


async def test_listing_and_counts(client, worker):
    async with worker(total, price, wait_for_word):
        for n in range(5):
            await client.execute(total, Order(items=["a"]), id=f"list-{n}", search_attributes={"n": n, "shop": "x"})
        await client.start(wait_for_word, id="open-1", memo={"who": "me"})
        everything = [run async for run in client.list(page=2)]
        assert len(everything) == 6
        assert everything[0].workflow_id == "open-1"
        assert [r.workflow_id async for r in client.list(state="RUNNING")] == ["open-1"]
        assert [r.workflow_id async for r in client.list(search_attributes={"n": 3})] == ["list-3"]
        assert len([r async for r in client.list(prefix="list-", limit=3)]) == 3
        assert await client.counts() == {"COMPLETED": 5, "RUNNING": 1}
        with pytest.raises(errors.ConfigError, match="RUNNING"):
            [r async for r in client.list(state="open")]


async def test_bad_input_is_refused_before_anything_is_stored(client, worker):
    async with worker(total, price):
        with pytest.raises(errors.PayloadError, match=r"parameter 'order'.*items"):
            await client.start(total, {"items": 3}, id="bad")
        with pytest.raises(errors.PayloadError, match="takes 1 argument"):
            await client.start(total, id="bad")
        with pytest.raises(errors.PayloadError, match="JSON"):
            await client.start("total", object(), id="bad")
        with pytest.raises(errors.PayloadTooLarge, match="2,097,152"):
            await client.start(total, Order(items=["x" * 3_000_000]), id="bad")
        with pytest.raises(errors.UnknownWorkflowError, match=r"totl.*\n.*known types: total"):
            await client.start("totl", 1, id="bad")
        with pytest.raises(errors.PayloadError, match="id"):
            await client.start(total, Order(items=[]), id="")
        with pytest.raises(errors.ConfigError, match="conflict"):
            await client.start(total, Order(items=[]), id="bad", conflict="maybe")
        with pytest.raises(errors.DefinitionError, match="not a workflow"):
            await client.start(price, "x", id="bad")
    assert [r async for r in client.list()] == []


async def test_unusual_values_survive(client, worker):
    class Odd(BaseModel):
        text: str
        big: int
        blob: bytes

    @workflow.defn
    async def echo(odd: Odd, ratio: float) -> tuple[Odd, float]:
        return odd, ratio

    odd = Odd(text="nul \x00 é \U0001f33e", big=2**80, blob=b"ok")
    async with worker(echo):
        got, ratio = await client.execute(echo, odd, float("inf"), id="odd \N{SNOWMAN}")
    assert got == odd and ratio == float("inf")
