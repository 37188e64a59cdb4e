"""The life of every long-lived thing: `async with`, `started`, `stop` (early, twice, at once)."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

log = logging.getLogger("harvest")


class Service:
    """Subclasses write `_open`, `_run` and `_close`.

    `_open` acquires what is needed and may raise; `_run` works until `stopping` is set; `_close` gives
    everything back and runs exactly once, also when `_open` or `_run` failed. `stop` may come before the
    start, twice, or while starting.
    """

    def __init__(self) -> None:
        self.stopping = asyncio.Event()
        self.started = asyncio.Event()
        self._main: asyncio.Task[None] | None = None

    async def _open(self) -> None: ...

    async def _run(self) -> None:
        await self.stopping.wait()

    async def _close(self) -> None: ...

    async def run(self) -> None:
        """Open, work until `stop`, close."""
        try:
            if self.stopping.is_set():
                return
            await self._open()
            self.started.set()
            await self._run()
        finally:
            self.stopping.set()
            await self._close()

    @asynccontextmanager
    async def signals(self) -> AsyncIterator[None]:
        """SIGTERM and SIGINT ask for the end, when this service is the program's main one."""
        loop, handled = asyncio.get_running_loop(), []
        if self._main is None:
            for number in (signal.SIGTERM, signal.SIGINT):
                try:
                    loop.add_signal_handler(number, self.stopping.set)
                    handled.append(number)
                except (NotImplementedError, RuntimeError, ValueError):
                    break
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    @property
    def alive(self) -> bool:
        """True from `async with` until it has ended."""
        return self._main is not None and not self._main.done()

    async def __aenter__(self) -> Self:
        self._main = asyncio.create_task(self.run(), name=type(self).__name__)
        waiter = asyncio.create_task(self.started.wait())
        try:
            await asyncio.wait({self._main, waiter}, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:  # cancelled: what was opened so far is given back
            waiter.cancel()
            self._main.cancel()
            await asyncio.wait({self._main})
            raise
        if not self.started.is_set():
            waiter.cancel()
            await self._main
        return self

    async def __aexit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Ask for the end and wait for it. Harmless when it has ended already; who stops waiting does not stop the end."""
        self.stopping.set()
        if self._main is not None:
            await asyncio.wait({self._main})
            if not self._main.cancelled():
                self._main.result()  # what it failed with


class Periodic(Service):
    """A loop around `run_once`: every `interval` seconds, or at once after `nudge`. Who knows better when to look again
    overrides `turn`.

    An error is survived: the first in a row is logged, the tenth and then each sixtieth, with the count.
    """

    doing = "work"

    def __init__(self, interval: float) -> None:
        super().__init__()
        self.interval = interval
        self._nudged = asyncio.Event()

    async def run_once(self) -> object:
        raise NotImplementedError

    async def turn(self) -> float:
        """One round; seconds until the next."""
        await self.run_once()
        return self.interval

    def nudge(self) -> None:
        self._nudged.set()

    async def stop(self) -> None:
        self.stopping.set()
        self._nudged.set()
        await super().stop()

    async def _run(self) -> None:
        loop, failures = asyncio.get_running_loop(), 0
        while not self.stopping.is_set():
            self._nudged.clear()
            try:
                wait = await self.turn()
                failures = 0
            except Exception as exc:
                failures += 1
                if failures in (1, 10) or failures % 60 == 0:
                    log.warning("cannot %s (%d in a row): %s", self.doing, failures, str(exc) or type(exc).__name__)
                wait = self.interval
            if not self._nudged.is_set() and not self.stopping.is_set():
                handle = loop.call_later(wait, self._nudged.set)
                await self._nudged.wait()
                handle.cancel()
