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


async def conversation(client: Client, name: str, ending: asyncio.Event) -> list[int]:
    """Signals, updates and queries; any error is raised."""
    handle = await client.start("Orders", id=name)
    sent: list[int] = []
    while not ending.is_set():
        n = len(sent) + 1
        if n % 3:
            await handle.signal("put", n)
        else:
            assert await handle.update("add", n) == n
        sent.append(n)
        assert await handle.query("count") >= n
    await handle.signal("stop")
    assert await handle.result(timeout=30) == sent
    return sent


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
    ending = asyncio.Event()
    talks = [asyncio.create_task(conversation(remote, f"order-{n}", ending)) for n in range(6)]
    new = []
    for number, leaving in enumerate(old):
        while (await remote.counts()).get("RUNNING", 0) < 6:
            await asyncio.sleep(0.02)
        definitions = build(2) + ([only_in_the_new_build, brand_new] if more_types else [])
        joining = Worker(clients[3 + number], definitions=definitions, config=WorkerConfig(build_id="v2"))
        await joining.__aenter__()
        new.append(joining)
        await asyncio.sleep(0.3)  # both builds serve for a while
        await leaving.stop()
        assert not [t for t in talks if t.done()], [t.exception() for t in talks if t.done()]
    while sum(worker.keeper.shares["default"].epochs != {} for worker in new) < 3:
        await asyncio.sleep(0.02)
    if more_types:
        assert await remote.execute("only_in_the_new_build", 4, id="new") == 4
    ending.set()
    sent = await asyncio.gather(*talks)
    assert all(len(each) > 3 for each in sent)
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
