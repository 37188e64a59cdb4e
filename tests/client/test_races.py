"""Acts against attempts, forced: what comes while an attempt is sealed, or its successor scheduled or taken up, acts once, and
on the attempt that counts (L-5 to L-7)."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from harvest import errors
from tests.client.test_attempts import AT_ONCE, Trader, reach
from tests.holds import Holds, install

ACTS = ("signal", "keyed signal", "update", "cancel", "terminate", "pause", "resume")


@pytest.fixture
def holds(monkeypatch: pytest.MonkeyPatch) -> Holds:
    return install(monkeypatch)


def act_on(handle, act):
    match act:
        case "signal":
            return handle.signal(Trader.note, "raced")
        case "keyed signal":
            return handle.signal(Trader.note, "raced", idempotency_key="k")
        case "update":
            return handle.update(Trader.now, timeout=20)
        case "cancel":
            return handle.cancel("raced")
        case "terminate":
            return handle.terminate("raced", timeout=20)
        case "pause":
            return handle.pause(timeout=20)
    return handle.resume()


def handed_over(client):
    """How much waits in the memory of this process's owner."""
    return sum(len(run.queue) for owner in client.site.owners for run in owner.runs.values())


async def under_way(acting, client, dsn, was):
    """Waits until the act is done, or waits itself for what becomes of it: in the mailbox, or in its owner's memory."""
    connection = await asyncpg.connect(dsn)
    try:
        async with asyncio.timeout(20):
            while not (acting.done() or handed_over(client)):
                if await connection.fetchval("select count(*) from harvest.messages") > was:
                    return
                await asyncio.sleep(0.005)
    finally:
        await connection.close()


async def messages(dsn):
    connection = await asyncpg.connect(dsn)
    count = await connection.fetchval("select count(*) from harvest.messages")
    await connection.close()
    return count


async def states(handle):
    return [run.state for run in await handle.chain()]


async def settled(handle, act, acting):
    """What must be true after the race, however it went."""
    match act:
        case "cancel" | "terminate":
            await acting
            with pytest.raises(errors.WorkflowFailedError, match="raced"):
                await handle.result(timeout=20)
            ended = "CANCELLED" if act == "cancel" else "TERMINATED"
            assert await states(handle) == ["FAILED", ended]
            return
        case "pause":
            await acting
            assert await states(handle) == ["FAILED", "PAUSED"]
            await handle.resume()
        case "update":
            assert await acting in (1, 2)
        case "keyed signal":
            await acting
            await handle.signal(Trader.note, "raced", idempotency_key="k")  # at least once, as callers do
        case _:
            await acting
    await reach(handle, 2)
    await handle.signal(Trader.finish)
    seen = ["raced"] if "signal" in act else []
    assert await handle.result(timeout=20) == ["first", *seen, "attempt 2"]
    assert await states(handle) == ["FAILED", "COMPLETED"]


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("point", ["sealing", "sealed", "claimed"])
async def test_an_act_while_the_engine_is_at(worker, caller, client, dsn, holds, point, act):
    async with worker(Trader):
        handle = await caller.start(Trader, id="t", retry=AT_ONCE)
        await handle.signal(Trader.note, "first")
        assert await handle.query(Trader.attempt) == 1
        holds.arm(point)
        failing = asyncio.create_task(client.handle("t", Trader).signal(Trader.fail, 1))
        await holds.reached(point)
        was = await messages(dsn)
        acting = asyncio.create_task(act_on(handle, act))
        await under_way(acting, client, dsn, was)
        holds.release(point)
        await failing
        await settled(handle, act, acting)


@pytest.mark.parametrize("act", ACTS)
async def test_an_act_whose_attempt_was_sealed_after_it_had_been_found(worker, caller, holds, act):
    """L-7: it did nothing to the attempt that it knew of, so it goes on to the next one, once."""
    async with worker(Trader):
        handle = await caller.start(Trader, id="t", retry=AT_ONCE)
        await handle.signal(Trader.note, "first")
        assert await handle.query(Trader.attempt) == 1
        pinned = caller.handle("t", Trader, execution_id=handle.execution_id)
        holds.arm("resolved")
        acting = asyncio.create_task(act_on(pinned, act))
        await holds.reached("resolved")
        await handle.signal(Trader.fail, 1)
        await reach(handle, 2)
        holds.release("resolved")
        await settled(handle, act, acting)


@pytest.mark.parametrize("act", ACTS)
async def test_an_act_whose_chain_ended_after_it_had_been_found(worker, caller, holds, act):
    """An unchanged target ends the walk: a final failure is an answer, not something to try again."""
    async with worker(Trader):
        handle = await caller.start(Trader, id="t")
        assert await handle.query(Trader.attempt) == 1
        pinned = caller.handle("t", Trader, execution_id=handle.execution_id)
        holds.arm("resolved")
        acting = asyncio.create_task(act_on(pinned, act))
        await holds.reached("resolved")
        await handle.signal(Trader.fail, 1)
        with pytest.raises(errors.WorkflowFailedError):
            await handle.result(timeout=20)
        holds.release("resolved")
        with pytest.raises(errors.WorkflowClosed, match="FAILED"):
            await acting


async def test_a_cancel_before_the_seal_spawns_nothing(worker, caller, client, holds, dsn):
    """L-6: the attempt fails with the request to cancel in its mailbox; the next one takes it before it begins."""
    async with worker(Trader):
        handle = await caller.start(Trader, id="t", retry=AT_ONCE)
        assert await handle.query(Trader.attempt) == 1
        holds.arm("sealing")
        failing = asyncio.create_task(client.handle("t", Trader).signal(Trader.fail, 1))
        await holds.reached("sealing")
        acts = [asyncio.create_task(handle.cancel("raced")) for _ in range(3)]
        await under_way(acts[0], client, dsn, 0)
        holds.release("sealing")
        await asyncio.gather(failing, *acts)
        with pytest.raises(errors.WorkflowFailedError, match="raced"):
            await handle.result(timeout=20)
        assert await states(handle) == ["FAILED", "CANCELLED"]
