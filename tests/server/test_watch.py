"""Whoever follows a run hears of what happens to it, also where nobody could tell."""

from __future__ import annotations

import asyncio

from harvest.errors import HubUnreachable
from harvest.operations.watch import Watch
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
