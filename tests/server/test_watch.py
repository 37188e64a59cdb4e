"""Whoever follows a run hears of what happens to it, also where nobody could tell."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from harvest.errors import HubUnreachable
from harvest.operations.watch import Watch
from harvest.server import shared as shared_reads
from harvest.server.shared import Shared
from harvest.server.sse import stream_response
from tests.server import flows


async def test_the_first_look_tells_of_what_happened_before_anybody_was_asked_to(door):
    handle = await door.start(flows.sleeper, 60.0, id="s")
    watch = Watch(door.site)
    async with watch.following(handle.execution_id) as mine:
        moved = mine.arm()  # its follower read it here; it may move before the workers are asked to tell
        async with asyncio.timeout(20):
            await moved
    await watch.stop()


async def test_a_stream_ends_where_the_hub_is_away():
    async def events():
        yield "one"
        raise HubUnreachable("the hub does not answer")

    assert [each async for each in stream_response(events()).body_iterator] == ["one"]


async def test_a_read_that_began_before_a_change_does_not_take_the_place_of_a_later_one(monkeypatch):
    monkeypatch.setattr(shared_reads, "SLOW", -1.0)  # all of them are kept for their time
    monkeypatch.setattr(shared_reads, "time", SimpleNamespace(monotonic=iter(range(100)).__next__))
    shared, late = Shared(), asyncio.Event()

    async def before() -> str:
        await late.wait()
        return "before"

    async def after() -> str:
        return "after"

    first = asyncio.create_task(shared.get("run", before))
    await asyncio.sleep(0)
    shared.forget()  # something has changed
    assert await shared.get("run", after) == "after"
    late.set()
    assert await first == "before"
    assert await shared.get("run", before) == "after"


async def test_whoever_watches_begins_it_again_after_the_end_of_a_server(door):
    handle = await door.start(flows.sleeper, 60.0, id="s")
    watch = Watch(door.site)
    for _ in range(2):
        async with watch.following(handle.execution_id) as mine:
            moved = mine.arm()
            async with asyncio.timeout(20):
                await moved
        assert watch.viewers == 0
        await watch.stop()
        await watch.stop()
