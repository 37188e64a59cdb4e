"""O-9: every worker of a fleet is replaced by a newer build, one at a time, under load; no error reaches a caller."""

from __future__ import annotations

import asyncio

import pytest

from harvest import Client, Worker, WorkerConfig, activity, workflow
from harvest.hub.queries import Query
from harvest.testing import Replayer
from tests.faults.flows import medium, small


@activity.defn
async def brand_new(n: int) -> int:
    return n


@workflow.defn
async def only_in_the_new_build(n: int) -> int:
    return await brand_new(n)


def build(version: int) -> list[object]:
    """The same types; the new build does one more step, behind a patch."""

    @workflow.defn(name="Orders")
    class Orders:
        def __init__(self) -> None:
            self.seen: list[int] = []
            self.end = False

        @workflow.run
        async def run(self) -> list[int]:
            while not self.end:
                if version == 2 and workflow.patched("count"):
                    await small(len(self.seen))
                await asyncio.gather(medium(1), asyncio.sleep(0.01))
            return self.seen

        @workflow.signal
        def put(self, n: int) -> None:
            self.seen.append(n)

        @workflow.update
        async def add(self, n: int) -> int:
            self.seen.append(await small(n))
            return n

        @workflow.query
        def count(self) -> int:
            return len(self.seen)

        @workflow.signal
        def stop(self) -> None:
            self.end = True

    return [Orders, small, medium]


class Conversation:
    """Signals, updates and queries to one run until told to end; any error is raised by `wait_for_rounds` or `finish`."""

    def __init__(self, client: Client, name: str) -> None:
        self.client, self.name = client, name
        self.sent: list[int] = []
        self.ending = False
        self.moved = asyncio.Event()
        self.task = asyncio.create_task(self.talk())

    async def talk(self) -> None:
        handle = await self.client.start("Orders", id=self.name)
        while not self.ending:
            n = len(self.sent) + 1
            if n % 3:
                await handle.signal("put", n)
            else:
                assert await handle.update("add", n) == n
            assert await handle.query("count") >= n
            self.sent.append(n)
            self.moved.set()
        await handle.signal("stop")
        assert await handle.result(timeout=30) == self.sent

    async def wait_for_rounds(self, rounds: int) -> None:
        """Until that many more messages were sent and read back."""
        until = len(self.sent) + rounds
        while len(self.sent) < until:
            self.moved.clear()
            waiting = asyncio.create_task(self.moved.wait())
            await asyncio.wait([waiting, self.task], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if self.task.done():
                self.task.result()
                raise AssertionError(f"{self.name} ended too early")

    async def finish(self) -> None:
        self.ending = True
        await self.task


@pytest.mark.timeout(120)
@pytest.mark.parametrize("more_types", [False, True])
async def test_a_rolling_deploy(dsn, remote, more_types):
    import harvest

    clients = [harvest.connect(dsn) for _ in range(6)]
    for client in clients:
        await client.__aenter__()
    old = [Worker(c, definitions=build(1), config=WorkerConfig(build_id="v1")) for c in clients[:3]]
    for worker in old:
        await worker.__aenter__()
    talks = [Conversation(remote, f"order-{n}") for n in range(6)]

    async def all_go_on() -> None:
        await asyncio.gather(*[talk.wait_for_rounds(3) for talk in talks])

    new = []
    await all_go_on()
    for number, leaving in enumerate(old):
        definitions = build(2) + ([only_in_the_new_build, brand_new] if more_types else [])
        joining = Worker(clients[3 + number], definitions=definitions, config=WorkerConfig(build_id="v2"))
        await joining.__aenter__()
        new.append(joining)
        await all_go_on()  # both builds serve for a while
        await leaving.stop()
        await all_go_on()
    while sum(worker.keeper.shares["default"].epochs != {} for worker in new) < 3:
        await asyncio.sleep(0.02)
    if more_types:
        assert await remote.execute("only_in_the_new_build", 4, id="new") == 4
    await asyncio.gather(*[talk.finish() for talk in talks])
    decided_by = Query("t", "select distinct w.build_id from decisions d join workers w using (worker_id)")
    assert {row["build_id"][:2] for row in await remote.db.fetch(decided_by)} == {"v1", "v2"}
    assert not await remote.db.fetch(Query("t", "select 1 from dead_letters"))
    replayer = Replayer([*build(2), only_in_the_new_build, brand_new])
    async for run in remote.list():
        exported = await remote.handle(run.workflow_id, execution_id=run.execution_id).export_history()
        assert replayer.replay_file(exported).fits
    for worker in new:
        await worker.stop()
    for client in clients:
        await client.__aexit__(None, None, None)
