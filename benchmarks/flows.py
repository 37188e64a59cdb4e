"""The programs of the workloads."""

from __future__ import annotations

import asyncio
import os
import time

from pydantic import BaseModel

from harvest import activity, entity, workflow


@activity.defn(local=True)
async def noop(i: int) -> dict[str, int]:
    return {"i": i}


@workflow.defn
async def steps(count: int, mode: str) -> int:
    for i in range(count):
        if mode == "local":
            await noop(i)
        else:
            await workflow.start_activity(noop, i, mode=mode)
    return count


@workflow.defn
async def fan(count: int, mode: str) -> int:
    if mode == "children":
        return len(await asyncio.gather(*(leaf(i) for i in range(count))))
    if mode == "local":
        return len(await asyncio.gather(*(noop(i) for i in range(count))))
    return len(await asyncio.gather(*(workflow.start_activity(noop, i, mode=mode) for i in range(count))))


@workflow.defn
async def leaf(i: int) -> dict[str, int]:
    return {"i": i}


@workflow.defn
class Counter:
    def __init__(self) -> None:
        self.total = 0

    @workflow.run
    async def run(self, until: int) -> int:
        await workflow.wait_until(lambda: self.total >= until)
        return self.total

    @workflow.signal
    def add(self, n: int) -> None:
        self.total += n

    @workflow.query
    def value(self) -> int:
        return self.total


@activity.defn(local=True)
async def hold(key: str, seconds: float) -> None:
    """Marks when and where it began, then takes its time."""
    mark(os.environ["HARVEST_BENCH_MARKS"], f"step {os.getpid()} {key} {time.time():.4f}")
    await asyncio.sleep(seconds)


@workflow.defn
async def midway(key: str, seconds: float) -> int:
    for i in range(5):
        await noop(i)
    await hold(key, seconds)
    for i in range(5):
        await noop(i)
    return 10


@workflow.defn
async def beat() -> None:
    """Decides each 50 ms, for ever."""
    for _ in range(2_000):
        await asyncio.sleep(0.05)
    workflow.continue_as_new()


def mark(path: str, line: str) -> None:
    with open(path, "a") as file:
        file.write(line + "\n")


class Books(BaseModel):
    balance: int = 0
    items: list[dict[str, int]] = []


@entity.defn
class Account:
    """About 100 bytes of state, or as many as it is filled with."""

    state: Books

    @entity.operation
    def add(self, n: int) -> int:
        self.state.balance += n
        return self.state.balance

    @entity.operation
    def fill(self, size: int) -> int:
        self.state.items = [{"n": n, "sku": 1_000_000 + n} for n in range(size // 25)]
        return len(self.state.items)


ALL = (noop, steps, fan, leaf, Counter, hold, midway, beat, Account)
