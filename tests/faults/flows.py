"""Programs of the fault tests; run by worker processes."""

from __future__ import annotations

import asyncio

from pydantic import BaseModel

from harvest import RetryPolicy, activity, entity, workflow

FAST = RetryPolicy(initial=0.05, cap=0.2)


@activity.defn(local=True)
async def small(n: int) -> int:
    return n


@activity.defn(retry=FAST)
async def medium(n: int) -> int:
    await asyncio.sleep(0.01)
    return n


@activity.defn(mode="queue", retry=FAST)
def large(n: int) -> int:
    return n


class Takings(BaseModel):
    taken: list[int] = []
    half: int = 0


@entity.defn
class Till:
    """Keeps each number that it takes, some at once and some after a while; refuses negative ones half-way."""

    state: Takings

    @entity.operation
    def take(self, n: int) -> int:
        self.state.taken.append(n)
        return len(self.state.taken)

    @entity.operation
    async def count_and_take(self, n: int) -> int:
        self.state.half += 1
        await asyncio.gather(small(n), medium(n), asyncio.sleep(0.01))
        if n < 0:
            raise ValueError("not with me")
        self.state.half -= 1
        self.state.taken.append(n)
        return len(self.state.taken)


@workflow.defn
async def pay_in(till: str, n: int) -> int:
    return await workflow.entity(Till, till).call(Till.take, n)


@workflow.defn
async def kid(n: int) -> int:
    await asyncio.sleep(0.05)
    return await small(n)


@workflow.defn
class Ledger:
    """Does a bit of everything, over and over, and keeps each signal it is sent. Its first `fails` attempts fail at the end."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.closing = False

    @workflow.run
    async def run(self, rounds: int, fails: int = 0) -> list[int]:
        for n in range(rounds):
            assert await small(n) == n
            found = await asyncio.gather(medium(n), workflow.start_activity(large, n), kid(n), asyncio.sleep(0.02))
            assert found[:3] == [n, n, n]
        if workflow.info().attempt <= fails:
            raise ValueError("once more")
        await workflow.wait_until(lambda: self.closing)
        return self.seen

    @workflow.signal
    def put(self, n: int) -> None:
        self.seen.append(n)

    @workflow.update
    async def add(self, n: int) -> int:
        await asyncio.sleep(0.005)
        self.seen.append(n)
        return len(self.seen)

    @workflow.signal
    def close(self) -> None:
        self.closing = True
