"""The programs behind the recorded histories. They must keep asking for what is recorded."""

from __future__ import annotations

import asyncio

from harvest import activity, errors, workflow


@activity.defn(local=True)
async def price(item: str) -> int:
    return len(item)


@activity.defn
async def charge(amount: int) -> str:
    if amount > 100:
        raise errors.ApplicationError("too much", type="TooMuch", non_retryable=True)
    return f"paid {amount}"


@workflow.defn
async def ship(item: str) -> str:
    await asyncio.sleep(0.01)
    return f"shipped {item}"


@workflow.defn
async def order(items: list[str]) -> list[str]:
    prices = await asyncio.gather(*(price(item) for item in items))
    try:
        paid = await charge(sum(prices))
    except errors.ActivityError as error:
        return [error.type]
    async with asyncio.TaskGroup() as group:
        shipments = [group.create_task(ship(item)) for item in items]
    return [paid, *(shipment.result() for shipment in shipments)]


@workflow.defn
class Desk:
    """Signals, updates, races, time-outs, versions, side effects."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.open = True

    @workflow.run
    async def run(self) -> list[str]:
        self.notes.append(f"ticket {workflow.side_effect(lambda: 7)}")
        if workflow.patched("greeting"):
            self.notes.append("hello")
        try:
            async with asyncio.timeout(0.05):
                await workflow.receive("never")
        except TimeoutError:
            self.notes.append("nobody came")
        first = asyncio.create_task(asyncio.sleep(0.01, "clock"))
        second = asyncio.create_task(charge(1))
        done, rest = await asyncio.wait({first, second}, return_when=asyncio.ALL_COMPLETED)
        self.notes.append(f"{len(done)} of {len(done) + len(rest)}")
        await workflow.wait_until(lambda: not self.open)
        return self.notes

    @workflow.signal
    def note(self, text: str) -> None:
        self.notes.append(text)

    @workflow.update
    async def close(self, by: str) -> int:
        await asyncio.sleep(0.005)
        self.open = False
        return len(self.notes)


@workflow.defn
async def countdown(n: int) -> int:
    await asyncio.sleep(0.001)
    if n > 0:
        workflow.continue_as_new(n - 1)
    return 0
