"""E-1, E-2: entities through the public surface, in both modes, by the short way and through the mailbox."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import BaseModel, Field

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


async def test_history_stays_bounded(client, remote, worker):
    """E-2, and flat cost: what a cold load reads does not grow with age."""
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
    with pytest.raises(NoAnswer, match="worker of its queue"):
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
