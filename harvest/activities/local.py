"""Local steps: no row; schedule and result live in history only, and a new owner reruns what has no result."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from uuid import UUID

from harvest.activities.attempt import Attempt, Threads
from harvest.core import events as ev
from harvest.decisions.ports import Step
from harvest.definitions.registry import Registry
from harvest.definitions.retry import next_try
from harvest.errors import ActivityTimeout
from harvest.failure import Failure, failure_of

log = logging.getLogger("harvest.activities")

Deliver = Callable[[Step, ev.Arrival], bool]


class LocalSteps:
    """Runs steps as tasks of the loop. A step that is running already is not started again."""

    def __init__(self, registry: Registry, deliver: Deliver, threads: Threads) -> None:
        self.registry, self.deliver, self.threads = registry, deliver, threads
        self.loop: asyncio.AbstractEventLoop | None = None
        self.running: dict[tuple[UUID, int], asyncio.Task[None]] = {}

    def start(self, step: Step) -> None:
        key = (step.execution_id, step.seq)
        if key not in self.running:
            loop = self.loop or asyncio.get_running_loop()
            self.running[key] = loop.create_task(self._run(step, key))

    def cancel(self, execution_id: UUID, seq: int) -> None:
        task = self.running.get((execution_id, seq))
        if task is not None:
            task.cancel()

    async def _run(self, step: Step, key: tuple[UUID, int]) -> None:
        try:
            arrival = await self._until_done(step)
        except asyncio.CancelledError:
            return
        finally:
            del self.running[key]
        self.deliver(step, arrival)

    async def _until_done(self, step: Step) -> ev.Arrival:
        options = step.options
        loop = asyncio.get_running_loop()
        end = None if options.schedule_to_close is None else loop.time() + options.schedule_to_close
        attempt = 1
        while True:
            failure = None
            try:
                if end is None:
                    return await self._attempt(step, attempt)
                async with asyncio.timeout_at(end):
                    return await self._attempt(step, attempt)
            except TimeoutError:
                text = f"activity {step.name!r} passed its schedule_to_close time-out of {options.schedule_to_close:g} s"
                failure = failure_of(ActivityTimeout("schedule_to_close", text))
            except _Failed as failed:
                failure = failed.failure
            delay = next_try(options.retry, attempt, failure, left=None if end is None else end - loop.time())
            if delay is None:
                return ev.ActivityFailed(step.seq, failure, attempt)
            log.info(
                "local activity %s of %s failed, try %d in %.1f s: %s",
                step.name,
                step.workflow_id,
                attempt + 1,
                delay,
                failure.message,
            )
            attempt += 1
            await asyncio.sleep(delay)

    async def _attempt(self, step: Step, attempt: int) -> ev.ActivityCompleted:
        try:
            definition = self.registry.activity(step.name, step.queue)
            signature = definition.signature
            call = Attempt(step, attempt, step.options, self.loop or asyncio.get_running_loop())
            result = await call.call(definition, signature.decode_args(step.input), self.threads)
            return ev.ActivityCompleted(step.seq, signature.encode_result(result))
        except asyncio.CancelledError as exc:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise _Failed(failure_of(exc)) from exc  # the activity's own doing
        except BaseException as exc:
            raise _Failed(failure_of(exc)) from exc


class _Failed(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure
