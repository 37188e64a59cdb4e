"""Eager tasks of this owner, and tasks claimed from the queue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import msgspec

from harvest.activities.attempt import Attempt, Threads
from harvest.activities.local import LocalSteps
from harvest.backoff import Backoff
from harvest.clock import MICRO, Clock
from harvest.coalesce import Coalescer
from harvest.core import events as ev
from harvest.decisions.ports import Step
from harvest.definitions.activity import ActivityDefinition
from harvest.definitions.registry import Registry
from harvest.definitions.retry import next_try
from harvest.errors import HubUnreachable
from harvest.failure import Failure, encode_failure, failure_of
from harvest.hub import activity_tasks
from harvest.hub.activity_tasks import Again, Beat, Finished
from harvest.hub.database import Database, Row
from harvest.service import Periodic
from harvest.telemetry.counts import Spread
from harvest.wakes.notifier import Notifier
from harvest.wakes.router import Router
from harvest.wakes.topics import QUEUE

log = logging.getLogger("harvest.activities")

CLAIM_SIZE = 200
RECONCILE_EVERY = 30.0
LOOK_AGAIN = 5.0
"""Seconds between looks for lost claims after a claim that failed."""
T = TypeVar("T")
R = TypeVar("R")


class Held(NamedTuple):
    """A task row that is ours: the step, which attempt, when its schedule-to-close ends, what the last one said."""

    step: Step
    attempt: int
    close_us: int | None
    heartbeat: str | None


class ActivityWorker(Periodic):
    """`slots` bounds eager and claimed tasks together. `deliver(step, arrival, lost)` is False where the run is not ours;
    `lost` is called when it was, and the result was not ingested.

    Implements the decider's `Hands`.
    """

    doing = "claim activities"

    def __init__(
        self,
        db: Database,
        registry: Registry,
        queue: str,
        *,
        slots: int,
        threads: int,
        drain: float,
        worker_id: Callable[[], UUID],
        deliver: Callable[[Step, ev.Arrival, Callable[[], None] | None], bool],
        wake: Callable[[UUID, int, str], None],
        router: Router,
        notifier: Notifier,
        clock: Clock,
        poll: float = 1.0,
    ) -> None:
        super().__init__(poll)
        self.db, self.registry, self.queue, self.slots, self.drain = db, registry, queue, slots, drain
        self.worker_id, self.deliver, self.wake, self.clock = worker_id, deliver, wake, clock
        self.router, self.notifier = router, notifier
        self.free = slots
        self.names = sorted(registry.activities)
        self.threads = Threads(threads)
        self.local = LocalSteps(registry, lambda step, arrival: deliver(step, arrival, None), self.threads)
        self.running: dict[tuple[UUID, int], Attempt] = {}
        self.waits = Spread()  # from due to claimed
        self._tasks: set[asyncio.Task[None]] = set()
        self._backlog = False
        self._look_at = self.looked_until = 0.0
        self._suspicious = 0
        self._missing: set[tuple[UUID, int]] = set()
        self._completions: Coalescer[Finished, Row | None] = Coalescer(self._complete_all)
        self._retries: Coalescer[Again, bool] = Coalescer(self._retry_all)
        self._beats: Coalescer[Beat, bool] = Coalescer(self._beat_all)

    # --- the decider's hands ------------------------------------------------------------------------

    def reserve(self, name: str, queue: str | None) -> bool:
        """Takes a slot for an eager task, if this worker serves its queue, knows it, and has one free."""
        if self.free <= 0 or (queue is not None and queue != self.queue) or name not in self.registry.activities:
            return False
        if self.stopping.is_set():
            return False
        self.free -= 1
        return True

    def unreserve(self) -> None:
        self._freed()

    def abandon(self, execution_id: UUID, seq: int) -> None:
        self._keep(self._give_back([(execution_id, seq)]))

    async def _give_back(self, keys: list[tuple[UUID, int]]) -> None:
        for queue in set(await activity_tasks.give_back(self.db, self.worker_id(), keys)):
            self.kick(queue)
            self.notifier.queue(queue)

    def start_local(self, step: Step) -> None:
        self.local.start(step)

    def start_eager(self, step: Step) -> None:
        close = step.options.schedule_to_close
        self._start(Held(step, 1, None if close is None else self.clock.now_us() + round(close * MICRO), None))

    def cancel(self, execution_id: UUID, seq: int) -> None:
        self.local.cancel(execution_id, seq)
        attempt = self.running.get((execution_id, seq))
        if attempt is not None:
            attempt.cancel()

    def due_in(self, seconds: float | None) -> None:
        """The owner's scan looked for us: when the next task of our queue is due. No look of our own for a while."""
        if not self._backlog and not self._nudged.is_set():
            self.looked_until = self.loop.time() + 1.5 * self.interval
        if seconds is not None and seconds <= self.interval:
            self.loop.call_later(max(0.0, seconds), self.kick, self.queue)

    def kick(self, queue: str) -> None:
        """Tasks may wait in this queue."""
        if queue == self.queue:
            self._backlog, self.looked_until = True, 0.0
            self.nudge()

    # --- life -------------------------------------------------------------------------------------

    async def _open(self) -> None:
        self.local.loop = self.loop = asyncio.get_running_loop()
        self._leave = self.router.subscribe(QUEUE, self._queues_woken)

    def _queues_woken(self, queues: list[str]) -> None:
        for queue in queues:
            self.kick(queue)

    async def _run(self) -> None:
        await (super()._run() if self.names else self.stopping.wait())

    async def turn(self) -> float:
        try:
            wait = await self.run_once()
            await self._reconcile()
        except Exception:
            self._look_at, self._suspicious = 0.0, 2  # it may have claimed, and its answer got lost
            raise
        return wait

    async def run_once(self) -> float:
        """Claims what there are slots for; returns seconds until it is worth looking again."""
        if not self._backlog:  # nobody said that tasks wait: one look is cheaper than a claim
            if self.loop.time() < self.looked_until:
                return self.interval  # the owner's scan looks for us
            due = await activity_tasks.next_due(self.db, queue=self.queue, names=self.names)
            if due is None or due > 0:
                return self.interval if due is None else min(self.interval, max(0.001, due))
        while self.free > 0 and not self.stopping.is_set():
            size = min(self.free, CLAIM_SIZE)
            self.free -= size  # decisions reserve meanwhile
            rows: Sequence[Row] = ()
            try:
                rows = await activity_tasks.claim(
                    self.db, queue=self.queue, names=self.names, worker_id=self.worker_id(), size=size
                )
            finally:
                self.free += size - len(rows)
            for row in rows:
                self.waits.add(row["waited"])
                self._start(self._held(row))
            self._backlog = len(rows) == size
            if not self._backlog:
                due = await activity_tasks.next_due(self.db, queue=self.queue, names=self.names)
                return self.interval if due is None else min(self.interval, max(0.001, due))
        return self.interval

    async def _reconcile(self) -> None:
        """Gives back tasks that the hub thinks are ours and that we do not run: a claim whose answer got lost.

        Seen twice, some seconds apart: a result on its way to its decision is no lost claim.
        """
        now = self.loop.time()
        if now < self._look_at:
            return
        self._look_at = now + (LOOK_AGAIN if self._suspicious else RECONCILE_EVERY)
        self._suspicious = max(0, self._suspicious - 1)
        missing = await activity_tasks.held(self.db, self.worker_id()) - set(self.running)
        lost, self._missing = missing & self._missing, missing
        if lost:
            log.warning("%d activities were claimed but never started; they go back to their queue", len(lost))
            await self._give_back(list(lost))

    def _held(self, row: Row) -> Held:
        options = ev.DEFAULT_OPTIONS if row["options"] is None else msgspec.json.decode(row["options"], type=ev.ActivityOptions)
        step = Step(
            row["pool"],
            row["execution_id"],
            row["workflow_id"],
            row["partition"],
            row["seq"],
            row["name"],
            row["queue"],
            msgspec.Raw(row["input"].encode()),
            options,
        )
        return Held(step, row["attempt"], row["close_us"], row["heartbeat"])

    def stop_claiming(self) -> None:
        self.stopping.set()
        self.nudge()

    async def finish_local(self, patience: float) -> None:
        """Gives the local steps that run now a moment to end: a new owner would run them again."""
        if self.local.running:
            await asyncio.wait(set(self.local.running.values()), timeout=patience)

    async def _close(self) -> None:
        """Lets what runs finish within the drain time; the rest is cancelled and its rows go back to the queue."""
        leave = getattr(self, "_leave", None)
        if leave is not None:
            leave()
        running = {*self._tasks, *self.local.running.values()}
        if running:
            _, late = await asyncio.wait(running, timeout=self.drain)
            for task in late:
                task.cancel()
            if late:
                log.warning("%d activities did not finish within %.1f s; they will run again", len(late), self.drain)
                await asyncio.wait(late, timeout=1)
        self.threads.shutdown(wait=False, cancel_futures=True)

    # --- attempts ---------------------------------------------------------------------------------

    def _start(self, held: Held) -> None:
        self._keep(self._attempt(held))

    def _freed(self) -> None:
        self.free += 1
        if self._backlog and self.free > 0:
            self.nudge()

    async def _attempt(self, held: Held) -> None:
        step = held.step
        key = (step.execution_id, step.seq)
        attempt = self.running[key] = Attempt(
            step, held.attempt, self._bounded(held), self.loop, earlier=held.heartbeat, on_beat=self._beat
        )
        attempt.task = asyncio.current_task()
        failure: Failure | None = None
        result: msgspec.Raw | None = None
        try:
            definition = self.registry.activity(step.name, step.queue)
            if definition.transactional:
                await self._transactional(definition, held, attempt)
                return
            arguments = definition.signature.decode_args(step.input)
            result = definition.signature.encode_result(await attempt.call(definition, arguments, self.threads))
        except asyncio.CancelledError as exc:
            if attempt.cancelled:
                return
            if attempt.task is not None and attempt.task.cancelling():
                raise  # the worker stops: the row goes back to the queue
            failure = failure_of(exc)  # the activity's own doing
        except _Superseded:
            log.info("activity %s of %s was re-tried elsewhere; its transaction is rolled back", step.name, step.workflow_id)
            return
        except BaseException as exc:  # SystemExit in an activity is the activity's failure, not the worker's end
            failure = failure_of(exc)
        finally:
            if self.running.get(key) is attempt:
                del self.running[key]
            self._freed()
        if attempt.cancelled and failure is None:
            return
        await self._finished(held, result, failure)

    def _bounded(self, held: Held) -> ev.ActivityOptions:
        """Options whose start-to-close also ends at schedule-to-close."""
        options = held.step.options
        if held.close_us is None:
            return options
        left = max(0.001, (held.close_us - self.clock.now_us()) / MICRO)
        if options.start_to_close is not None and options.start_to_close <= left:
            return options
        return msgspec.structs.replace(options, start_to_close=left)

    async def _transactional(self, definition: ActivityDefinition, held: Held, attempt: Attempt) -> None:
        step = held.step
        async with self.db.user_transaction() as connection:
            arguments = (connection, *definition.signature.decode_args(step.input))
            result = definition.signature.encode_result(await attempt.call(definition, arguments, self.threads))
            end = Finished(step.execution_id, step.seq, held.attempt, bytes(result).decode(), None)
            async with self.db.inside(connection) as session:
                rows = await activity_tasks.complete(session, self.worker_id(), [end])
                if not rows:
                    raise _Superseded
        self._stored(rows[0])

    def _stored(self, row: Row) -> None:
        """A result is in the task's row: its run's owner should look."""
        self.wake(row["execution_id"], row["partition"], row["pool"])

    async def _finished(self, held: Held, result: msgspec.Raw | None, failure: Failure | None) -> None:
        step, attempt = held.step, held.attempt
        if failure is not None:
            left = None if held.close_us is None else (held.close_us - self.clock.now_us()) / MICRO
            delay = next_try(step.options.retry, attempt, failure, left=left)
            if delay is not None:
                log.info(
                    "activity %s of %s failed, try %d in %.1f s: %s",
                    step.name,
                    step.workflow_id,
                    attempt + 1,
                    delay,
                    failure.message,
                )
                again = Again(step.execution_id, step.seq, attempt, delay, encode_failure(failure))
                if await self._surely(self._retries, again):
                    asyncio.get_running_loop().call_later(delay, self.kick, step.queue)
                return
            arrival: ev.Arrival = ev.ActivityFailed(step.seq, failure, attempt)
        else:
            assert result is not None
            arrival = ev.ActivityCompleted(step.seq, result)
        if self.deliver(step, arrival, lambda: self._keep(self._store(held, result, failure))):
            return
        await self._store(held, result, failure)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _store(self, held: Held, result: msgspec.Raw | None, failure: Failure | None) -> None:
        """Into the task's row, for whoever decides the run."""
        step = held.step
        text = None if result is None else bytes(result).decode()
        end = Finished(step.execution_id, step.seq, held.attempt, text, None if failure is None else encode_failure(failure))
        row = await self._surely(self._completions, end)
        if row is not None:
            self._stored(row)

    async def _surely(self, writes: Coalescer[T, R], item: T) -> R:
        """A result is not given up while the database is away."""
        backoff, tries = Backoff(0.1, cap=5.0), 0
        while True:
            try:
                return await writes.submit(item)
            except Exception as exc:
                tries += 1
                log.warning("the end of an activity could not be written (try %d): %s", tries, exc)
                if not isinstance(exc, HubUnreachable) and tries > 3:
                    raise
            await asyncio.sleep(backoff.delay(tries))

    # --- coalesced writes -------------------------------------------------------------------------

    async def _complete_all(self, ends: Sequence[Finished]) -> Sequence[Row | None]:
        rows = await activity_tasks.complete(self.db, self.worker_id(), ends)
        landed = {(row["execution_id"], row["seq"]): row for row in rows}
        return [landed.get((end.execution_id, end.seq)) for end in ends]

    async def _retry_all(self, again: Sequence[Again]) -> Sequence[bool]:
        landed = {(row["execution_id"], row["seq"]) for row in await activity_tasks.retry(self.db, again, self.worker_id())}
        return [(item.execution_id, item.seq) in landed for item in again]

    async def _beat_all(self, beats: Sequence[Beat]) -> Sequence[bool]:
        held = await activity_tasks.beat(self.db, self.worker_id(), beats)
        return [(beat.execution_id, beat.seq) in held for beat in beats]

    def _beat(self, attempt: Attempt) -> None:
        """A heartbeat: written at most once per two fifths of its time-out (or per second)."""
        if attempt.beats > 1:
            return  # a writer is at it, and will see the latest details
        self._keep(self._write_beats(attempt))

    async def _write_beats(self, attempt: Attempt) -> None:
        step, pause = attempt.step, 0.4 * (attempt.options.heartbeat or 2.5)
        key = (step.execution_id, step.seq)
        while self.running.get(key) is attempt and not attempt.cancelled:
            seen = attempt.beats
            try:
                held = await self._beats.submit(Beat(step.execution_id, step.seq, attempt.number, attempt.details))
            except Exception as exc:
                log.warning("heartbeat of %s could not be written: %s", step.name, exc)
                held = True
            if not held and self.running.get(key) is attempt:
                attempt.cancel()
                return
            await asyncio.sleep(pause)
            if attempt.beats == seen:
                attempt.beats = 0
                return


class _Superseded(Exception):
    """The task's row is not ours any more; the activity's transaction must not commit."""
