"""The logical handle: a failed run begins again, and what is addressed to it reaches the live attempt (L-1 to L-9, R-8)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from harvest import ApplicationError, RetryPolicy, activity, errors, workflow
from harvest.ids import new_id

AT_ONCE = RetryPolicy(max_attempts=5, initial=0.001, jitter=0)


@workflow.defn
class Trader:
    """Fails when it is told to; what it saw is what this attempt saw."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.failing: str | None = None
        self.done = False
        self.free = False

    @workflow.run
    async def run(self, until: int = 1) -> list[str]:
        if workflow.info().attempt < until:
            raise ValueError(f"attempt {workflow.info().attempt}")
        await workflow.wait_until(lambda: self.failing is not None or self.done)
        if self.failing is not None and not self.done:
            raise ApplicationError("told to", type=self.failing)
        return [*self.seen, f"attempt {workflow.info().attempt}"]

    @workflow.signal
    def note(self, what: str) -> None:
        self.seen.append(what)

    @workflow.signal
    def fail(self, attempt: int, kind: str = "Told") -> None:
        if attempt == workflow.info().attempt:
            self.failing = kind

    @workflow.signal
    def finish(self) -> None:
        self.done = True

    @workflow.signal
    def release(self) -> None:
        self.free = True

    @workflow.query
    def attempt(self) -> int:
        return workflow.info().attempt

    @workflow.update
    async def count(self) -> int:
        await workflow.wait_until(lambda: self.free)
        return workflow.info().attempt

    @workflow.update
    def now(self) -> int:
        return workflow.info().attempt


async def reach(handle, attempt):
    """Waits until this attempt answers."""
    async with asyncio.timeout(20):
        while True:
            try:
                if await handle.query(Trader.attempt) >= attempt:
                    return
            except (errors.QueryFailed, errors.WorkflowNotFound):
                pass
            await asyncio.sleep(0.01)


async def test_a_failed_run_begins_again(worker, caller):
    async with worker(Trader):
        handle = await caller.start(Trader, 3, id="t", retry=AT_ONCE)
        await handle.signal(Trader.finish)
        assert await handle.result() == ["attempt 3"]
        chain = await handle.chain()
        assert [(run.link, run.attempt, run.state) for run in chain] == [
            ("start", 1, "FAILED"),
            ("retry", 2, "FAILED"),
            ("retry", 3, "COMPLETED"),
        ]
        assert chain[1].came_from == chain[0].execution_id
        first = caller.handle("t", Trader, execution_id=chain[0].execution_id)
        # L-4: describing is about this very attempt, the result about the logical run (L-3).
        described = await first.describe()
        assert described.state == "FAILED"
        assert described.retried_as == chain[1].execution_id
        assert await first.result() == ["attempt 3"]
        assert (await first.result_snapshot()).state == "COMPLETED"
        events = [event async for event in first.history()]
        assert [e["type"] for e in events[-2:]] == ["RunFailed", "WorkflowRetryScheduled"]
        assert events[-1]["event"]["execution_id"] == str(chain[1].execution_id)


async def test_a_policy_of_the_definition(worker, caller):
    @workflow.defn(retry=RetryPolicy(max_attempts=3, initial=0.001, non_retryable=("Fatal",)))
    async def shaky(good: int, kind: str) -> int:
        if workflow.info().attempt < good:
            raise ApplicationError("not yet", type=kind)
        return workflow.info().attempt

    async with worker(shaky):
        assert await caller.execute(shaky, 3, "Soft", id="a") == 3
        with pytest.raises(errors.WorkflowFailedError, match="not yet") as caught:
            await caller.execute(shaky, 4, "Soft", id="b")
        assert caught.value.type == "Soft"
        assert len(await caller.handle("b").chain()) == 3
        with pytest.raises(errors.WorkflowFailedError):
            await caller.execute(shaky, 2, "Fatal", id="c")
        assert len(await caller.handle("c").chain()) == 1
        with pytest.raises(errors.WorkflowFailedError):
            await caller.execute(shaky, 2, "Soft", id="d", retry=RetryPolicy(max_attempts=1))


@activity.defn(retry=RetryPolicy(max_attempts=1))
async def charge(final: bool) -> None:
    raise ApplicationError("declined", type="Declined", non_retryable=final)


@workflow.defn(retry=RetryPolicy(max_attempts=3, initial=0.001, non_retryable=("Declined",)))
async def paying(final: bool) -> None:
    await charge(final)


@workflow.defn(retry=RetryPolicy(max_attempts=3, initial=0.001))
async def paying_on(final: bool) -> None:
    await charge(final)


async def test_what_caused_the_failure_counts(worker, caller):
    async with worker(paying, paying_on, charge):
        for flow, final, attempts in ((paying, False, 1), (paying_on, True, 1), (paying_on, False, 3)):
            name = f"{flow.definition.name}-{final}"
            with pytest.raises(errors.WorkflowFailedError, match="declined"):
                await caller.execute(flow, final, id=name)
            assert len(await caller.handle(name).chain()) == attempts


async def test_the_ceiling_of_the_fleet(worker, caller):
    async with worker(Trader, max_workflow_attempts=2):
        handle = await caller.start(Trader, 9, id="t", retry=RetryPolicy(initial=0.001))
        with pytest.raises(errors.WorkflowFailedError, match="attempt 2"):
            await handle.result()


async def test_signals_are_delivered_again_in_their_order(worker, caller):
    """L-5: what a failed attempt had seen, also in the decision in which it failed, and what it had not."""
    async with worker(Trader):
        handle = await caller.start(Trader, id="t", retry=AT_ONCE)
        for n in range(3):
            await handle.signal(Trader.note, f"plain {n}")
            await handle.signal(Trader.note, f"keyed {n}", idempotency_key=f"k{n}")
        assert await handle.query(Trader.attempt) == 1
        await handle.signal(Trader.fail, 1)
        await reach(handle, 2)
        await handle.signal(Trader.note, "later")
        repeated = await handle.signal(Trader.note, "keyed again", idempotency_key="k1")
        assert repeated.routed_execution_id is not None
        await handle.signal(Trader.fail, 2)
        await reach(handle, 3)
        await handle.signal(Trader.note, "keyed again", idempotency_key="k2")
        await handle.signal(Trader.finish)
        expected = [f"{kind} {n}" for n in range(3) for kind in ("plain", "keyed")] + ["later", "attempt 3"]
        assert await handle.result() == expected


async def test_signals_reach_the_next_attempt_while_it_waits(worker, caller):
    async with worker(Trader):
        handle = await caller.start(Trader, 2, id="t", retry=RetryPolicy(initial=0.5, jitter=0))
        async with asyncio.timeout(10):
            while (await caller.handle("t").describe()).attempt != 2:
                await asyncio.sleep(0.01)
        pinned = caller.handle("t", Trader, execution_id=handle.execution_id)
        assert (await pinned.result_snapshot()).state == "RUNNING"
        answer = await pinned.signal(Trader.note, "early")
        assert answer.routed_execution_id == (await caller.handle("t").describe()).execution_id
        await handle.signal(Trader.finish)
        assert await handle.result() == ["early", "attempt 2"]


async def test_only_a_signal_that_was_routed_says_so(worker, caller):
    """L-8."""
    async with worker(Trader):
        handle = await caller.start(Trader, id="t")
        assert (await handle.signal(Trader.note, "x")).routed_execution_id is None
        pinned = caller.handle("t", Trader, execution_id=handle.execution_id)
        assert (await pinned.signal(Trader.finish)).routed_execution_id is None


@pytest.mark.parametrize("given", [None, "u-1"])
async def test_an_admitted_update_survives_a_retry(worker, caller, given):
    """R-8: nobody answered it yet, so the next attempt does."""
    async with worker(Trader):
        handle = await caller.start(Trader, id="t", retry=AT_ONCE)
        waiting = asyncio.create_task(handle.update(Trader.count, update_id=given))
        async with asyncio.timeout(10):
            while not any(e["type"] == "UpdateAdmitted" for e in [e async for e in handle.history()]):
                await asyncio.sleep(0.01)
        await handle.signal(Trader.fail, 1)
        await reach(handle, 2)
        await handle.signal(Trader.release)
        assert await waiting == 2


async def test_an_update_result_stays_readable_and_acts_once(worker, caller):
    async with worker(Trader):
        handle = await caller.start(Trader, id="t", retry=AT_ONCE)
        assert await handle.update(Trader.now, update_id="u") == 1
        await handle.signal(Trader.fail, 1)
        await reach(handle, 2)
        assert await handle.update(Trader.now, update_id="u") == 1
        assert await handle.update(Trader.now, update_id="v") == 2
        pinned = caller.handle("t", Trader, execution_id=handle.execution_id)
        assert await pinned.update(Trader.now, update_id="u") == 1
        assert await pinned.update(Trader.now, update_id="w") == 2
        await handle.signal(Trader.fail, 2)
        await reach(handle, 3)
        assert [await handle.update(Trader.now, update_id=name) for name in "uvwx"] == [1, 2, 2, 3]


async def test_cancel_stops_a_queued_retry(worker, caller):
    """L-6."""
    async with worker(Trader):
        handle = await caller.start(Trader, 2, id="t", retry=RetryPolicy(initial=timedelta(hours=1)))
        await until(handle, lambda runs: len(runs) == 2)
        await caller.handle("t", execution_id=handle.execution_id).cancel("enough")
        with pytest.raises(errors.WorkflowFailedError, match="enough") as caught:
            await handle.result(timeout=10)
        assert caught.value.state == "CANCELLED"
        assert len(await handle.chain()) == 2


async def test_a_cancelled_run_that_fails_is_not_retried(worker, caller):
    @workflow.defn(retry=RetryPolicy(initial=0.001))
    async def stubborn() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            raise ValueError("while cleaning up")

    async with worker(stubborn):
        handle = await caller.start(stubborn, id="s")
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            while not [e async for e in handle.history()]:
                await asyncio.sleep(0.01)
        await handle.cancel()
        with pytest.raises(errors.WorkflowFailedError, match="cleaning up"):
            await handle.result(timeout=10)
        assert len(await handle.chain()) == 1


async def test_terminate_ends_the_live_attempt(worker, caller):
    async with worker(Trader):
        handle = await caller.start(Trader, 2, id="t", retry=RetryPolicy(initial=timedelta(hours=1)))
        await until(handle, lambda runs: len(runs) == 2)
        await caller.handle("t", execution_id=handle.execution_id).terminate("stop it")
        assert [run.state for run in await handle.chain()] == ["FAILED", "TERMINATED"]


async def until(handle, good):
    async with asyncio.timeout(20):
        while not good(await handle.chain()):
            await asyncio.sleep(0.01)


async def test_the_chain_deadline_ends_all_attempts(worker, client):
    async with worker(Trader):
        handle = await client.start(Trader, 99, id="t", retry=RetryPolicy(initial=0.2, factor=1), chain_timeout=0.7)
        with pytest.raises(errors.WorkflowFailedError) as caught:
            await handle.result(timeout=20)
        assert caught.value.state in ("FAILED", "TIMED_OUT")
        assert 2 <= len(await handle.chain()) <= 5
        open_ended = await client.start(Trader, id="u", retry=AT_ONCE, chain_timeout=0.3)
        with pytest.raises(errors.WorkflowFailedError) as caught:
            await open_ended.result(timeout=20)
        assert caught.value.state == "TIMED_OUT"


async def test_each_attempt_has_its_own_timeout(worker, client):
    async with worker(Trader):
        handle = await client.start(Trader, 2, id="t", retry=RetryPolicy(initial=0.4, jitter=0), timeout=0.5)
        with pytest.raises(errors.WorkflowFailedError) as caught:
            await handle.result(timeout=20)
        assert caught.value.state == "TIMED_OUT"
        one, two = await handle.chain()
        assert (two.closed_at - one.created_at).total_seconds() > 0.8
        assert [(await client.handle("t", execution_id=e.execution_id).describe()).timeout for e in (one, two)] == [0.5, 0.5]


async def test_a_parent_hears_of_the_last_attempt(worker, caller):
    @workflow.defn
    async def parent(good: int) -> list[str]:
        child = workflow.start_child(Trader, good, id="child", retry=RetryPolicy(max_attempts=3, initial=0.001))
        await child.signal(Trader.finish)
        return await child.result()

    async with worker(Trader, parent):
        assert await caller.execute(parent, 3, id="p") == ["attempt 3"]
        with pytest.raises(errors.WorkflowFailedError, match="attempt 3"):
            await caller.execute(parent, 4, id="q")


async def test_another_run_of_the_id_is_not_reached_by_an_old_attempt(worker, caller):
    """A handle on an execution is about its logical run, whoever has the workflow id now."""
    async with worker(Trader):
        old = await caller.start(Trader, 9, id="t", retry=RetryPolicy(max_attempts=2, initial=0.001))
        with pytest.raises(errors.WorkflowFailedError):
            await old.result()
        new = await caller.start(Trader, id="t")
        pinned = caller.handle("t", Trader, execution_id=old.execution_id)
        for act in (pinned.signal(Trader.finish), pinned.cancel(), pinned.terminate(), pinned.pause(), pinned.resume()):
            with pytest.raises(errors.WorkflowClosed, match="FAILED"):
                await act
        with pytest.raises(errors.WorkflowClosed):
            await pinned.update(Trader.now)
        await new.signal(Trader.finish)
        assert await new.result() == ["attempt 1"]
        wrong = caller.handle("other", Trader, execution_id=old.execution_id)
        with pytest.raises(errors.WorkflowNotFound, match="'t'"):
            await wrong.signal(Trader.finish)
        with pytest.raises(errors.WorkflowNotFound):
            await caller.handle("t", Trader, execution_id=new_id()).signal(Trader.finish)


async def test_continue_as_new_keeps_the_policy(worker, caller):
    @workflow.defn
    async def again(round: int) -> str:
        if round == 0:
            workflow.continue_as_new(1)
        if workflow.info().attempt < 3:
            raise ValueError("no")
        return f"round {round}, attempt {workflow.info().attempt}"

    async with worker(again):
        handle = await caller.start(again, 0, id="a", retry=RetryPolicy(initial=0.001))
        assert await handle.result() == "round 1, attempt 3"
        assert [run.link for run in await handle.chain()] == ["start", "continued", "retry", "retry"]


async def test_a_chain_of_three_hundred_fails_closed(worker, client):
    """L-7."""
    async with worker(Trader, max_workflow_attempts=1000):
        handle = await client.start(Trader, 300, id="t", retry=RetryPolicy(initial=0.001, cap=0.001))
        async with asyncio.timeout(120):
            while (await client.handle("t").describe()).attempt < 300:
                await asyncio.sleep(0.05)
        pinned = client.handle("t", Trader, execution_id=handle.execution_id)
        acts = [
            pinned.signal(Trader.note, "x"),
            pinned.signal(Trader.note, "x", idempotency_key="k"),
            pinned.query(Trader.attempt),
            pinned.update(Trader.now),
            pinned.cancel(),
            pinned.terminate(),
            pinned.pause(),
            pinned.resume(),
            pinned.result(),
            pinned.result_snapshot(),
        ]
        for act in acts:
            with pytest.raises(errors.RetryChainTooLong, match="256"):
                await act
        # The workflow id needs no walk.
        await client.handle("t", Trader).signal(Trader.finish)
        assert await client.handle("t", Trader).result() == ["attempt 300"]


async def test_the_next_attempt_is_found_in_the_index(worker, client, dsn):
    """L-9."""
    async with worker(Trader):
        handle = await client.start(Trader, 2, id="t", retry=RetryPolicy(max_attempts=2, initial=0.001))
        await handle.signal(Trader.finish)
        await handle.result()
    connection = await asyncpg.connect(dsn)
    await connection.execute("vacuum analyze harvest.executions")
    await connection.execute("set enable_seqscan = off")
    plan = await connection.fetch(
        "explain select execution_id from harvest.executions where retry_of_exec_id = $1", handle.execution_id
    )
    await connection.close()
    assert any("Index Only Scan using executions_retries" in row[0] for row in plan), plan


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"retry": 3}, errors.DefinitionError, "expected a RetryPolicy, got 3"),
        ({"retry": {"max_attempts": 3}}, errors.DefinitionError, "expected a RetryPolicy"),
        ({"chain_timeout": -1}, errors.DefinitionError, "chain_timeout"),
        ({"chain_timeout": "soon"}, errors.DefinitionError, "chain_timeout"),
    ],
)
async def test_bad_policies_are_named_before_anything_is_stored(worker, client, options, error, said):
    async with worker(Trader):
        with pytest.raises(error, match=said):
            await client.start(Trader, id="t", **options)
        assert await client.counts() == {}
    with pytest.raises(errors.DefinitionError, match="expected a RetryPolicy"):
        workflow.defn(retry=5)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("factor", float("inf")),
        ("factor", float("nan")),
        ("factor", True),
        ("factor", "2"),
        ("factor", 0.5),
        ("factor", 1e308),
        ("max_attempts", True),
        ("max_attempts", 2**31),
        ("max_attempts", -1),
        ("jitter", "x"),
        ("jitter", 1.0),
        ("initial", None),
        ("initial", -1),
        ("cap", None),
        ("non_retryable", "Fatal"),
        ("non_retryable", None),
        ("non_retryable", (3,)),
    ],
)
def test_policies_that_cannot_be_are_refused_where_they_are_written(field, value):
    with pytest.raises(errors.DefinitionError, match=f"RetryPolicy.{field}"):
        RetryPolicy(**{field: value})


@workflow.defn
class Tally:
    """Fails at its sixth signal, then at its second: what it re-reads is not what it had read."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    @workflow.run
    async def run(self) -> list[int]:
        await workflow.wait_until(lambda: len(self.seen) >= 10)
        return self.seen

    @workflow.signal
    def note(self, n: int) -> None:
        self.seen.append(n)
        if len(self.seen) == {1: 6, 2: 2, 3: 8}.get(workflow.info().attempt):
            raise ValueError("full")


@pytest.mark.parametrize("keyed", [False, True])
async def test_signals_keep_their_order_over_attempts_that_fail_early(worker, caller, keyed):
    handle = await caller.start(Tally, id="t", retry=AT_ONCE)
    for n in range(10):
        await handle.signal(Tally.note, n, idempotency_key=f"k{n}" if keyed else None)
    async with worker(Tally):
        assert await handle.result(timeout=20) == list(range(10))


async def test_what_a_run_sends_to_one_that_just_fails_arrives(worker, caller):
    """The same statement may close an attempt and write to its workflow id."""

    @workflow.defn
    async def to_itself(how: str, round: int) -> str:
        if workflow.info().attempt == 1 and round == 0:
            sending = asyncio.ensure_future(workflow.external(workflow.info().workflow_id).signal("x", "hello"))
            await asyncio.sleep(0)
            assert not sending.done()
            if how == "continue":
                workflow.continue_as_new(how, 1)
            raise ValueError("fails in the decision that sends")
        try:
            return await asyncio.wait_for(workflow.receive("x", str), 5)
        except TimeoutError:
            return "lost"

    async with worker(to_itself):
        for how in ("continue", "retry"):
            assert await caller.execute(to_itself, how, 0, id=how, retry=AT_ONCE) == "hello"


async def test_update_ids_are_of_one_logical_run(worker, caller):
    async with worker(Trader):
        old = await caller.start(Trader, 2, id="t", retry=AT_ONCE)
        assert await old.update(Trader.now, update_id="same") == 2
        await old.signal(Trader.finish)
        await old.result()
        new = await caller.start(Trader, id="t", retry=AT_ONCE)
        pinned = caller.handle("t", Trader, execution_id=new.execution_id)
        assert await pinned.update(Trader.now, update_id="same") == 1
        waiting = asyncio.create_task(new.update(Trader.count, update_id="slow"))
        async with asyncio.timeout(10):
            while sum(e["type"] == "UpdateAdmitted" for e in [e async for e in new.history()]) < 2:
                await asyncio.sleep(0.01)
        await new.signal(Trader.fail, 1)
        await reach(new, 2)
        await new.signal(Trader.release)
        assert await waiting == 2 == await pinned.update(Trader.count, update_id="slow")
        assert await new.update(Trader.now, update_id="same") == 1


async def test_an_update_whose_owner_left_is_answered_by_the_next_attempt(worker, client):
    """R-8: whoever asked follows it to where it went."""
    async with worker(Trader):
        handle = await client.start(Trader, id="t", retry=AT_ONCE)
        waiting = asyncio.create_task(handle.update(Trader.count, timeout=20))
        async with asyncio.timeout(10):
            while not any(e["type"] == "UpdateAdmitted" for e in [e async for e in handle.history()]):
                await asyncio.sleep(0.01)
    async with worker(Trader):
        await handle.signal(Trader.fail, 1)
        await reach(handle, 2)
        await handle.signal(Trader.release)
        assert await waiting == 2


async def test_attributes_of_the_failing_decision_stay(worker, caller):
    @workflow.defn
    async def marking() -> None:
        workflow.upsert_search_attributes(**{f"a{workflow.info().attempt}": True})
        if workflow.info().attempt == 1:
            raise ValueError("no")

    async with worker(marking):
        handle = await caller.start(marking, id="m", retry=AT_ONCE, search_attributes={"shop": "x"})
        await handle.result()
        assert (await caller.handle("m").describe()).search_attributes == {"shop": "x", "a1": True, "a2": True}


async def test_the_deadline_of_the_chain_is_told_whole(worker, caller):
    async with worker(Trader):
        handle = await caller.start(Trader, 3, id="t", retry=AT_ONCE, chain_timeout=600)
        await handle.signal(Trader.finish)
        await handle.result()
        assert (await caller.handle("t").describe()).chain_timeout == pytest.approx(600, abs=0.01)
