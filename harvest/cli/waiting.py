"""Commands that wait say after a while what for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from harvest.cli import output
from harvest.client import Client, WorkflowHandle
from harvest.errors import HarvestError

T = TypeVar("T")
QUIET = 3.0
"""Seconds for which nobody asks why it takes so long."""


async def waited(work: Awaitable[T], why: Callable[[], Awaitable[str]]) -> T:
    """What `work` gives. When it takes its time, `why()` goes to stderr, once."""
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=QUIET)
        if not done:
            try:
                output.errors.print(f"waiting: {await why()}", style="dim", markup=False, highlight=False)
            except HarvestError:
                pass  # the wait itself will tell
        return await task
    finally:
        task.cancel()


async def of_run(handle: WorkflowHandle[object]) -> str:
    """What a run waits for."""
    found = await handle.diagnose()
    return f"{handle.id}: {found.sentence}" + (f" ({found.command})" if found.command else "")


async def of_queue(client: Client, queue: str) -> str:
    """Whether anybody is there who could answer."""
    workers = (await client.owner_status()).workers
    if any(worker.queue == queue for worker in workers):
        return f"workers of queue {queue!r} have not answered yet"
    return f"no worker of queue {queue!r} is alive; it is done when one comes (harvest worker MODULE --queue {queue})"
