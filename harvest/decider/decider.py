"""The owner's decider: takes runs from the inbox, drives them, commits, and lets effects leave."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from time import perf_counter
from typing import Any
from uuid import UUID

import msgspec

from harvest.clock import Clock
from harvest.core.entity import EntityInstance
from harvest.core.events import ActivityScheduled, RetrySpec, TimerFired, UpdateAdmitted
from harvest.core.loop import driving_many
from harvest.core.program import RunInfo
from harvest.decider import pauses
from harvest.decider.effects import Effects, refuse, resolve
from harvest.decider.inbox import Inbox
from harvest.decider.lanes import Lane
from harvest.decider.launches import Launches
from harvest.decider.loader import Loader, answer, refuse_questions
from harvest.decider.options import DeciderOptions
from harvest.decider.prune import Pruner
from harvest.decider.shelf import Shelf
from harvest.decider.strikes import Strikes
from harvest.decider.timers import Timers
from harvest.decider.tracing import Tracing
from harvest.decisions.answers import Admitted, Undelivered
from harvest.decisions.decide import ENDING, Draft, decide, needs_its_row
from harvest.decisions.ports import Hands, Holdings
from harvest.decisions.residents import Residents
from harvest.decisions.rows import Writer
from harvest.decisions.run import Claim, Delivery, Parent, Question, Run
from harvest.definitions.registry import Registry
from harvest.errors import Fenced, HubUnreachable
from harvest.hub import workflow_tasks
from harvest.hub.commit import Batch, Committed
from harvest.hub.database import Database
from harvest.ids import partition_of
from harvest.ownership.watchdog import Driving, LoopStuck
from harvest.service import Service
from harvest.telemetry.counts import LastMinute, Spread
from harvest.wakes.notifier import Notifier
from harvest.wakes.router import Router

log = logging.getLogger("harvest.decider")

DRIVE_SLICE = 0.02
MIN_SHARE = 16


class Decider(Service):
    """`offer`, `wake`, `begin`, `claimed` and `ask` are how the rest of the worker brings it something.

    `holdings` says what it may decide. `on_timer()` is called when a run that is in memory, and not claimed, has a timer due.
    """

    def __init__(
        self,
        db: Database,
        registry: Registry,
        pool: str,
        *,
        holdings: Holdings,
        hands: Hands,
        router: Router,
        notifier: Notifier,
        clock: Clock,
        options: DeciderOptions,
        driving: Driving,
        on_timer: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self.db, self.registry, self.pool = db, registry, pool
        self.holdings, self.hands, self.router, self.notifier, self.clock = holdings, hands, router, notifier, clock
        self.options, self.driving, self.on_timer = options, driving, on_timer
        self.runs: dict[UUID, Run] = {}
        self.open_ids: dict[str, UUID] = {}
        self.residents = Residents(options.resident_entries, options.resident_bytes)
        self.inbox = Inbox()
        self.timers = Timers(clock, self._due)
        self.outcomes: Counter[tuple[str, str]] = Counter()  # (workflow, how the decision began)
        self.closed: Counter[str] = Counter()  # by state
        self.waits = Spread()  # from ready to driven
        self.minute = LastMinute(clock.monotonic)
        self.timed: Callable[[float, str, str], None] | None = None
        self.tracing: Tracing | None = None
        self.effects = Effects(self)
        writer = Writer(pool)
        self.lanes = [Lane(db, writer, options.first_lane + n, self._gate) for n in range(options.lanes)]
        self.free: list[Lane] = []
        self._early: dict[UUID, Claim] = {}
        self.waiting_for_mail: set[UUID] = set()  # successors whose predecessor's mail is on its way
        self.loader = Loader(self)
        self.strikes = Strikes(self)
        self.pruner = Pruner(self)
        self.launches = Launches(self)
        self.launch = self.launches.begin
        self.shelf: Shelf | None = None
        self.on_state: Callable[[Run, EntityInstance], None] | None = None
        self.on_gone: Callable[[Run], None] = lambda _: None
        self._pumping = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self.loop: asyncio.AbstractEventLoop | None = None

    @property
    def worker_id(self) -> UUID:
        return self.holdings.worker_id

    # --- life -------------------------------------------------------------------------------------

    async def _open(self) -> None:
        self.timers.loop = self.notifier.loop = self.loop = asyncio.get_running_loop()
        self.driving.thread_id = threading.get_ident()
        for lane in self.lanes:
            lane.worker_id = self.holdings.worker_id
            if self.options.first_lane == 0:  # the others connect when they are needed
                await lane.connected()
        self.free = list(self.lanes)
        self.pump_soon()

    async def _close(self) -> None:
        """Lets commits in flight finish, then takes every run out of memory."""
        await self.quiet(5.0)
        self.drop_all()
        for task in list(self._tasks):
            task.cancel()
        for lane in self.lanes:
            await lane.close()

    async def quiet(self, patience: float) -> bool:
        """Waits for the commits in flight; False when some were still on their way after `patience` seconds."""
        end = asyncio.get_running_loop().time() + patience
        while len(self.free) < len(self.lanes) and self._tasks:
            left = end - asyncio.get_running_loop().time()
            if left <= 0:
                return False
            await asyncio.wait(set(self._tasks), timeout=left, return_when=asyncio.FIRST_COMPLETED)
        return True

    def take_up(self, holdings: Holdings, worker_id: UUID) -> None:
        """Another identity, or another way of taking work: nothing of the old one is kept."""
        self.drop_all()
        self.holdings = holdings
        for lane in self.lanes:
            lane.worker_id = worker_id

    def busy_partitions(self) -> set[int]:
        """Partitions with a decision in flight."""
        return {run.partition for run in self.runs.values() if run.busy}

    def leave(self, partitions: Sequence[int]) -> None:
        """These are about to be released: their runs leave memory, unless a commit is on its way."""
        gone = set(partitions)
        if self.shelf is not None:
            self.shelf.leave(gone)
        for run in [r for r in self.runs.values() if r.partition in gone and not r.busy]:
            self.let_go(run)

    def let_go(self, run: Run) -> None:
        """Out of memory; who waits for it here is sent to the mailbox."""
        if run.launch is not None:
            self.launches.abandon(run)
            return
        self.refuse_all(run)
        self.residents.take(run)
        self.timers.forget(run.execution_id)
        self.loader.waiting.pop(run.execution_id, None)
        run.drop_instance()
        self.unlist(run)

    def unlist(self, run: Run) -> None:
        """It is not found here any more."""
        if self.runs.get(run.execution_id) is run:
            del self.runs[run.execution_id]
        if self.open_ids.get(run.workflow_id) == run.execution_id:
            del self.open_ids[run.workflow_id]

    def _gate(self, batch: Batch, drafts: list[Draft]) -> None:
        self.holdings.gate(batch, ((draft.run.execution_id, draft.run.partition) for draft in drafts))

    def drop_all(self) -> None:
        """Forgets everything held: after a fence, or at the end. Direct callers are sent to the mailbox."""
        self.inbox.clear()
        if self.shelf is not None:
            self.shelf.leave_all()
        self._early.clear()
        self.timers.clear()
        self.loader.waiting.clear()
        self.residents.clear()
        for run in list(self.runs.values()):
            self.refuse_all(run)
            run.drop_instance()
        self.runs.clear()
        self.open_ids.clear()

    def refuse_all(self, run: Run) -> None:
        lost = Undelivered("this worker no longer owns the run")
        refuse(run.launch_ack, lost)
        for delivery in run.queue:
            delivery.refuse(lost)
        # A launch that came to nothing has no history; while a commit is on its way nobody knows yet, and who asks will look.
        in_history = not run.busy and run.launch is None
        for future in run.updates.values():
            refuse(future, Admitted("another worker will answer it") if in_history else lost)
        refuse_questions(run, lost)
        run.queue.clear()
        run.updates.clear()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Runs something on the side; its error is logged, and a scan makes up for it."""
        task = (self.loop or asyncio.get_running_loop()).create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._side_done)

    def _side_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("decider: %s", task.exception(), exc_info=task.exception())

    # --- what comes in ----------------------------------------------------------------------------

    def owns(self, workflow_id: str) -> bool:
        return self.holdings.owns(partition_of(workflow_id))

    def knows(self, workflow: str) -> bool:
        return workflow in self.registry.workflows

    def keeps(self, type: str) -> bool:
        return type in self.registry.entities

    def holds(self, workflow_id: str) -> UUID | None:
        """The open run of this id when it is in memory and has no unread mail: what may be offered directly."""
        execution_id = self.open_ids.get(workflow_id)
        run = None if execution_id is None else self.runs.get(execution_id)
        if (
            run is None
            or run.launch is not None
            or not run.known
            or run.mail
            or run.loading
            or run.loaded is not None
            or run.dead
        ):
            return None
        return execution_id

    def seat(self, workflow_id: str) -> UUID | None:
        """The open run of this id that is known here: entities take calls while they are loaded, or stored."""
        return self.open_ids.get(workflow_id)

    def holds_open(self, execution_id: UUID) -> bool:
        run = self.runs.get(execution_id)
        return run is not None and run.known and not run.terminal and self.holdings.owns(run.partition)

    def _entry(self, execution_id: UUID, partition: int) -> Run:
        run = self.runs.get(execution_id)
        if run is None:
            run = self.runs[execution_id] = Run(execution_id, partition)
        return run

    def offer(self, execution_id: UUID, partition: int, delivery: Delivery) -> bool:
        """An arrival for a run of ours; False when the run is not ours, or is parked with an error."""
        if not self.holdings.covers(execution_id, partition) or self.stopping.is_set():
            return False
        run = self._entry(execution_id, partition)
        if run.parking or (run.dead and not isinstance(delivery.arrival, ENDING)):
            return False
        if run.offer(delivery):
            self.enqueue(run)
        return True

    def wake(self, execution_id: UUID, partition: int) -> None:
        """A run may have mail or finished activities in the hub."""
        if self.holdings.covers(execution_id, partition) and execution_id not in self.waiting_for_mail:
            run = self._entry(execution_id, partition)
            run.mail = True
            self.enqueue(run)

    def due(self, execution_id: UUID, partition: int, due_us: int | None) -> None:
        """A scan found the run's task: due now, or soon."""
        if not self.holdings.owns(partition) or execution_id in self.waiting_for_mail:
            return
        run = self.runs.get(execution_id)
        if run is not None and run.dead:  # it would not be due, unless it was redriven
            self.wake(execution_id, partition)
            return
        if run is not None and (run.busy or run.queued or run.loaded is not None):
            return
        if due_us is not None and due_us > self.clock.now_us():
            self.timers.hint(due_us, execution_id, partition)
            return
        self.enqueue(self._entry(execution_id, partition))

    def begin(
        self,
        execution_id: UUID,
        info: RunInfo,
        *,
        priority: int = 0,
        deadline_us: int | None = None,
        parent: Parent | None = None,
        parent_close: str | None = None,
        mail: bool = False,
        retry: RetrySpec | None = None,
    ) -> None:
        """A run that was just stored and has no history: nothing needs to be read for it."""
        partition = partition_of(info.workflow_id)
        if not self.holdings.owns(partition) or execution_id in self.runs:
            return
        run = self._entry(execution_id, partition)
        run.info, run.workflow_id = info, info.workflow_id
        run.priority, run.deadline_us, run.parent = priority, deadline_us, parent
        run.known, run.mail, run.parent_close, run.retry = True, mail, parent_close, retry
        self.open_ids[run.workflow_id] = execution_id
        self.enqueue(run)

    def claimed(self, claim: Claim) -> None:
        """Takes up a run that was claimed. What is in memory is used if history has not moved on since (S-3)."""
        run = self._entry(claim.execution_id, claim.partition)
        if run.busy:  # the commit that parked it has landed, and its answer is still on its way
            self._early[claim.execution_id] = claim
            return
        run.claim, run.mail, run.stored = claim, True, ("running", None)
        run.blocked_until = 0
        if run.instance is None or run.decision != claim.decision:
            self.residents.take(run)
            run.drop_instance()
            run.known = run.dead = False
        self.enqueue(run)

    def ask(
        self, execution_id: UUID, partition: int, name: str, input: msgspec.Raw, *, read_mail: bool = False
    ) -> asyncio.Future[msgspec.Raw]:
        """A query; the future resolves with raw JSON.

        `read_mail` ingests first what is in the mailbox: a caller elsewhere may have sent it just before.
        """
        answer: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()
        run = self._entry(execution_id, partition)
        run.mail = run.mail or read_mail
        run.questions.append(Question(name, input, answer))
        self.enqueue(run)
        return answer

    def _due(self, execution_id: UUID, partition: int) -> None:
        if self.holdings.covers(execution_id, partition):
            self.enqueue(self._entry(execution_id, partition))
        else:
            self.on_timer()

    def enqueue(self, run: Run) -> None:
        if self.inbox.put(run, self.clock.now_us()):
            if not run.since:
                run.since = perf_counter()
            self.pump_soon()

    def pump_soon(self) -> None:
        if not self._pumping and self.loop is not None and not self.stopping.is_set():
            self._pumping = True
            self.loop.call_soon(self._pump)

    # --- deciding ---------------------------------------------------------------------------------

    def _pump(self) -> None:
        """A plain callback: takes what is ready, and gives each free lane a batch."""
        self._pumping = False
        if self.holdings.distrusted() or self.stopping.is_set():
            return
        until = perf_counter() + DRIVE_SLICE
        while self.free and len(self.inbox):
            drafts: list[Draft] = []
            # What is ready is shared among the free lanes, so that one commits while the next is driven.
            share = -(-len(self.inbox) // len(self.free))
            size = min(self.options.batch, max(MIN_SHARE, share))
            try:
                with driving_many():
                    while len(drafts) < size and perf_counter() < until:
                        run = self.inbox.take()
                        if run is None:
                            break
                        draft = self._take(run)
                        if draft is not None:
                            run.busy = True
                            run.parking = draft.pausing or draft.parks
                            drafts.append(draft)
            finally:
                if drafts:
                    self.spawn(self._commit(self.free.pop(), drafts))
            if perf_counter() >= until:
                break
        if len(self.inbox) and self.free:
            self.pump_soon()
        self.loader.start()

    def _take(self, run: Run) -> Draft | None:
        """A draft, or None when there is nothing to commit (yet)."""
        if self.runs.get(run.execution_id) is not run:
            return None  # let go while it waited
        if not self.holdings.covers(run.execution_id, run.partition):
            self.loader.only_ask(run)
            return None
        now = self.clock.now_us()
        if run.blocked_until > now and not run.dead and not self.loader.urgent(run):
            return None
        try:
            mode = self.loader.ready(run)
            if mode is None:
                return None
            self.residents.take(run)
            draft = self._drive(run, now, mode)
            if draft is not None and draft.launch is not None and needs_its_row(draft):
                self.unreserve(draft)
                raise Undelivered("a run that continues at once, or writes to itself, is stored first")
        except (Exception, LoopStuck) as exc:
            self.strikes.failed(run, exc)
            return None
        if draft is None:
            self._settle(run)
        elif self.launches.came_to_nothing(draft):
            return None
        return draft

    def answer(self, run: Run) -> None:
        """Questions run code of the user, too: it is watched like a decision."""
        self.driving.begin(run)
        try:
            answer(run)
        finally:
            self.driving.end()

    def _drive(self, run: Run, now: int, mode: str) -> Draft | None:
        """`decide`, watched: code that holds the loop for a whole lease is broken off, and its decision fails (R-2)."""
        began, decided = perf_counter(), True
        since = run.since or began
        run.since = 0.0
        self.driving.begin(run)
        if self.tracing is not None:
            self.tracing.begin(run, mode)
        try:
            draft = decide(run, now, mode, self.hands.reserve, self.options.attempts)
            decided = draft is not None  # else there was a question, or nothing
            return draft
        finally:
            self.driving.end()
            if self.tracing is not None:
                self.tracing.drove(run)
            if decided and run.info is not None:
                self.waits.add(began - since)
                self.outcomes[run.info.type, mode] += 1
                if self.timed is not None:
                    self.timed(perf_counter() - since, run.info.type, mode)

    # --- committing -------------------------------------------------------------------------------

    async def _commit(self, lane: Lane, drafts: list[Draft]) -> None:
        tenure = self.holdings.worker_id
        try:
            await lane.commit(drafts, self._landed, self._poisoned, self.launches.taken)
        except Fenced as exc:
            log.warning("fenced: %s; dropping everything held", exc)
            for draft in drafts:
                if self.tracing is not None:
                    self.tracing.failed(draft.run, exc)
                if draft.run.busy:  # a part of the batch may have landed before
                    self.unreserve(draft)
                for delivery in draft.deliveries:
                    delivery.refuse(Undelivered("this worker may no longer write"))
            if self.holdings.worker_id == tenure:  # else a new tenure has begun already, and nothing is wrong with it
                self.drop_all()
                await self.holdings.fenced()
        except BaseException:
            unsure = HubUnreachable("this worker stopped while the hub was away; the request may be stored")
            for draft in drafts:
                refuse(draft.run.launch_ack, unsure)
                for delivery in draft.deliveries:
                    refuse(delivery.ack, unsure)
            raise
        finally:
            self.free.append(lane)
            if len(self.inbox):
                self.pump_soon()

    def _landed(self, drafts: list[Draft], committed: Committed) -> None:
        for draft in drafts:
            run = draft.run
            run.busy = run.parking = False
            if self.tracing is not None:
                self.tracing.landed(draft)
            if self.runs.get(run.execution_id) is not run:
                # Dropped while it was on its way: durable all the same, and whoever owns it now goes on from there.
                for seq in self.unreserve(draft):
                    self.hands.abandon(run.execution_id, seq)
                resolve(run.launch_ack)
                for delivery in draft.deliveries:
                    if isinstance(delivery.arrival, UpdateAdmitted):
                        refuse(delivery.ack, Admitted("the answer will be in history"))
                    else:
                        resolve(delivery.ack)
                continue
            if draft.launch is not None:
                run.launch = None
                resolve(run.launch_ack)
            if draft.pausing:
                pauses.landed(self, draft, committed)
                continue
            if draft.task is not None:
                run.stored = draft.task
                if run.claim is not None and draft.task[0] == "parked":
                    self._parked(run)
            if run.strikes or run.failing:
                run.strikes, run.failing = 0, False
                self.spawn(workflow_tasks.healed(self.db, [run.execution_id]))
            self.effects.after(draft, committed)
            if draft.closing is None:
                self._settle(run)
        if committed.posted:
            self.effects.posted(committed)

    def unclaim(self, run: Run) -> None:
        """Its claim has ended, if it had one."""
        if run.claim is not None:
            self.holdings.done(run.claim)
            run.claim = None

    def _parked(self, run: Run) -> None:
        """The claim went with the commit. What came meanwhile is in the mailbox, and makes the run due again (S-2)."""
        self.unclaim(run)
        early = self._early.pop(run.execution_id, None)
        if early is not None and self.loop is not None:
            self.loop.call_soon(self.claimed, early)
            return
        if run.questions and not run.mail and not run.loading and run.instance is not None:
            self.answer(run)
        if run.queue or run.mail or run.questions:
            self.refuse_all(run)
            run.seen.clear()
            run.mail = False
            self.notifier.decide(self.pool, run.execution_id, run.partition)

    def _settle(self, run: Run) -> None:
        """After a decision (or a wake for nothing): answer, arm its timer, look for more, keep it in memory."""
        if not self.holdings.by_claim and not self.holdings.covers(run.execution_id, run.partition):
            self.let_go(run)  # its partition was left while the commit was on its way
            return
        unread = run.mail or run.loading or run.loaded is not None or bool(run.queue)
        if run.questions and not unread and run.instance is not None:
            self.answer(run)
        due = run.next_due_us()
        if due is None:
            self.timers.forget(run.execution_id)
        else:
            self.timers.arm(due, run.execution_id, run.partition)
        if run.queue or run.mail or run.restless or (run.questions and not run.loading):
            self.enqueue(run)
        if run.instance is None:
            return
        for gone in self.residents.put(run):
            gone.drop_instance()
            gone.known = False
            if gone.idle:
                self.runs.pop(gone.execution_id, None)
                self.open_ids.pop(gone.workflow_id, None)

    def forget(self, run: Run) -> None:
        """A closed run leaves; what it had no time to look at goes back to the sender."""
        run.terminal = True
        self.unclaim(run)
        self.timers.forget(run.execution_id)
        self.unlist(run)
        for delivery in run.queue:  # through the mailbox they reach a successor behind the mail that came first
            refuse(delivery.ack, Undelivered("the run closed"))
        unread = run.mail or run.loading or run.loaded is not None or any(d.message is not None for d in run.queue)
        run.queue.clear()
        refuse_questions(run, Undelivered("the run closed"))
        run.drop_instance()
        if unread and self.loop is not None:
            self.loop.call_soon(self.wake, run.execution_id, run.partition)  # its unread mail is answered, or follows

    def _poisoned(self, draft: Draft, exc: Exception) -> None:
        run = draft.run
        run.busy = run.parking = False
        self.unreserve(draft)
        run.queue.extendleft(reversed([d for d in draft.deliveries if not isinstance(d.arrival, TimerFired)]))
        self.strikes.failed(run, exc)

    def unreserve(self, draft: Draft) -> list[int]:
        """Gives back the slots taken for eager activities that will not start; their numbers."""
        tasks = draft.run.tasks
        seqs = [c.seq for c in draft.commands if isinstance(c, ActivityScheduled) and tasks.get(c.seq) == "running"]
        for _ in seqs:
            self.hands.unreserve()
        return seqs
