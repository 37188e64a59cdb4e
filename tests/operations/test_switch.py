"""The switch between the modes, under load and to and fro (O-8)."""

from __future__ import annotations

import asyncio

from harvest import Worker, workflow
from harvest.testing import Replayer
from tests.faults.flows import medium, small


@workflow.defn
async def leaf(n: int) -> int:
    await asyncio.sleep(0.01)
    return n


@workflow.defn
class Busy:
    def __init__(self) -> None:
        self.seen: list[int] = []
        self.end = False

    @workflow.run
    async def run(self) -> list[int]:
        n = 0
        while not self.end:
            n += 1
            assert await small(n) == n
            assert await asyncio.gather(medium(n), leaf(n), asyncio.sleep(0.01, n)) == [n] * 3
        return self.seen

    @workflow.signal
    def put(self, n: int) -> None:
        self.seen.append(n)

    @workflow.update
    async def add(self, n: int) -> int:
        self.seen.append(await small(n))
        return n

    @workflow.signal
    def stop(self) -> None:
        self.end = True


DEFINITIONS = [small, medium, leaf, Busy]


async def until(condition) -> None:
    while not condition():
        await asyncio.sleep(0.02)


async def test_to_and_fro_under_load(client, remote):
    """Runs in flight go on, nothing that was acknowledged is lost or doubled, and every history replays."""
    async with Worker(client, definitions=DEFINITIONS) as one, Worker(remote, definitions=DEFINITIONS) as two:
        handles = [await client.start(Busy, id=f"b{n}") for n in range(6)]
        sent: dict[str, list[int]] = {h.id: [] for h in handles}
        ending = asyncio.Event()

        async def talk(through, workflow_id: str) -> None:
            n, handle = 0, through.handle(workflow_id, Busy)
            while not ending.is_set():
                n += 1
                if n % 2:
                    await handle.signal(Busy.put, n, idempotency_key=f"k{n}")
                else:
                    assert await handle.update(Busy.add, n, update_id=f"u{n}", timeout=30) == n
                sent[workflow_id].append(n)

        talkers = [asyncio.create_task(talk((client, remote)[n % 2], h.id)) for n, h in enumerate(handles)]
        for _ in range(3):
            before = sum(map(len, sent.values()))
            assert (await remote.disable_owner_mode()).mode == "sticky"
            while sum(map(len, sent.values())) < before + 30:  # work goes on in the new mode
                await asyncio.sleep(0.02)
            await until(lambda: one.keeper.mode == two.keeper.mode == "sticky")
            assert not one.keeper.partitions + two.keeper.partitions
            before = sum(map(len, sent.values()))
            assert (await remote.enable_owner_mode()).mode == "owner"
            while sum(map(len, sent.values())) < before + 30:
                await asyncio.sleep(0.02)
            await until(lambda: one.keeper.mode == two.keeper.mode == "owner")
            await until(lambda: one.keeper.partitions + two.keeper.partitions == 512)
        ending.set()
        await asyncio.gather(*talkers)
        for handle in handles:
            await handle.signal(Busy.stop)
            assert sorted(await handle.result(timeout=30)) == sorted(sent[handle.id])
    replayer = Replayer(DEFINITIONS)
    async for run in client.list():
        exported = await client.handle(run.workflow_id, execution_id=run.execution_id).export_history()
        assert replayer.replay_file(exported).fits, run
    # both ways of deciding took part
    from harvest.hub.queries import Query

    ways = await client.db.fetch(Query("t", "select distinct scheduled is null as owner from decisions"))
    assert len(ways) == 2
