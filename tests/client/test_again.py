"""Reset forks a run from one of its decisions; rerun starts a new one from the same input (L-4)."""

from __future__ import annotations

import asyncio

import pytest

from harvest import RetryPolicy, activity, errors, workflow
from harvest.testing import Replayer
from tests.client.test_attempts import AT_ONCE, Trader, reach
from tests.holds import install

calls: list[str] = []
gates: list[asyncio.Event] = []


@activity.defn(local=True)
async def price(item: str) -> int:
    calls.append(f"price {item}")
    return len(calls)


@activity.defn(mode="queue")
async def ship(item: str) -> str:
    calls.append(f"ship {item}")
    await gates[-1].wait()
    return f"shipped {item}"


@workflow.defn
class Order:
    def __init__(self) -> None:
        self.words: list[str] = []

    @workflow.run
    async def run(self, item: str) -> list[object]:
        paid = await price(item)
        dice = workflow.random().random()
        await workflow.wait_until(lambda: "go" in self.words)
        shipped = await ship(item)
        await workflow.wait_until(lambda: "end" in self.words)
        return [paid, dice, shipped, *self.words]

    @workflow.signal
    def say(self, word: str) -> None:
        self.words.append(word)

    @workflow.query
    def heard(self) -> list[str]:
        return self.words


async def types(handle):
    return [event["type"] async for event in handle.history()]


async def seen(handle, kind):
    async with asyncio.timeout(10):
        while kind not in await types(handle):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("signals", ["reapply", "drop"])
async def test_an_open_run_is_reset(worker, caller, signals):
    calls.clear()
    gates.append(asyncio.Event())
    gates[-1].set()
    async with worker(Order, price, ship):
        handle = await caller.start(Order, "book", id="o")
        await seen(handle, "ActivityCompleted")
        point = (await handle.describe()).decisions
        await handle.signal(Order.say, "go", idempotency_key="k")
        await handle.signal(Order.say, "more")
        async with asyncio.timeout(10):
            while (await types(handle)).count("ActivityCompleted") < 2:
                await asyncio.sleep(0.01)
        waiting = asyncio.create_task(handle.result())
        new = await handle.reset(point, signals=signals, reason="a bad step")
        if signals == "drop":
            assert await new.query(Order.heard) == []
            assert (await new.signal(Order.say, "go", idempotency_key="k")).workflow_id == "o"  # known: it does nothing
            await new.signal(Order.say, "go")
        await new.signal(Order.say, "end")
        found = await new.result()
        assert found[0] == 1
        assert found[2:] == ["shipped book", "go", *(["more"] if signals == "reapply" else []), "end"]
        assert await waiting == found  # who waited for the old one gets what came of it
        assert calls == ["price book", "ship book", "ship book"]
        old, fork = await handle.chain()
        assert (old.state, fork.link, fork.reset_decision) == ("TERMINATED", "reset", point)
        assert "a bad step" in old.failure.message


async def test_a_closed_run_is_reset(worker, caller):
    calls.clear()
    gates.append(asyncio.Event())
    gates[-1].set()
    async with worker(Order, price, ship):
        handle = await caller.start(Order, "book", id="o")
        for word in ("go", "end"):
            await handle.signal(Order.say, word)
        first = await handle.result()
        new = await handle.reset(1)
        second = await new.result()
        assert second[3:] == first[3:] == ["go", "end"]
        assert second[1] == first[1]  # the same dice
        assert await handle.result() == first
        assert [run.link for run in await new.chain()] == ["start", "reset"]


async def test_what_was_under_way_is_under_way_again(worker, caller):
    calls.clear()
    gates.append(asyncio.Event())
    async with worker(Order, price, ship):
        handle = await caller.start(Order, "book", id="o")
        await handle.signal(Order.say, "go")
        await seen(handle, "ActivityScheduled")
        async with asyncio.timeout(10):
            while "ship book" not in calls:
                await asyncio.sleep(0.01)
        new = await handle.reset()
        gates[-1].set()
        await new.signal(Order.say, "end")
        assert (await new.result())[2] == "shipped book"
        assert calls.count("ship book") == 2


async def test_a_paused_run_is_reset(worker, caller):
    async with worker(Trader):
        handle = await caller.start(Trader, id="t")
        assert await handle.query(Trader.attempt) == 1
        await handle.pause()
        new = await handle.reset()
        await new.signal(Trader.finish)
        assert await new.result() == ["attempt 1"]


async def test_a_reset_of_a_failed_attempt_is_about_that_attempt(worker, caller):
    """L-4: resets are not routed; the live attempt holds the workflow id."""
    async with worker(Trader):
        handle = await caller.start(Trader, id="t", retry=AT_ONCE)
        assert await handle.query(Trader.attempt) == 1
        await handle.signal(Trader.fail, 1)
        await reach(handle, 2)
        pinned = caller.handle("t", Trader, execution_id=handle.execution_id)
        with pytest.raises(errors.WorkflowAlreadyStarted, match="RUNNING"):
            await pinned.reset(1)
        await handle.terminate()
        new = await pinned.reset(1, signals="drop")
        assert await new.query(Trader.attempt) == 1
        await new.signal(Trader.finish)
        assert await new.result() == ["attempt 1"]


async def test_a_decision_that_waits_for_a_child_is_refused(worker, caller):
    @workflow.defn
    async def parent() -> str:
        await price("first")
        return (await workflow.start_child(Trader, id="kid").result())[0]

    async with worker(parent, Trader, price):
        handle = await caller.start(parent, id="p")
        await seen(handle, "ChildStarted")
        with pytest.raises(errors.ResetRefused, match="waited for the child 'kid'") as caught:
            await handle.reset()
        assert "choose decision 1" in caught.value.hint
        await handle.terminate()


async def test_resets_that_cannot_be(worker, caller):
    async with worker(Trader):
        handle = await caller.start(Trader, id="t")
        assert await handle.query(Trader.attempt) == 1
        with pytest.raises(errors.ResetRefused, match="decision 77") as caught:
            await handle.reset(77)
        assert "from 1 to 1" in caught.value.hint
        with pytest.raises(errors.ConfigError, match="reapply, drop"):
            await handle.reset(signals="keep")
        with pytest.raises(errors.WorkflowMisuse, match="entity"):
            await caller.handle("@Till:1").reset()
        with pytest.raises(errors.WorkflowNotFound):
            await caller.handle("nobody").reset()
        at_once = await caller.start(Trader, 2, id="u")
        with pytest.raises(errors.WorkflowFailedError):
            await at_once.result()
        with pytest.raises(errors.ResetRefused, match="no decision"):
            await at_once.reset()


async def test_a_rerun_is_a_new_run_of_the_same_input(worker, caller):
    async with worker(Trader):
        handle = await caller.start(Trader, 2, id="t", timeout=3600, memo={"a": 1}, search_attributes={"shop": "x"})
        with pytest.raises(errors.WorkflowFailedError):
            await handle.result()
        other = await handle.rerun(id="u")
        with pytest.raises(errors.WorkflowFailedError, match="attempt 1"):
            await other.result()
        described = await other.describe()
        assert described.input == [2]
        assert (described.memo, described.search_attributes, described.timeout) == ({"a": 1}, {"shop": "x"}, 3600.0)
        assert described.rerun_of_exec_id == handle.execution_id
        same = await handle.rerun()
        with pytest.raises(errors.WorkflowFailedError):
            await same.result()
        assert [run.link for run in await handle.chain()] == ["start", "rerun", "rerun"]


async def test_a_rerun_refuses_a_predecessor_and_names_the_latest(worker, caller):
    """L-4."""
    async with worker(Trader):
        handle = await caller.start(Trader, 9, id="t", retry=RetryPolicy(max_attempts=3, initial=0.001))
        with pytest.raises(errors.WorkflowFailedError):
            await handle.result()
        chain = await handle.chain()
        for run in chain[:2]:
            with pytest.raises(errors.RerunRefused, match=str(chain[2].execution_id)):
                await caller.handle("t", execution_id=run.execution_id).rerun()
        again = await caller.handle("t", execution_id=chain[2].execution_id).rerun()
        with pytest.raises(errors.WorkflowFailedError):
            await again.result()
        open_one = await caller.start(Trader, id="t")
        with pytest.raises(errors.WorkflowAlreadyStarted):
            await open_one.rerun()


@pytest.mark.parametrize("before", [True, False])
async def test_an_update_without_an_end_follows_a_reset(worker, caller, before):
    """Admitted before the chosen decision it is in the copied history, else it is mail again; it is answered once."""
    async with worker(Trader):
        handle = await caller.start(Trader, id="t")
        assert await handle.query(Trader.attempt) == 1
        point = (await handle.describe()).decisions
        waiting = [asyncio.create_task(handle.update(Trader.count, update_id=id)) for id in ("u", None)]
        async with asyncio.timeout(10):
            while (await types(handle)).count("UpdateAdmitted") < 2:
                await asyncio.sleep(0.01)
        new = await handle.reset(None if before else point)
        await new.signal(Trader.release)
        assert await asyncio.gather(*waiting) == [1, 1]
        assert await new.update(Trader.count, update_id="u") == 1
        assert (await types(new)).count("UpdateCompleted") == 2
        await new.terminate()


@pytest.mark.parametrize("signals", ["reapply", "drop"])
async def test_keys_act_once_in_every_fork(worker, caller, signals):
    async with worker(Trader):
        handle = await caller.start(Trader, id="t")
        await handle.signal(Trader.note, "a", idempotency_key="k")
        assert await handle.query(Trader.attempt) == 1
        point = (await handle.describe()).decisions
        first = await handle.reset(point, signals=signals)
        await first.terminate()
        second = await caller.handle("t", Trader, execution_id=handle.execution_id).reset(point, signals=signals)
        await second.signal(Trader.note, "a", idempotency_key="k")
        await second.signal(Trader.finish)
        assert await second.result() == ["a", "attempt 1"]


async def test_a_request_to_reset_does_not_follow_to_the_next_attempt(worker, caller, client, dsn, monkeypatch):
    """L-4: the attempt that it was about failed first, so there is nothing left to reset that way."""
    holds = install(monkeypatch)
    async with worker(Trader):
        handle = await caller.start(Trader, id="t", retry=AT_ONCE)
        assert await handle.query(Trader.attempt) == 1
        holds.arm("sealing")
        failing = asyncio.create_task(client.handle("t", Trader).signal(Trader.fail, 1))
        await holds.reached("sealing")
        was = (await handle.describe()).unread_messages
        resetting = asyncio.create_task(handle.reset(1, timeout=20))
        async with asyncio.timeout(10):
            while (await handle.describe()).unread_messages == was:
                await asyncio.sleep(0.01)
        holds.release("sealing")
        await failing
        with pytest.raises(errors.WorkflowClosed, match="FAILED"):
            await resetting
        await reach(handle, 2)
        await handle.signal(Trader.finish)
        assert await handle.result() == ["attempt 2"]


async def test_a_fork_is_replayed_like_any_run(worker, client):
    """Its history begins with that of another execution, and goes on as its own."""
    calls.clear()
    gates.append(asyncio.Event())
    async with worker(Order, price, ship, drain_timeout=0.05):
        handle = await client.start(Order, "book", id="o")
        await handle.signal(Order.say, "go")
        await seen(handle, "ActivityScheduled")
        async with asyncio.timeout(10):
            while "ship book" not in calls:
                await asyncio.sleep(0.01)
        new = await handle.reset()
        async with asyncio.timeout(10):
            while calls.count("ship book") < 2:
                await asyncio.sleep(0.01)
    gates[-1].set()
    assert (await Replayer([Order, price, ship]).replay_handle(new)).fits
    async with worker(Order, price, ship):
        assert await new.query(Order.heard) == ["go"]
        await new.signal(Order.say, "end")
        assert (await new.result())[2:] == ["shipped book", "go", "end"]
    for execution in await new.chain():
        found = await Replayer([Order, price, ship]).replay_handle(client.handle("o", execution_id=execution.execution_id))
        assert found.fits, found.error
