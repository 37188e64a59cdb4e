"""One try of an activity: context, time-outs, heartbeats, threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import msgspec

from harvest.activity import ActivityInfo, current_attempt, encode_details
from harvest.core.events import ActivityOptions
from harvest.decisions.ports import Step
from harvest.definitions.activity import ActivityDefinition
from harvest.errors import ActivityTimeout
from harvest.telemetry import traces


class Attempt:
    """What the code of the activity sees through `activity.*`, and what its runner knows.

    `number` counts from 1; `earlier` are the heartbeat details of the try before. `on_beat` is called with each
    heartbeat, on the loop.
    """

    __slots__ = (
        "_bound",
        "_info",
        "_loop",
        "_thread",
        "beats",
        "cancelled",
        "details",
        "earlier",
        "number",
        "on_beat",
        "options",
        "started",
        "step",
        "task",
    )

    def __init__(
        self,
        step: Step,
        number: int,
        options: ActivityOptions,
        loop: asyncio.AbstractEventLoop,
        *,
        earlier: str | None = None,
        on_beat: Callable[[Attempt], None] | None = None,
    ) -> None:
        self.step, self.number, self.options, self.earlier, self.on_beat = step, number, options, earlier, on_beat
        self._info: ActivityInfo | None = None
        self.cancelled = False
        self.details: str | None = None
        self.beats = 0
        self.started = 0.0
        self.task: asyncio.Task[Any] | None = None
        self._bound: asyncio.Timeout | None = None
        self._loop = loop
        self._thread = threading.get_ident()

    @property
    def info(self) -> ActivityInfo:
        """Made when it is asked for: most short steps never do."""
        if self._info is None:
            step = self.step
            self._info = ActivityInfo(
                step.name,
                step.workflow_id,
                str(step.execution_id),
                step.seq,
                self.number,
                step.queue,
                details_of(self.earlier),
            )
        return self._info

    def heartbeat(self, details: tuple[Any, ...]) -> None:
        encoded = encode_details(details) if details else None
        if threading.get_ident() == self._thread:
            self._beat(encoded)
        else:
            self._loop.call_soon_threadsafe(self._beat, encoded)

    def _beat(self, encoded: str | None) -> None:
        self.details = encoded or self.details
        self.beats += 1
        if self._bound is not None and self.options.heartbeat is not None and not self._bound.expired():
            self._bound.reschedule(self._deadline(self._loop.time()))
        if self.on_beat is not None:
            self.on_beat(self)

    def _deadline(self, now: float) -> float | None:
        options = self.options
        ends = []
        if options.start_to_close is not None:
            ends.append(self.started + options.start_to_close)
        if options.heartbeat is not None:
            ends.append(now + options.heartbeat)
        return min(ends) if ends else None

    def cancel(self) -> None:
        """The workflow gave up: async code gets CancelledError, threads see `is_cancelled()`."""
        self.cancelled = True
        if self.task is not None:
            self.task.cancel()

    async def call(self, definition: ActivityDefinition, args: tuple[Any, ...], threads: Threads) -> Any:
        """Runs the function under its time-outs. Raises what it raises, or `ActivityTimeout`."""
        step = self.step
        with traces.attempting(step.name, step.execution_id, step.workflow_id, step.seq, self.number):
            return await self._call(definition, args, threads)

    async def _call(self, definition: ActivityDefinition, args: tuple[Any, ...], threads: Threads) -> Any:
        current_attempt.set(self)
        options = self.options
        if definition.is_async and options.start_to_close is None and options.heartbeat is None:
            return await definition.fn(*args)
        loop, work = self._loop, None
        if not definition.is_async:  # its time begins when a thread takes it up
            await threads.slots.acquire()
            work = threads.submit(copy_context().run, _in_thread, definition.fn, args)
            work.add_done_callback(lambda _: loop.call_soon_threadsafe(threads.slots.release))
        self.started = loop.time()
        try:
            async with asyncio.timeout_at(self._deadline(self.started)) as self._bound:
                if definition.is_async:
                    return await definition.fn(*args)
                assert work is not None
                return await asyncio.wrap_future(work)
        except TimeoutError:
            if self._bound is None or not self._bound.expired():
                raise
            self.cancelled = True
            spent = loop.time() - self.started
            if options.start_to_close is not None and spent >= options.start_to_close:
                kind, bound = "start_to_close", options.start_to_close
            else:
                kind, bound = "heartbeat", options.heartbeat or 0.0
            raise ActivityTimeout(kind, f"activity {definition.name!r} passed its {kind} time-out of {bound:g} s") from None


class Threads(ThreadPoolExecutor):
    """Threads for activities that are plain functions; `slots` has one entry per free thread."""

    def __init__(self, count: int) -> None:
        super().__init__(count, "harvest-activity")
        self.slots = asyncio.Semaphore(count)


def _in_thread(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    try:
        return fn(*args)
    except StopIteration as exc:  # a future cannot carry it
        raise RuntimeError(f"activity raised StopIteration: {exc}") from exc
    except (SystemExit, KeyboardInterrupt) as exc:
        raise RuntimeError(f"activity raised {type(exc).__name__}: {exc}") from exc


def details_of(raw: str | None) -> tuple[Any, ...]:
    """Heartbeat details from their stored form."""
    return () if raw is None else tuple(msgspec.json.decode(raw))
