"""Signals, queries, updates, cancel and terminate, from the owner's process and from elsewhere (R-7 to R-10)."""

from __future__ import annotations

import asyncio

import pytest

from harvest import activity, errors, workflow


@workflow.defn
class Basket:
    def __init__(self) -> None:
        self.items: list[str] = []
        self.closed = False

    @workflow.run
    async def run(self) -> list[str]:
        await workflow.wait_until(lambda: self.closed)
        return self.items

    @workflow.signal
    def put(self, item: str) -> None:
        self.items.append(item)

    @workflow.signal(name="close")
    async def close_it(self) -> None:
        await asyncio.sleep(0.001)
        self.closed = True

    @workflow.query
    def count(self, prefix: str = "") -> int:
        return sum(1 for item in self.items if item.startswith(prefix))

    @workflow.query
    def broken(self) -> None:
        raise ValueError("no")

    @workflow.query
    def meddling(self) -> None:
        asyncio.get_running_loop().create_task(asyncio.sleep(1))

    @workflow.update
    async def swap(self, old: str, new: str) -> list[str]:
        await asyncio.sleep(0.001)
        self.items[self.items.index(old)] = new
        return self.items

    @swap.validator
    def may_swap(self, old: str, new: str) -> None:
        if old not in self.items:
            raise ValueError(f"{old} is not in the basket")

    @workflow.update
    def clear(self) -> int:
        count = len(self.items)
        self.items.clear()
        return count


async def test_signals_queries_and_updates(worker, caller):
    async with worker(Basket):
        handle = await caller.start(Basket, id="b")
        for item in ("apple", "pear", "plum"):
            await handle.signal(Basket.put, item)
        assert await handle.update(Basket.swap, "pear", "fig") == ["apple", "fig", "plum"]
        assert await handle.query(Basket.count) == 3
        assert await handle.query(Basket.count, "p") == 1
        assert await handle.query("count", "a") == 1
        assert await handle.update(Basket.clear) == 3
        await handle.signal(Basket.put, "kiwi")
        await handle.signal("close")
        assert await handle.result(timeout=20) == ["kiwi"]
        assert await handle.query(Basket.count) == 1  # closed runs answer too


async def test_signals_keep_their_order(worker, caller):
    async with worker(Basket):
        handle = await caller.start(Basket, id="order")
        for n in range(50):
            await handle.signal(Basket.put, str(n))
        await handle.signal(Basket.close_it)
        assert await handle.result(timeout=20) == [str(n) for n in range(50)]


async def test_a_keyed_signal_is_delivered_once(worker, caller):
    async with worker(Basket):
        handle = await caller.start(Basket, id="keyed")
        for _ in range(3):
            await handle.signal(Basket.put, "one", idempotency_key="k")
        await handle.update(Basket.swap, "one", "two")
        await handle.signal(Basket.put, "one", idempotency_key="k")
        await handle.signal(Basket.close_it)
        assert await handle.result(timeout=20) == ["two"]


async def test_a_rejected_update_leaves_no_event(worker, caller):
    async with worker(Basket):
        handle = await caller.start(Basket, id="rejected")
        await handle.update(Basket.clear)
        before = [event async for event in handle.history()]
        with pytest.raises(errors.UpdateRejected, match="plum is not in the basket") as caught:
            await handle.update(Basket.swap, "plum", "fig")
        assert caught.value.type == "ValueError"
        assert [event async for event in handle.history()] == before


async def test_an_update_id_acts_once_and_answers_each_time(worker, caller):
    async with worker(Basket):
        handle = await caller.start(Basket, id="once")
        await handle.signal(Basket.put, "a")
        assert await handle.update(Basket.clear, update_id="u") == 1
        assert await handle.update(Basket.clear, update_id="u") == 1


async def test_an_update_that_fails(worker, caller):
    @workflow.defn
    class Till:
        @workflow.run
        async def run(self) -> None:
            await workflow.receive("never")

        @workflow.update
        async def pay(self) -> None:
            raise errors.ApplicationError("declined", type="Declined")

    async with worker(Till):
        handle = await caller.start(Till, id="till")
        with pytest.raises(errors.UpdateFailed, match="declined") as caught:
            await handle.update(Till.pay)
        assert caught.value.type == "Declined"


async def test_bad_calls_are_named(worker, caller):
    async with worker(Basket):
        handle = await caller.start(Basket, id="bad")
        with pytest.raises(errors.PayloadError, match="item"):
            await handle.signal(Basket.put, 3)
        with pytest.raises(errors.PayloadTooLarge, match="262,144"):
            await handle.signal(Basket.put, "x" * 300_000)
        with pytest.raises(errors.UnknownHandlerError, match="known: broken, count, meddling"):
            await handle.query("counts")
        with pytest.raises(errors.UnknownHandlerError):
            await handle.signal("putt", "x")
        with pytest.raises(errors.DefinitionError, match="not a query"):
            await handle.query(Basket.put)
        with pytest.raises(errors.QueryFailed, match="no"):
            await handle.query(Basket.broken)
        with pytest.raises(errors.QueryFailed, match="must not start a task"):
            await handle.query(Basket.meddling)
        untyped = caller.handle("bad")
        with pytest.raises(errors.QueryFailed, match="nothere"):
            await untyped.query("nothere")
        with pytest.raises(errors.UpdateRejected, match="nothere"):
            await untyped.update("nothere")
        for bad in (float("nan"), [{"a": float("-inf")}]):  # would arrive as null
            with pytest.raises(errors.PayloadError, match="JSON has no such number"):
                await untyped.signal("put", bad)
            with pytest.raises(errors.PayloadError, match=r"workflow 'Basket'.*no such number"):
                await caller.start("Basket", bad, id="worse")
            with pytest.raises(errors.PayloadError, match=r"memo.*no such number"):
                await caller.start(Basket, id="worse", memo=bad)
        await untyped.signal("put", 7)  # does not fit: dropped by the run, which lives on
        assert await handle.query(Basket.count) == 0
        nobody = caller.handle("nobody")
        for call in (
            nobody.signal("x"),
            nobody.query("x"),
            nobody.update("x"),
            nobody.cancel(),
            nobody.terminate(),
            nobody.result(),
        ):
            with pytest.raises(errors.WorkflowNotFound, match="nobody"):
                await call


async def test_large_answers_travel_too(worker, caller):
    async with worker(Basket):
        handle = await caller.start(Basket, id="large")
        big = "é" * 40_000
        await handle.signal(Basket.put, big)
        assert await handle.query(Basket.count, big) == 1


async def test_cancel_reaches_code_activities_and_children(worker, caller):
    seen: list[str] = []
    started = asyncio.Event()

    @activity.defn
    async def forever() -> None:
        started.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            seen.append("activity")
            raise

    @workflow.defn
    async def child() -> None:
        await asyncio.sleep(3600)

    @workflow.defn
    async def parent() -> str:
        try:
            await asyncio.gather(forever(), child())
        except asyncio.CancelledError:
            seen.append("parent")
            await asyncio.sleep(0.001)  # cleaning up may wait
            raise
        return "?"

    async with worker(forever, child, parent):
        handle = await caller.start(parent, id="p")
        await started.wait()
        await handle.cancel("enough")
        with pytest.raises(errors.WorkflowFailedError, match="enough") as caught:
            await handle.result(timeout=20)
        assert caught.value.state == "CANCELLED"
        kids = [run async for run in caller.list(type="child")]
        with pytest.raises(errors.WorkflowFailedError):
            await caller.handle(kids[0].workflow_id).result(timeout=20)
    assert seen == ["parent", "activity"]


async def begun(handle) -> None:
    """A run that is cancelled before its first decision never runs its code: these tests want it to."""
    while not (await handle.describe()).decisions:
        await asyncio.sleep(0.01)


async def test_cancel_can_be_survived(worker, caller):
    @workflow.defn
    async def stubborn() -> str:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return "done anyway"
        return "?"

    async with worker(stubborn):
        handle = await caller.start(stubborn, id="s")
        await begun(handle)
        await handle.cancel()
        assert await handle.result(timeout=20) == "done anyway"


async def test_terminate_does_not_ask(worker, caller):
    @workflow.defn
    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass

    async with worker(stubborn):
        handle = await caller.start(stubborn, id="s")
        await begun(handle)
        await handle.cancel()
        await handle.terminate("gone")
        with pytest.raises(errors.WorkflowFailedError, match="gone") as caught:
            await handle.result(timeout=20)
        assert caught.value.state == "TERMINATED"


async def test_signal_with_start_and_update_with_start(worker, caller):
    async with worker(Basket):
        first = await caller.signal_with_start(Basket, id="sws", signal=Basket.put, signal_args=("a",))
        again = await caller.signal_with_start(Basket, id="sws", signal=Basket.put, signal_args=("b",))
        assert first.execution_id == again.execution_id
        assert await caller.update_with_start(Basket, id="sws", update=Basket.swap, update_args=("b", "c")) == ["a", "c"]
        assert await caller.update_with_start(Basket, id="uws", update=Basket.clear) == 0


async def test_function_workflows_receive(worker, caller):
    @workflow.defn
    async def adder(count: int) -> int:
        return sum([await workflow.receive("add", int) for _ in range(count)])

    async with worker(adder):
        handle = await caller.start(adder, 3, id="adder")
        await handle.signal("add", "not a number")  # skipped
        for n in (1, 2, 3):
            await handle.signal("add", n)
        assert await handle.result(timeout=20) == 6


async def test_answers_need_a_worker(caller):
    handle = await caller.start("later", id="later")
    with pytest.raises(errors.QueryTimeout, match="worker of queue 'default'"):
        await handle.query("x", timeout=0.1)
    with pytest.raises(errors.NoAnswer, match="same update id"):
        await handle.update("x", update_id="u", timeout=0.1)
    with pytest.raises(errors.NoAnswer, match="stored"):
        await handle.terminate(timeout=0.1)


async def test_the_short_way_does_not_overtake_the_mailbox(client, worker):
    """What one caller sends one after another arrives in that order, whichever way each message takes."""

    async def one(n: int) -> None:
        for item in ("a", "b"):  # through the mailbox: these are transactions of their own
            await client.signal_with_start(Basket, id=f"w{n}", signal=Basket.put, signal_args=(item,))
        swapped = await client.update_with_start(Basket, id=f"w{n}", update=Basket.swap, update_args=("b", "c"))
        assert swapped == ["a", "c"], n

    async with worker(Basket) as running:
        for start in range(0, 600, 6):
            await asyncio.gather(*(one(n) for n in range(start, start + 6)))
            running.scanner.nudge()
