"""E-1, E-2: entities through the public surface, in both modes, by the short way and through the mailbox."""

from __future__ import annotations

import asyncio
import contextvars
import uuid

import pytest
from pydantic import BaseModel, Field, SecretStr

from harvest import ApplicationError, activity, entity, workflow
from harvest.errors import (
    ConfigError,
    DefinitionError,
    EntityNotFound,
    NoAnswer,
    OperationFailed,
    OperationRejected,
    PayloadError,
    PayloadTooLarge,
    QueryFailed,
    UnknownHandlerError,
    UnknownWorkflowError,
    WorkflowFailedError,
    WorkflowMisuse,
)
from harvest.hub.queries import Query


class Line(BaseModel):
    sku: str
    quantity: int = Field(gt=0)


class CartState(BaseModel):
    lines: list[Line] = []
    paid: int = 0
    note: str = ""


class SoldOut(ApplicationError):
    def __init__(self, sku: str) -> None:
        super().__init__(f"no {sku} left", sku)


@activity.defn(local=True)
async def price(sku: str) -> int:
    return len(sku) * 100


@activity.defn
async def charge(amount: int) -> int:
    if amount > 5_000:
        raise ApplicationError("card declined", type="Declined", non_retryable=True)
    return amount


@entity.defn
class Cart:
    state: CartState

    @entity.operation
    def add(self, line: Line) -> int:
        self.state.lines.append(line)
        return len(self.state.lines)

    @entity.operation(raises=(SoldOut,))
    async def reserve(self, sku: str) -> None:
        self.state.note = "half done"
        await price(sku)
        raise SoldOut(sku)

    @entity.operation
    async def pay(self) -> int:
        self.state.note = "paying"
        prices = await asyncio.gather(*(price(line.sku) for line in self.state.lines))
        self.state.paid += await charge(sum(prices))
        self.state.note = ""
        return self.state.paid

    @entity.operation
    async def sleep(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        self.state.note += "z"
        return self.state.note

    @entity.operation
    def spoil(self) -> None:
        self.state.lines = "not a list"  # type: ignore[assignment]

    @entity.operation
    def grow(self, size: int) -> None:
        self.state.note = "x" * size

    @entity.operation
    async def close(self) -> str:
        entity.delete()
        return entity.info().key

    @entity.operation
    def close_badly(self) -> None:
        entity.delete()
        raise ValueError("not yet")

    @entity.query
    def total(self) -> int:
        return sum(line.quantity for line in self.state.lines)

    @entity.query
    def cheat(self) -> int:
        self.state.paid += 1
        return self.state.paid


async def test_operations_answer_and_keep_their_state(caller, worker):
    async with worker(Cart, price, charge):
        cart = caller.entity(Cart, "cart-7")
        assert await cart.call(Cart.add, Line(sku="apple", quantity=2)) == 1
        assert await cart.call(Cart.add, Line(sku="pear", quantity=1)) == 2
        assert await cart.query(Cart.total) == 3
        assert await cart.call(Cart.pay) == 900
        state = await cart.state()
        assert isinstance(state, CartState) and state.paid == 900 and state.note == ""
        plain = caller.entity("Cart", "cart-7")
        assert await plain.call("add", {"sku": "fig", "quantity": 4}) == 3
        assert (await plain.state())["lines"][2] == {"sku": "fig", "quantity": 4}


async def test_after_an_error_the_state_is_the_one_before(caller, worker):
    async with worker(Cart, price, charge):
        cart = caller.entity(Cart, "k")
        await cart.call(Cart.add, Line(sku="apple", quantity=1))
        before = await cart.state()
        with pytest.raises(SoldOut, match="no fig left") as caught:
            await cart.call(Cart.reserve, "fig")
        assert caught.value.details == ("fig",)
        with pytest.raises(OperationFailed, match="lines") as spoiled:
            await cart.call(Cart.spoil)
        assert spoiled.value.type == "PayloadError"
        with pytest.raises(OperationFailed, match="8,388,608"):
            await cart.call(Cart.grow, 9 * 1024 * 1024)
        with pytest.raises(OperationFailed, match="not yet"):
            await cart.call(Cart.close_badly)
        await cart.call(Cart.add, Line(sku="x" * 60, quantity=1))
        with pytest.raises(OperationFailed, match="card declined"):
            await cart.call(Cart.pay)
        after = await cart.state()
        assert (after.note, after.paid, after.lines[0]) == (before.note, before.paid, before.lines[0])


async def test_bad_calls_are_refused_before_anything_is_stored(caller, worker):
    async with worker(Cart, price, charge):
        cart = caller.entity(Cart, "k")
        with pytest.raises(PayloadError, match="quantity"):
            await cart.call(Cart.add, {"sku": "a", "quantity": 0})
        with pytest.raises(PayloadError, match="takes 1 argument"):
            await cart.call(Cart.add)
        with pytest.raises(UnknownHandlerError, match="no operation named 'buy'"):
            await cart.call("buy")
        with pytest.raises(DefinitionError, match="not an operation"):
            await cart.call(Cart.total)
        plain = caller.entity("Cart", "k")
        with pytest.raises(OperationRejected, match="no operation named 'buy'"):
            await plain.call("buy")
        with pytest.raises(OperationRejected, match="quantity"):
            await plain.call("add", {"sku": "a", "quantity": -1})
        with pytest.raises(UnknownWorkflowError, match="Basket"):
            await caller.entity("Basket", "k").call("add")
        with pytest.raises(PayloadTooLarge):
            await cart.call(Cart.reserve, "x" * (2 * 1024 * 1024 + 1))
        for key in ("", "a" * 600, "nul\x00"):
            with pytest.raises(PayloadError, match="key"):
                caller.entity(Cart, key)
        with pytest.raises(PayloadError, match="idempotency_key"):
            await cart.call(Cart.close, idempotency_key="~mine")
        with pytest.raises(PayloadError, match="must not begin with '@'"):
            await caller.start("anything", id="@Cart:k")
        with pytest.raises(ConfigError, match="page"):
            async for _ in caller.entities(Cart, page=0):
                pass


async def test_what_is_not_there(caller, worker):
    async with worker(Cart, price, charge):
        cart = caller.entity(Cart, "nobody")
        for question in (cart.query(Cart.total), cart.state(), cart.delete(), cart.describe()):
            with pytest.raises(EntityNotFound, match="nobody"):
                await question
        assert [e async for e in caller.entities(Cart)] == []


async def test_a_query_that_changes_the_state_is_an_error_and_undone(caller, worker):
    async with worker(Cart, price, charge):
        cart = caller.entity(Cart, "k")
        await cart.call(Cart.add, Line(sku="a", quantity=1))
        with pytest.raises(QueryFailed, match="changed the state"):
            await cart.query(Cart.cheat)
        assert (await cart.state()).paid == 0
        assert await cart.call(Cart.pay) == 100


async def test_a_key_acts_once(caller, worker):
    async with worker(Cart, price, charge):
        cart = caller.entity(Cart, "k")
        line = Line(sku="a", quantity=1)
        answers = await asyncio.gather(*(cart.call(Cart.add, line, idempotency_key="same") for _ in range(5)))
        assert answers == [1] * 5
        assert await cart.call(Cart.add, line, idempotency_key="other") == 2
        assert await cart.call(Cart.add, line, idempotency_key="same") == 1
        for _ in range(2):
            with pytest.raises(SoldOut):
                await cart.call(Cart.reserve, "fig", idempotency_key="bad")
        assert len((await cart.state()).lines) == 2


async def test_operations_run_one_at_a_time_and_queries_see_what_is_durable(caller, worker):
    async with worker(Cart, price, charge):
        cart = caller.entity(Cart, "k")
        await cart.call(Cart.add, Line(sku="a", quantity=1))
        calls = [asyncio.create_task(cart.call(Cart.sleep, 0.05)) for _ in range(4)]
        await asyncio.sleep(0.02)
        assert await cart.query(Cart.total) == 1  # answered while one is under way
        assert sorted(await asyncio.gather(*calls)) == ["z", "zz", "zzz", "zzzz"]


async def test_delete_ends_it_and_the_next_call_begins_anew(caller, worker):
    async with worker(Cart, price, charge):
        cart = caller.entity(Cart, "k")
        line = Line(sku="a", quantity=1)
        assert await cart.call(Cart.add, line) == 1
        first = await cart.describe()
        assert await cart.call(Cart.close) == "k"
        with pytest.raises(EntityNotFound):
            await cart.state()
        assert await cart.call(Cart.add, line) == 1
        assert (await cart.describe()).execution_id != first.execution_id
        await cart.delete()
        # Those that come while it is being deleted are done before, or by the next one: none is lost.
        await cart.call(Cart.add, line)
        calls = [asyncio.create_task(cart.call(Cart.add, line)) for _ in range(10)]
        deleted = asyncio.create_task(cart.delete())
        calls += [asyncio.create_task(cart.call(Cart.add, line)) for _ in range(10)]
        answers = await asyncio.gather(*calls)
        await deleted
        assert any(sorted(answers) == sorted([*range(2, 2 + n), *range(1, 21 - n)]) for n in range(21)), answers
        await cart.call(Cart.add, line)
        assert [e.key async for e in caller.entities(Cart)] == ["k"]


async def test_it_survives_its_worker(client, remote, worker):
    async with worker(Cart, price, charge):
        cart = client.entity(Cart, "k")
        for n in range(60):
            await cart.call(Cart.add, Line(sku="a" * 50, quantity=n + 1))
        sleeping = asyncio.create_task(remote.entity(Cart, "k").call(Cart.sleep, 0.3))
        while (await remote.handle("@Cart:k").describe()).due_at is None:
            await asyncio.sleep(0.01)
        waiting = asyncio.create_task(remote.entity(Cart, "k").call(Cart.add, Line(sku="later", quantity=1)))
    async with worker(Cart, price, charge):
        assert await sleeping == "z"
        assert await waiting == 61
        state = await remote.entity(Cart, "k").state()
        assert [line.quantity for line in state.lines] == [*range(1, 61), 1] and state.note == "z"


@workflow.defn
async def shop(key: str) -> list[object]:
    cart = workflow.entity(Cart, key)
    counts = [await cart.call(Cart.add, Line(sku="a", quantity=n + 1)) for n in range(3)]
    try:
        await cart.call(Cart.reserve, "fig")
    except SoldOut as exc:
        counts.append(exc.details[0])
    paid = await workflow.entity("Cart", key).call("pay")
    await asyncio.sleep(0.01)
    await cart.delete()
    return [*counts, paid]


class Seats(BaseModel):
    taken: int = 0
    last: str = ""


@entity.defn
class Flight:
    state: Seats

    @entity.operation
    async def book(self, cart: str) -> int:
        self.state.taken += 1
        self.state.last = cart
        return await workflow.entity(Cart, cart).call(Cart.add, Line(sku="seat", quantity=self.state.taken))

    @entity.operation
    async def book_and_wait(self, cart: str) -> object:
        return await shop(cart)

    @entity.operation
    async def ask_itself(self) -> None:
        await workflow.entity(Flight, entity.info().key).call(Flight.book, "c")

    @entity.operation
    async def ask_round(self, other: str) -> None:
        await workflow.entity(Flight, other).call(Flight.ask_round, entity.info().key)

    @entity.operation
    async def leave_things(self) -> str:
        asyncio.ensure_future(asyncio.sleep(100))
        workflow.start_activity(charge, 1)
        return "left"


async def test_calls_from_workflows_and_between_entities(caller, worker):
    async with worker(Cart, Flight, shop, price, charge):
        assert await caller.execute(shop, "k", id="w") == [1, 2, 3, "fig", 300]
        with pytest.raises(EntityNotFound):
            await caller.entity(Cart, "k").state()
        flight = caller.entity(Flight, "f")
        booked = await asyncio.gather(*(flight.call(Flight.book, f"c{n % 3}") for n in range(9)))
        assert sorted(booked) == [1, 1, 1, 2, 2, 2, 3, 3, 3]
        assert (await flight.state()).taken == 9
        assert await flight.call(Flight.book_and_wait, "other") == [1, 2, 3, "fig", 300]


async def test_a_call_that_would_wait_for_itself_fails_with_the_circle(caller, worker):
    async with worker(Cart, Flight, shop, price, charge):
        with pytest.raises(OperationFailed, match="@Flight:a -> @Flight:a"):
            await caller.entity(Flight, "a").call(Flight.ask_itself)
        with pytest.raises(OperationFailed, match="@Flight:a -> @Flight:b -> @Flight:a"):
            await caller.entity(Flight, "a").call(Flight.ask_round, "b")
        assert (await caller.entity(Flight, "a").state()).taken == 0


async def test_what_an_operation_does_not_wait_for_ends_with_it(caller, worker):
    async with worker(Cart, Flight, shop, price, charge):
        flight = caller.entity(Flight, "f")
        for _ in range(3):
            assert await flight.call(Flight.leave_things) == "left"
        assert (await flight.state()).taken == 0
        while (await caller.handle(flight.id).describe()).activities:
            await asyncio.sleep(0.02)


async def test_history_stays_bounded(client, remote, worker, monkeypatch):
    """E-2, and flat cost: what a cold load reads does not grow with age."""
    monkeypatch.setattr("harvest.hub.entities.KEEP", 0.0)
    async with worker(Cart, price, charge):
        cart = client.entity(Cart, "k")
        for _ in range(1_500):
            await cart.call(Cart.grow, 100)
        summary = await remote.entity(Cart, "k").describe()
        count = Query("t", "select count(*) as n, max(decision) as last, min(decision) as first from decisions")
        while True:
            rows = (await remote.db.fetch(count))[0]
            if rows["n"] < 250:
                break
            await asyncio.sleep(0.1)
        assert rows["last"] >= 1_500 and summary.event_id > 2_500
    async with worker(Cart, price, charge):
        assert (await client.entity(Cart, "k").state()).note == "x" * 100


async def test_no_worker_no_answer(remote):
    with pytest.raises(NoAnswer, match="workers of queue 'default'"):
        await remote.entity("Cart", "k").call("add", {"sku": "a", "quantity": 1}, timeout=0.2)


async def test_terminate_answers_everybody(client, remote, worker):
    @workflow.defn
    async def sleeper(key: str) -> str:
        return str(await workflow.entity(Cart, key).call(Cart.sleep, 60))

    async with worker(Cart, sleeper, price, charge):
        cart = client.entity(Cart, "k")
        calls = [asyncio.create_task(c.entity(Cart, "k").call(Cart.sleep, 60)) for c in (client, remote)]
        run = await client.start(sleeper, "k", id="w")
        called = Query("t", "select count(*) as n from events where type = 'OperationCalled'")
        while (await remote.db.fetch(called))[0]["n"] < 3:
            await asyncio.sleep(0.02)
        await remote.handle(cart.id).terminate("enough")
        for call in calls:
            with pytest.raises(OperationFailed):
                await call
        with pytest.raises(WorkflowFailedError):
            await run.result(timeout=10)
        with pytest.raises(EntityNotFound):
            await cart.state()
        assert await cart.call(Cart.add, Line(sku="a", quantity=1)) == 1


async def test_deletes_and_calls_of_workflows_in_one_commit(client, remote, worker):
    """However calls and ends meet in a batch: each call is answered."""

    @workflow.defn
    async def churn(n: int) -> int:
        done = 0
        for m in range(4):
            cart = workflow.entity(Cart, f"k{(n + m) % 3}")
            if (n + m) % 4 == 0:
                await cart.delete()
            elif (n + m) % 4 == 1:
                await cart.call(Cart.close)
            else:
                await cart.call(Cart.add, Line(sku="a", quantity=1))
            done += 1
        return done

    async with worker(Cart, churn, price, charge):
        runs = [await client.start(churn, n, id=f"w{n}") for n in range(20)]
        assert await asyncio.gather(*(run.result(timeout=30) for run in runs)) == [4] * 20


async def test_a_call_survives_its_worker_and_acts_once(client, remote, dsn, worker):
    """Direct calls that wait when their worker hands over are answered by the next one, not made again."""
    import harvest

    slow = [Line(sku=f"{n}" + "x" * 9_000, quantity=1) for n in range(12)]
    async with harvest.connect(dsn) as second:
        first = worker(Cart, price, charge)
        await first.__aenter__()
        cart = client.entity(Cart, "k")
        sleeping = asyncio.create_task(cart.call(Cart.sleep, 0.3))
        calls = [asyncio.create_task(cart.call(Cart.add, line)) for line in slow]
        await asyncio.sleep(0.05)
        from harvest import Worker

        async with Worker(second, definitions=[Cart, price, charge]):
            await first.stop()
            await sleeping
            assert sorted(await asyncio.gather(*calls)) == list(range(1, 13))
            assert len((await remote.entity(Cart, "k").state()).lines) == 12


async def test_a_key_outlives_the_entity_and_belongs_to_one_operation(caller, worker):
    async with worker(Cart, price, charge):
        cart = caller.entity(Cart, "k")
        line = Line(sku="a", quantity=1)
        assert await cart.call(Cart.add, line, idempotency_key="one") == 1
        with pytest.raises(PayloadError, match="was given to operation 'add', this is 'close'"):
            await cart.call(Cart.close, idempotency_key="one")
        assert await cart.call(Cart.close, idempotency_key="two") == "k"
        assert await cart.call(Cart.add, line) == 1
        assert await cart.call(Cart.close, idempotency_key="two") == "k"
        assert await cart.call(Cart.add, line, idempotency_key="one") == 1
        assert len((await cart.state()).lines) == 1


async def test_what_is_no_entity_and_no_workflow(caller, worker):
    async with worker(Cart, shop, price, charge):
        with pytest.raises(UnknownWorkflowError):
            await caller.start("Cart", id="x:k")
        with pytest.raises(UnknownWorkflowError):
            await caller.entity("shop", "k").call("add")
        cart = caller.entity(Cart, "k")
        await cart.call(Cart.add, Line(sku="a", quantity=1))
        run = caller.handle(cart.id)
        for request in (run.signal("x", 1), run.update("x", 1), run.cancel()):
            with pytest.raises(WorkflowMisuse, match="is an entity"):
                await request


async def test_a_refused_call_creates_nothing(caller, worker):
    async with worker(Cart, price, charge):
        with pytest.raises(OperationRejected):
            await caller.entity("Cart", "zz").call("nope")
        assert [e async for e in caller.entities(Cart)] == []
        with pytest.raises(EntityNotFound):
            await caller.entity(Cart, "zz").state()


class Odd(BaseModel):
    n: int = Field(0, alias="N")
    limit: float | None = None
    tags: set[str] = set()
    born: str = Field(default_factory=lambda: uuid.uuid4().hex)
    secret: SecretStr = SecretStr("")
    _hidden: int = 0


seen: contextvars.ContextVar[int] = contextvars.ContextVar("seen", default=0)


@entity.defn
class Strange:
    state: Odd

    @entity.operation
    def count(self) -> tuple[int, str]:
        self.state.n += 1
        return self.state.n, self.state.born

    @entity.operation
    def infinite(self) -> None:
        self.state.limit = float("inf")

    @entity.operation
    def hide(self, value: str) -> None:
        self.state.secret = SecretStr(value)

    @entity.operation
    def leak(self) -> tuple[int, int]:
        seen.set(seen.get() + 1)
        self.memory = getattr(self, "memory", 0) + 1
        return seen.get(), self.memory

    @entity.operation
    def private(self) -> None:
        self.state._hidden += 1

    @entity.operation
    def raise_sync(self, name: str) -> None:
        raise {"cancel": asyncio.CancelledError, "exit": SystemExit, "close": GeneratorExit, "base": BaseException}[name]()

    @entity.operation
    async def raise_async(self, name: str) -> None:
        self.raise_sync(name)

    @entity.operation
    async def spin(self) -> None:
        while True:
            await asyncio.sleep(0)

    @entity.operation
    async def first_of(self, names: list[str]) -> list[str]:
        done, _ = await asyncio.wait([asyncio.ensure_future(self._name(name)) for name in names])
        for task in done:
            await price(task.result())
        self.state.tags |= set(names)
        return sorted(task.result() for task in done)

    async def _name(self, name: str) -> str:
        return name

    @entity.query
    def tags(self) -> list[str]:
        return sorted(self.state.tags)


async def test_a_state_that_would_not_come_back_is_refused(caller, worker):
    async with worker(Strange, price):
        odd = caller.entity(Strange, "k")
        assert [(await odd.call(Strange.count))[0] for _ in range(3)] == [1, 2, 3]
        with pytest.raises(OperationFailed, match="limit inf as None"):
            await odd.call(Strange.infinite)
        with pytest.raises(OperationFailed, match="secret"):
            await odd.call(Strange.hide, "password")
        with pytest.raises(OperationFailed, match="would not come back"):
            await odd.call(Strange.private)
        assert [await odd.call(Strange.leak) for _ in range(3)] == [(1, 1)] * 3
        assert (await odd.state()).n == 3


async def test_a_new_entity_begins_with_a_state_of_its_own(caller, worker):
    async with worker(Strange, price):
        born = [(await caller.entity(Strange, f"k{n}").call(Strange.count))[1] for n in range(5)]
        assert len(set(born)) == 5
        assert [(await caller.entity(Strange, f"k{n}").call(Strange.count))[1] for n in range(5)] == born


async def test_whatever_an_operation_raises_harms_its_caller_alone(caller, worker):
    async with worker(Strange, price):
        odd = caller.entity(Strange, "k")
        for operation in (Strange.raise_sync, Strange.raise_async):
            for name in ("cancel", "exit", "close", "base"):
                with pytest.raises(OperationFailed):
                    await odd.call(operation, name, timeout=20)
        with pytest.raises(OperationFailed, match="come to rest"):
            await odd.call(Strange.spin, timeout=20)
        assert (await odd.call(Strange.count))[0] == 1


async def test_order_is_the_same_cold(client, remote, worker):
    names = [f"n{n}" for n in range(8)]
    async with worker(Strange, price, workflow_cache_size=1):
        answers = await asyncio.gather(*(client.entity(Strange, f"k{n % 4}").call(Strange.first_of, names) for n in range(24)))
        assert all(answer == names for answer in answers)
        assert not await remote.db.fetch(Query("t", "select 1 from dead_letters"))
        for n in range(4):
            for _ in range(5):
                assert await client.entity(Strange, f"k{n}").query(Strange.tags) == names


async def test_a_burst_is_not_recorded_again_and_again(client, remote, worker):
    async with worker(Cart, price, charge):
        cart = client.entity(Cart, "k")
        lines = [Line(sku=f"{n}" + "x" * 10_000, quantity=1) for n in range(200)]
        await cart.call(Cart.add, lines[0])
        await asyncio.gather(
            *(cart.call(Cart.grow, 10) for _ in lines), *(cart.call(Cart.reserve, line.sku) for line in lines[:0])
        )
        burst = [asyncio.create_task(remote.entity(Cart, "k").call(Cart.reserve, line.sku)) for line in lines]
        for call in burst:
            with pytest.raises(SoldOut):
                await call
        size = Query("t", "select sum(octet_length(events::text)) as bytes from decisions")
        assert (await remote.db.fetch(size))[0]["bytes"] < 40_000_000
