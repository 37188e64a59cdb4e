"""What leaves after a commit: activities start, wakes are sent, callers are answered."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any
from uuid import UUID

from harvest.backoff import Backoff
from harvest.core import events as ev
from harvest.core.entity import EntityInstance
from harvest.core.program import RunInfo
from harvest.decisions.answers import Answer, Carried, Undelivered
from harvest.decisions.decide import ENDING, Draft, caller_of, outcome_of
from harvest.decisions.ports import Step
from harvest.decisions.rows import (
    answer_message_id,
    answer_of,
    child_arrival,
    child_message_id,
    external_key,
    external_mail,
    id_taken,
    left_waiting,
    unfinished,
)
from harvest.decisions.run import Delivery, Parent, Run
from harvest.errors import HubError
from harvest.failure import Failure, encode_failure, failure_of
from harvest.hub import messages, workflow_tasks
from harvest.hub.commit import Committed
from harvest.ids import is_entity, partition_of, queue_of
from harvest.wakes.topics import CLOSED, REPLY, reply_key

log = logging.getLogger("harvest.decider")

if TYPE_CHECKING:
    from harvest.decider.decider import Decider


def resolve(future: asyncio.Future[Any] | None, value: Any = None) -> None:
    if future is not None and not future.done():
        future.set_result(value)


def refuse(future: asyncio.Future[Any] | None, error: BaseException) -> None:
    if future is not None and not future.done():
        future.set_exception(error)


class Effects:
    """Bound to one decider; `after(draft, committed)` runs once per durable draft."""

    def __init__(self, decider: Decider) -> None:
        self.decider = decider

    def after(self, draft: Draft, committed: Committed) -> None:
        run = draft.run
        self._tell(run, "RUNNING" if draft.closing is None else draft.state, draft.number)
        for delivery in draft.deliveries:
            if delivery.message is not None:
                run.seen.discard(delivery.message)
            if delivery.ack is None:
                continue
            if isinstance(delivery.arrival, ev.UpdateAdmitted):
                if draft.by_engine:
                    refuse(delivery.ack, Answer(unfinished(draft.state)))
            else:
                if draft.by_engine and not isinstance(delivery.arrival, ENDING):
                    refuse(delivery.ack, Undelivered("the run was ended"))
                else:
                    resolve(delivery.ack)
        for delivery, reason in draft.rejected:
            self._rejected(run, delivery, reason)
        if draft.closing is not None:
            self._commands(draft, committed, closing=True)
            self._closed(draft)
            if self.decider.shelf is not None:
                self.decider.shelf.forget(run.execution_id, run.partition)
        elif draft.commands or run.reissue:
            for command in run.reissue:
                if isinstance(command, ev.ActivityScheduled):
                    self.start_activity(run, command)
            run.reissue = []
            self._commands(draft, committed, closing=False)
            if self.decider.on_state is not None and isinstance(run.instance, EntityInstance):
                self.decider.on_state(run, run.instance)

    def _tell(self, run: Run, state: str, decision: int) -> None:
        if run.info is not None:
            self.decider.notifier.announcer.note(run.execution_id, run.workflow_id, run.info.type, state, decision)

    def paused(self, run: Run, decision: int) -> None:
        self._tell(run, "PAUSED", decision)

    def _rejected(self, run: Run, delivery: Delivery, reason: BaseException) -> None:
        update_id = delivery.arrival.update_id  # type: ignore[union-attr]
        run.remote_updates.discard(update_id)
        future = run.updates.pop(update_id, None)
        if future is not None:
            refuse(future, Answer(failure_of(reason), rejected=True))
        else:
            self.replied(run, update_id)

    def replied(self, run: Run, update_id: str) -> None:
        """Its mailbox row has an answer: who waits for it is told, here and elsewhere."""
        decider = self.decider
        decider.router.wake(REPLY, reply_key(run.workflow_id, update_id))
        decider.notifier.reply(run.workflow_id, update_id)

    def _commands(self, draft: Draft, committed: Committed, *, closing: bool) -> None:
        run = draft.run
        for command in draft.commands:
            kind = command.__class__
            if kind is ev.ActivityScheduled:
                if not closing:
                    self.start_activity(run, command)  # type: ignore[arg-type]
            elif kind is ev.ActivityCancelRequested:
                self.decider.hands.cancel(run.execution_id, command.seq)  # type: ignore[union-attr]
            elif isinstance(command, ev.ChildStarted):
                self._child(draft, command, committed)
            elif isinstance(command, (ev.UpdateCompleted, ev.UpdateFailed)):
                caller = caller_of(command)
                if caller is None:
                    self._updated(run, command)
                else:
                    self._answer(caller, answer_of(caller, command))  # type: ignore[arg-type]
            elif kind is ev.StateRecorded:
                self.decider.pruner.note(run.execution_id, run.recorded)
                run.recorded = draft.number
            elif isinstance(command, (ev.ExternalSignalSent, ev.ExternalCancelSent)):
                self._external(draft, command, committed)

    def posted(self, committed: Committed) -> None:
        """Wakes the runs that got mail from this batch."""
        for _, execution_id, pool, partition, _ in committed.posted:
            self._mail(execution_id, pool, partition)

    def start_activity(self, run: Run, command: ev.ActivityScheduled) -> None:
        decider, options = self.decider, command.options
        queue = options.queue or queue_of(decider.pool)
        if options.mode != "local" and run.tasks.get(command.seq) != "running":
            decider.hands.kick(queue)
            decider.notifier.queue(queue)
            return
        step = Step(
            decider.pool,
            run.execution_id,
            run.workflow_id,
            run.partition,
            command.seq,
            command.name,
            queue,
            command.input,
            options,
        )
        if options.mode == "local":
            decider.hands.start_local(step)
        else:
            decider.hands.start_eager(step)

    def _child(self, draft: Draft, command: ev.ChildStarted, committed: Committed) -> None:
        run, decider = draft.run, self.decider
        if draft.closing is not None and command.parent_close != "abandon":
            return
        execution_id = draft.ids[command.seq]
        if execution_id not in committed.started:
            if draft.closing is None:
                refusal = ev.ChildFailed(command.seq, id_taken(command.workflow_id))
                self._hand(run.execution_id, run.partition, decider.pool, Delivery(refusal, execution_id))
            return
        pool = command.queue or decider.pool
        if pool != decider.pool or not decider.owns(command.workflow_id):
            decider.notifier.decide(pool, execution_id, partition_of(command.workflow_id))
            return
        info = RunInfo(
            workflow_id=command.workflow_id,
            execution_id=str(execution_id),
            type=command.name,
            queue=queue_of(pool),
            seed=execution_id.int & 0x7FFF_FFFF_FFFF_FFFF,
            input=command.input,
            parent_workflow_id=run.workflow_id,
        )
        parent = Parent(run.execution_id, run.workflow_id, decider.pool, command.seq)
        deadline = None if command.timeout is None else decider.clock.now_us() + round(command.timeout * 1e6)
        decider.begin(
            execution_id,
            info,
            parent_close=command.parent_close,
            priority=command.priority,
            deadline_us=deadline,
            parent=parent,
            retry=command.retry,
        )

    def _updated(self, run: Run, command: ev.UpdateCompleted | ev.UpdateFailed) -> None:
        run.remote_updates.discard(command.update_id)
        future = run.updates.pop(command.update_id, None)
        if future is None:
            self.replied(run, command.update_id)
        elif isinstance(command, ev.UpdateCompleted):
            resolve(future, command.result)
        else:
            refuse(future, Answer(command.failure))

    def _answer(self, caller: ev.Caller, arrival: ev.CallAnswered | ev.CallFailed) -> None:
        partition = partition_of(caller.workflow_id)
        self._hand(UUID(caller.execution_id), partition, caller.pool, Delivery(arrival, answer_message_id(caller)))

    def _external(self, draft: Draft, command: ev.ExternalSignalSent | ev.ExternalCancelSent, committed: Committed) -> None:
        if draft.closing is not None:
            return
        if committed.unsure:
            self.decider.spawn(self.repost(draft.run, command))
            return
        key = external_key(draft.run.execution_id, command.seq)
        self.external_done(draft.run, command, key in committed.keys)

    def external_done(self, run: Run, command: ev.ExternalSignalSent | ev.ExternalCancelSent, found: bool) -> None:
        failure = None if found else Failure(f"no open run has the workflow id {command.workflow_id!r}", "WorkflowNotFound")
        self.decider.offer(run.execution_id, run.partition, Delivery(ev.ExternalDone(command.seq, failure)))

    async def repost(self, run: Run, command: ev.ExternalSignalSent | ev.ExternalCancelSent) -> None:
        """Sends an external request whose outcome was lost with its owner; its key keeps it from acting twice."""
        kind, name, key, event = external_mail(run.execution_id, command)
        message_id = UUID(int=run.execution_id.int ^ command.seq)
        mail = messages.Mail(message_id, command.workflow_id, kind, name, key, event)
        db, tries = self.decider.db, 0
        while True:
            try:
                sent = await messages.send(db, [mail])
                known = sent or await messages.by_key(db, workflow_id=command.workflow_id, kind=mail.kind, key=key)
                break
            except HubError as exc:
                tries += 1
                log.warning("an external request of %s waits for the hub: %s", run.workflow_id, exc)
                await asyncio.sleep(Backoff(0.5, cap=10.0).delay(tries))
        for row in sent.values():
            self._mail(row["execution_id"], row["pool"], row["partition"])
        self.external_done(run, command, bool(known))

    def _mail(self, execution_id: UUID, pool: str, partition: int) -> None:
        """A mailbox row was written for a run: wake its owner."""
        decider = self.decider
        if pool == decider.pool and decider.holdings.covers(execution_id, partition):
            decider.wake(execution_id, partition)
        else:
            decider.notifier.decide(pool, execution_id, partition)

    def _closed(self, draft: Draft) -> None:
        run, decider = draft.run, self.decider
        assert draft.closing is not None
        decider.closed[draft.state] += 1
        for seq in (*run.hot, *run.tasks):
            decider.hands.cancel(run.execution_id, seq)
        carried = draft.fork is not None
        for update_id in () if carried else run.remote_updates:
            self.replied(run, update_id)
        for caller in left_waiting(draft) if is_entity(run.workflow_id) else ():
            self._answer(caller, ev.CallFailed(caller.seq, unfinished(draft.state)))
        for future in run.updates.values():
            refuse(future, Carried("the run that takes over has it") if carried else Answer(unfinished(draft.state)))
        result, failure = outcome_of(draft.closing)
        successor = draft.ids.get(0)
        key = str(run.execution_id)
        assert run.info is not None
        if isinstance(draft.closing, ev.RunFailed):
            why = draft.closing.failure
            then = "" if draft.fork is None else f"; attempt {run.info.attempt + 1} begins in {draft.fork.delay:.1f} s"
            # Not its message: that may quote what the run was given.
            log.warning("workflow %s %s failed with %s%s (harvest run show)", run.info.type, run.workflow_id, why.type, then)
            if draft.by_engine:  # somebody should look at it
                decider.spawn(self._bury(run, run.info.type, why))
        decider.router.wake(CLOSED, key, (run.info.type, draft.state, result, failure, successor))
        decider.notifier.closed(key)
        if successor is not None:
            self._continued(draft, successor)
        elif run.parent is not None:
            self._tell_parent(draft, run.parent)
        decider.on_gone(run)
        decider.forget(run)

    async def _bury(self, run: Run, name: str, why: Failure) -> None:
        error, pool = encode_failure(why), self.decider.pool
        await workflow_tasks.bury(
            self.decider.db, run.execution_id, workflow_id=run.workflow_id, type=name, pool=pool, strikes=0, error=error
        )

    def _continued(self, draft: Draft, successor: UUID) -> None:
        # It is loaded like any other, so that its carried and forwarded mail is read with it.
        self.decider.waiting_for_mail.add(successor)
        self.decider.spawn(self._forwarded(draft.run, successor))

    async def _forwarded(self, run: Run, successor: UUID) -> None:
        decider = self.decider
        try:
            await messages.settle(decider.db, run.execution_id, successor)
        finally:  # what went wrong is made up for by a scan
            decider.waiting_for_mail.discard(successor)
            self._mail(successor, decider.pool, run.partition)

    def _tell_parent(self, draft: Draft, parent: Parent) -> None:
        decider = self.decider
        assert draft.closing is not None
        partition = partition_of(parent.workflow_id)
        if parent.pool == decider.pool and decider.holdings.covers(parent.execution_id, partition):
            arrival = child_arrival(parent.seq, draft.closing)
            self._hand(parent.execution_id, partition, parent.pool, Delivery(arrival, child_message_id(draft)))
        else:
            decider.notifier.decide(parent.pool, parent.execution_id, partition)

    def _hand(self, execution_id: UUID, partition: int, pool: str, delivery: Delivery) -> None:
        """Something that also lies in the mailbox: where it cannot be offered directly, the run is woken for it."""
        if not self.decider.offer(execution_id, partition, delivery):
            self._mail(execution_id, pool, partition)
