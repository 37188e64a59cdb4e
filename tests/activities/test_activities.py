"""Activities in their three modes: retries, time-outs, heartbeats, cancellation, threads, transactions."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta

import asyncpg
import pytest

from harvest import ApplicationError, RetryPolicy, activity, errors, workflow

FAST = RetryPolicy(initial=0.01, cap=0.02, max_attempts=4)
MODES = ("local", "eager", "queue")


@workflow.defn
async def once(name: str, mode: str, n: int = 0) -> str:
    try:
        return str(await workflow.execute_activity(name, n, mode=mode, retry=FAST))
    except errors.ActivityError as error:
        return f"{error.type} after {error.attempt}: {error.__cause__}"


@pytest.mark.parametrize("mode", MODES)
async def test_results(client, worker, mode):
    @activity.defn
    async def plus(n: int) -> int:
        info = activity.info()
        assert info.name == "plus" and info.workflow_id == "w" and info.attempt == 1
        return n + 1

    async with worker(once, plus):
        assert await client.execute(once, "plus", mode, 4, id="w") == "5"
        assert (await client.handle("w").describe()).activities == []


@pytest.mark.parametrize("mode", MODES)
async def test_retries_until_it_works(client, worker, mode):
    tries = []

    @activity.defn
    async def flaky(n: int) -> int:
        tries.append(activity.info().attempt)
        if len(tries) < 3:
            raise OSError("not yet")
        return len(tries)

    async with worker(once, flaky):
        assert await client.execute(once, "flaky", mode, id="w") == "3"
    assert tries == [1, 2, 3]


@pytest.mark.parametrize("mode", MODES)
async def test_retries_end(client, worker, mode):
    @activity.defn
    async def broken(n: int) -> None:
        raise OSError("never")

    @activity.defn
    async def final(n: int) -> None:
        raise ApplicationError("no use", type="Final", non_retryable=True)

    async with worker(once, broken, final):
        assert await client.execute(once, "broken", mode, id="a") == "OSError after 4: never"
        assert await client.execute(once, "final", mode, id="b") == "Final after 1: no use"


@pytest.mark.parametrize("mode", MODES)
async def test_start_to_close(client, worker, mode):
    @activity.defn
    async def slow() -> None:
        await asyncio.sleep(3600)

    @workflow.defn
    async def run() -> str:
        try:
            await workflow.execute_activity(
                slow, mode=mode, start_to_close=0.05, retry=RetryPolicy(max_attempts=2, initial=0.01)
            )
        except errors.ActivityError as error:
            return f"{error.type} after {error.attempt}"
        return "?"

    async with worker(run, slow):
        assert await client.execute(run, id="w") == "ActivityTimeout.start_to_close after 2"


@pytest.mark.parametrize("mode", MODES)
async def test_schedule_to_close_bounds_all_tries(client, worker, mode):
    @activity.defn
    async def broken() -> None:
        raise OSError("again")

    @workflow.defn
    async def run() -> str:
        retry = RetryPolicy(initial=0.01, factor=1)
        try:
            await workflow.execute_activity(broken, mode=mode, schedule_to_close=0.2, retry=retry)
        except errors.ActivityError as error:
            return f"{error.type} {error.attempt > 1}"
        return "?"

    async with worker(run, broken):
        assert await client.execute(run, id="w") == "OSError True"


async def test_schedule_to_start_without_a_worker(client, worker):
    @workflow.defn
    async def run() -> str:
        try:
            await workflow.execute_activity("far", queue="nobody", schedule_to_start=0.1)
        except errors.ActivityError as error:
            return error.type
        return "?"

    async with worker(run, scan_interval=timedelta(milliseconds=100)):
        assert await client.execute(run, id="w") == "ActivityTimeout.schedule_to_start"


@pytest.mark.parametrize("mode", ["eager", "queue"])
async def test_heartbeat_details_survive_a_retry(client, worker, mode):
    attempts = []

    @activity.defn
    async def steps() -> list[int]:
        done = list(activity.info().heartbeat_details)
        attempts.append(done)
        if not done:
            activity.heartbeat(1)
            await asyncio.sleep(0.1)
            activity.heartbeat(1, 2)
            await asyncio.sleep(3600)  # no more beats
        return [*done, 3]

    @workflow.defn
    async def run() -> list[int]:
        return await workflow.execute_activity(steps, mode=mode, heartbeat=0.3, retry=FAST)

    async with worker(run, steps):
        assert await client.execute(run, id="w") == [1, 2, 3]
    assert attempts == [[], [1, 2]]


@pytest.mark.parametrize("mode", MODES)
async def test_sync_activities_run_in_threads(client, worker, mode):
    @activity.defn
    def where() -> bool:
        assert activity.info().attempt == 1
        time.sleep(0.01)
        return threading.current_thread() is threading.main_thread()

    @workflow.defn
    async def run() -> bool:
        return await workflow.execute_activity(where, mode=mode)

    async with worker(run, where):
        assert await client.execute(run, id="w") is False


async def test_a_cancelled_thread_can_see_it(client, worker):
    seen = threading.Event()
    started = threading.Event()

    @activity.defn
    def busy() -> None:
        started.set()
        while not activity.is_cancelled():
            time.sleep(0.005)
        seen.set()

    @workflow.defn
    async def run() -> str:
        try:
            async with asyncio.timeout(0.1):
                await busy()
        except TimeoutError:
            return "gave up"
        return "?"

    async with worker(run, busy):
        assert await client.execute(run, id="w") == "gave up"
        assert await asyncio.to_thread(seen.wait, 10)


async def test_a_queue_of_other_workers(client, remote, worker):
    from harvest import Worker

    @activity.defn
    async def pay(amount: int) -> str:
        return f"{activity.info().queue}:{amount}"

    @workflow.defn
    async def run() -> str:
        return await workflow.execute_activity("pay", 5, queue="payments")

    async with worker(run), Worker(remote, definitions=[pay], queue="payments"):
        assert await client.execute(run, id="w") == "payments:5"


async def test_transactional_activities_commit_with_their_result(client, worker, dsn):
    connection = await asyncpg.connect(dsn)
    await connection.execute("create table public.ledger (id serial, amount int)")

    @activity.defn(transactional=True)
    async def book(connection: asyncpg.Connection, amount: int) -> int:
        found = await connection.fetchval("insert into ledger (amount) values ($1) returning id", amount)
        if activity.info().attempt == 1:
            raise OSError("lost after the insert")
        return found

    @workflow.defn
    async def run() -> int:
        return await workflow.execute_activity(book, 7, retry=FAST)

    async with worker(run, book):
        assert await client.execute(run, id="w") == 2
    assert await connection.fetchval("select array_agg(amount) from ledger") == [7]
    await connection.close()


async def test_fan_out_of_many(client, worker):
    @activity.defn
    async def echo(n: int) -> int:
        return n

    @workflow.defn
    async def fan(mode: str) -> int:
        return sum(await asyncio.gather(*(workflow.execute_activity(echo, n, mode=mode) for n in range(300))))

    async with worker(fan, echo, max_activity_slots=20):
        for mode in MODES:
            assert await client.execute(fan, mode, id=mode) == 300 * 299 // 2


async def test_an_unknown_activity_fails_the_decision_not_the_run(client, worker):
    @workflow.defn
    async def run() -> str:
        return await workflow.execute_activity("nope", 1)

    @activity.defn
    async def nope(n: int) -> str:
        return "found"

    async with worker(run):
        handle = await client.start(run, id="w")
        while (await handle.describe()).error is None:
            await asyncio.sleep(0.02)
        described = await handle.describe()
        assert described.state == "RUNNING"
        assert described.error is not None and "'nope' is not registered" in described.error.message
    async with worker(run, nope):  # the fix is deployed
        assert await handle.result(timeout=20) == "found"


async def test_a_result_that_does_not_fit_its_annotation(client, worker):
    @activity.defn
    async def liar(n: int) -> int:
        return "seven"  # type: ignore[return-value]

    async with worker(once, liar):
        assert "PayloadError after 4" in await client.execute(once, "liar", "eager", id="w")


async def test_the_time_of_a_plain_function_begins_when_a_thread_takes_it_up(client):
    import time

    from harvest import Worker, WorkerConfig

    @activity.defn(start_to_close=1.0, retry=RetryPolicy(max_attempts=1))
    def takes_its_time(n: int) -> int:
        time.sleep(0.3)
        return n

    @workflow.defn
    async def many() -> list[int]:
        return await asyncio.gather(*(takes_its_time(n) for n in range(10)))

    config = WorkerConfig(activity_threads=2)
    async with Worker(client, definitions=[many, takes_its_time], config=config):
        assert await client.execute(many, id="m") == list(range(10))
