"""What the tests of the server run."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from pydantic import BaseModel

from harvest import ApplicationError, RetryPolicy, activity, entity, workflow


@activity.defn
async def charge(amount: int) -> str:
    return f"paid {amount}"


@activity.defn(mode="queue", retry=RetryPolicy(initial=3600, cap=3600))
async def flaky(n: int) -> int:
    raise ApplicationError("the bank is closed", type="BankClosed")


@workflow.defn
async def greet(name: str) -> str:
    return f"hello {name}"


@workflow.defn
async def bank(n: int) -> int:
    return await flaky(n)


@workflow.defn
async def broken(why: str) -> None:
    raise ApplicationError(why, type="Broken")


@workflow.defn
async def sleeper(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "slept"


@workflow.defn
class Order:
    def __init__(self) -> None:
        self.items: list[str] = []
        self.approved = False

    @workflow.run
    async def run(self, amount: int) -> str:
        await workflow.wait_until(lambda: self.approved, timeout=timedelta(days=3))
        return await charge(amount)

    @workflow.signal
    def approve(self) -> None:
        self.approved = True

    @workflow.query
    def status(self, verbose: bool = False) -> str:
        return f"{len(self.items)} items{', approved' if self.approved else ''}{' (all is well)' if verbose else ''}"

    @workflow.update
    async def add(self, item: str) -> int:
        if item == "poison":
            raise ApplicationError("not this", type="Poison")
        self.items.append(item)
        return len(self.items)

    @add.validator
    def check_add(self, item: str) -> None:
        if not item:
            raise ValueError("an item has a name")


@workflow.defn
class Second:
    """Fails at the first attempt, and waits at the second."""

    @workflow.run
    async def run(self) -> str:
        if workflow.info().attempt == 1:
            raise ApplicationError("once more", type="Again")
        await workflow.receive("go", str)
        return f"attempt {workflow.info().attempt}"


class CounterState(BaseModel):
    n: int = 0
    tags: list[str] = []


@entity.defn
class Counter:
    state: CounterState

    @entity.operation
    def add(self, n: int) -> int:
        if n < 0:
            raise ApplicationError("only up", type="Down")
        self.state.n += n
        return self.state.n

    @entity.query
    def double(self) -> int:
        return self.state.n * 2


ALL = (greet, bank, broken, sleeper, Order, Second, Counter, charge, flaky)
