"""A worker process that can be told to lose wakes and to have a wrong clock: `python -m tests.faults.member`.

Commands come as lines on standard input: `mute 1`, `mute 0`, `shift SECONDS`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading

import harvest
from harvest import Worker, WorkerConfig, errors
from harvest.clock import HubClock, SystemClock
from harvest.wakes.notifier import Notifier
from harvest.wakes.router import Router
from tests.faults import flows

NO_HUB = 75
"""Exit code of a worker that was started while the hub was away: a supervisor starts it again."""


class ShiftedClock(SystemClock):
    """The machine's clock, some seconds off."""

    seconds = 0.0

    def now_us(self) -> int:
        return super().now_us() + round(self.seconds * 1_000_000)


class Faults:
    def __init__(self) -> None:
        self.clock = ShiftedClock()
        self.muted = False
        note, dispatch = Notifier._note, Router.dispatch
        Notifier._note = lambda *args: None if self.muted else note(*args)  # type: ignore[method-assign]
        Router.dispatch = lambda *args: None if self.muted else dispatch(*args)  # type: ignore[method-assign]

    def listen(self) -> None:
        for line in sys.stdin:
            command, _, value = line.strip().partition(" ")
            if command == "mute":
                self.muted = value == "1"
            elif command == "shift":
                self.clock.seconds = float(value)
        os._exit(3)  # who started us is gone


async def main() -> None:
    logging.basicConfig(level=os.environ.get("MEMBER_LOG", "WARNING"), format="%(asctime)s %(process)d %(name)s %(message)s")
    faults = Faults()
    threading.Thread(target=faults.listen, daemon=True).start()
    logging.getLogger("asyncpg.pool").setLevel(logging.CRITICAL)
    try:
        async with harvest.connect(os.environ["HARVEST_DATABASE_URL"], patience=60) as client:
            await Worker(client, definitions=[flows], config=WorkerConfig(), clock=HubClock(faults.clock)).run()
    except errors.HubUnreachable:
        sys.exit(NO_HUB)


if __name__ == "__main__":
    asyncio.run(main())
