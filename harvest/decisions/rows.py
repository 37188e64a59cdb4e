"""What a draft writes: rows for the owner's one statement. Writing twice gives the same rows."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any
from uuid import UUID

import msgspec

from harvest.core import events as ev
from harvest.core.entity import EntityInstance
from harvest.decisions.decide import Draft, Fork, caller_of, failure_of_closing, outcome_of
from harvest.decisions.run import Claim, Delivery
from harvest.failure import Failure, encode_failure, failure_of
from harvest.hub.commit import Batch
from harvest.hub.executions import NewRun
from harvest.ids import is_entity, key_of, new_id, partition_of, queue_of

External = ev.ExternalSignalSent | ev.ExternalCancelSent
GRACE = 5.0
"""Seconds after which a task of a live worker may be called overdue by somebody else."""


def reply_result(raw: msgspec.Raw) -> str:
    return '{"result":' + bytes(raw).decode() + "}"


def reply_failure(failure: Failure, kind: str = "failure") -> str:
    return f'{{"{kind}":{encode_failure(failure)}}}'


class Writer:
    """Turns drafts into a batch; `pool` is the pool of the runs."""

    def __init__(self, pool: str) -> None:
        self.pool, self.queue = pool, queue_of(pool)

    def write(self, draft: Draft, batch: Batch) -> None:
        run = draft.run
        add = batch.add
        if run.claim is not None:
            self._claimed(draft, run.claim, batch)
        else:
            if draft.events is not None:
                add(
                    "decisions",
                    (run.execution_id, draft.number, draft.first_event_id, draft.at_us, draft.mode, draft.events),
                )
            if draft.launch is not None:
                self._launch(draft, draft.launch, batch)
            elif draft.task is not None:
                add("tasks", (run.execution_id, draft.task[0], draft.task[1], run.partition))
        if draft.pausing:
            add("pauses", (run.execution_id,))
            return
        if draft.fork is None:
            for delivery in draft.deliveries:
                self._read(draft, delivery, batch)
        else:
            self._fork(draft, draft.fork, batch)
        for command in run.reissue:
            _ROWS[command.__class__](self, draft, command, batch)
        for seq in draft.ended:
            add("activity_ends", (run.execution_id, seq))
        if draft.rejected:
            self._rejected(draft, batch)
        upserts = None if draft.launch is not None or draft.closing is not None else upserted(draft)
        if upserts is not None:
            add("attributes", (run.execution_id, upserts))
        for command in draft.commands:
            handler = _ROWS.get(command.__class__)
            if handler is not None:
                handler(self, draft, command, batch)

    def _rejected(self, draft: Draft, batch: Batch) -> None:
        run = draft.run
        for delivery, reason in draft.rejected:
            update_id = delivery.arrival.update_id  # type: ignore[union-attr]
            if update_id not in run.updates:
                reply = reply_failure(failure_of(reason), "rejected")
                batch.add("replies", (run.execution_id, update_id, reply, draft.ids.get(0)))

    def _read(self, draft: Draft, delivery: Delivery, batch: Batch) -> None:
        if delivery.message is None:
            return
        arrival = delivery.arrival
        if delivery.keyed and isinstance(arrival, ev.UpdateAdmitted) and self._replied(draft, arrival.update_id):
            return  # its row gets the answer: one statement may touch a row only once
        if delivery.keyed:
            batch.add("marks", (delivery.message, draft.ids.get(0)))
        else:
            batch.add("reads", (delivery.message,))

    def _replied(self, draft: Draft, update_id: str) -> bool:
        if update_id in draft.run.updates:
            return False
        return update_id not in draft.unresolved() or (draft.closing is not None and draft.fork is None)

    def _fork(self, draft: Draft, fork: Fork, batch: Batch) -> None:
        """The run that takes over, and its mail (L-5): what a failed attempt had ingested is delivered again, in the order of
        history, ahead of what is unread. What this decision ingested is not in the history yet that the statement reads."""
        run, successor = draft.run, draft.ids[0]
        unresolved = draft.unresolved()
        again = []
        for delivery in draft.deliveries:
            arrival = delivery.arrival
            if fork.link == "retry" and (
                isinstance(arrival, ev.SignalReceived)
                or (isinstance(arrival, ev.UpdateAdmitted) and arrival.update_id in unresolved)
            ):
                again.append(delivery)
            else:
                self._read(draft, delivery, batch)
        for position, delivery in enumerate(again, -len(again)):
            if delivery.message is not None:
                batch.add("rearms", (delivery.message, successor, position))
                continue
            arrival = delivery.arrival
            assert isinstance(arrival, (ev.UpdateAdmitted, ev.SignalReceived))
            kind, key = ("update", arrival.update_id) if isinstance(arrival, ev.UpdateAdmitted) else ("signal", arrival.key)
            name, event = arrival.name, ev.encode_event(arrival)
            batch.add("carries", (new_id(), successor, run.partition, name, event, position, kind, key, run.execution_id))
        seed = successor.int & 0x7FFF_FFFF_FFFF_FFFF if fork.link == "retry" else None
        batch.add(
            "forks",
            (
                run.execution_id,
                successor,
                fork.link,
                seed,
                fork.delay,
                fork.decision,
                fork.drops,
                len(again),
                msgspec.json.encode(sorted(unresolved)).decode(),
                upserted(draft),
            ),
        )

    def _claimed(self, draft: Draft, claim: Claim, batch: Batch) -> None:
        """A decision in sticky mode, and the end of its claim when it suspends."""
        run = draft.run
        if draft.events is not None:
            row = (run.execution_id, draft.number, draft.first_event_id, draft.at_us, draft.mode, draft.events)
            batch.add("claimed_decisions", (*row, claim.scheduled))
        if draft.task is not None and draft.task[0] == "parked":  # else the row says already that it is ours
            batch.add("parks", (run.execution_id, draft.task[1], run.partition, claim.wakes, claim.window, run.decision))

    def _launch(self, draft: Draft, new: NewRun, batch: Batch) -> None:
        """The run's own rows, as its first decision left it."""
        run, closing = draft.run, draft.closing
        result, failure = (None, None) if closing is None else outcome_of(closing)
        task = draft.task or run.stored
        batch.add(
            "launches",
            (
                new.execution_id,
                new.workflow_id,
                new.type,
                run.partition,
                new.seed,
                new.input,
                new.priority,
                new.timeout,
                new.memo,
                _attributes(draft, new),
                "RUNNING" if closing is None else draft.state,
                result,
                failure,
                task[0] if closing is None else None,
                task[1],
                new.retry,
            ),
        )

    def _activity(self, draft: Draft, command: ev.ActivityScheduled, batch: Batch) -> None:
        options, run = command.options, draft.run
        if options.mode == "local" or draft.closing is not None:
            return
        mine = run.tasks.get(command.seq) == "running"
        bounds = [options.schedule_to_close]
        if mine:
            bounds += [options.start_to_close, options.heartbeat]
        else:
            bounds.append(options.schedule_to_start)
        known = [b for b in bounds if b is not None]
        expires = min(known) + (GRACE if mine else 0.0) if known else None
        batch.add(
            "activities",
            (
                run.execution_id,
                command.seq,
                run.partition,
                run.workflow_id,
                command.name,
                options.queue or self.queue,
                "running" if mine else "pending",
                options.priority,
                expires,
                options.schedule_to_close,
                options.start_to_close,
                options.heartbeat,
                bytes(command.input).decode(),
                None if options == ev.DEFAULT_OPTIONS else msgspec.json.encode(options).decode(),
            ),
        )

    def _child(self, draft: Draft, command: ev.ChildStarted, batch: Batch) -> None:
        if draft.closing is not None and command.parent_close != "abandon":
            return  # it would be ended in the same breath
        run = draft.run
        batch.add(
            "starts",
            (
                draft.ids[command.seq],
                command.workflow_id,
                command.name,
                command.queue or self.pool,
                draft.ids[command.seq].int & 0x7FFF_FFFF_FFFF_FFFF,
                bytes(command.input).decode(),
                command.priority,
                command.timeout,
                run.execution_id,
                run.workflow_id,
                self.pool,
                command.seq,
                command.parent_close,
                None,
                None,
                ev.encode_event(ev.ChildFailed(command.seq, id_taken(command.workflow_id))),
                None if command.retry is None else msgspec.json.encode(command.retry).decode(),
            ),
        )

    def _child_cancel(self, draft: Draft, command: ev.ChildCancelRequested, batch: Batch) -> None:
        event = ev.encode_event(ev.CancelRequested(f"parent {draft.run.workflow_id} gave up waiting"))
        batch.add("posts", (new_id(), command.workflow_id, "cancel", None, None, event))

    def _external(self, draft: Draft, command: External, batch: Batch) -> None:
        batch.add("posts", (new_id(), command.workflow_id, *external_mail(draft.run.execution_id, command)))

    def _call(self, draft: Draft, command: ev.EntityCallSent, batch: Batch) -> None:
        execution_id, run = new_id(), draft.run
        seed = execution_id.int & 0x7FFF_FFFF_FFFF_FFFF
        pool = command.queue or self.pool
        batch.add("opens", (execution_id, command.workflow_id, command.entity, pool, seed))
        caller = ev.Caller(str(run.execution_id), run.workflow_id, self.pool, command.seq)
        update_id = f"{run.execution_id}/{command.seq}"
        event = ev.encode_event(ev.OperationCalled(update_id, command.name, command.input, caller, command.path))
        batch.add("posts", (new_id(), command.workflow_id, "operation", command.name, None, event))

    def _operation_done(self, draft: Draft, command: ev.OperationCompleted | ev.OperationFailed, batch: Batch) -> None:
        if command.caller is not None:
            self._answer(command.caller, answer_of(command.caller, command), batch)
        elif isinstance(command, ev.OperationCompleted):
            self._update_done(draft, command, batch)
        else:
            self._update_failed(draft, command, batch)

    def _answer(self, caller: ev.Caller, arrival: ev.Event, batch: Batch) -> None:
        batch.add(
            "sends",
            (
                answer_message_id(caller),
                UUID(caller.execution_id),
                caller.pool,
                partition_of(caller.workflow_id),
                "child",  # like a child's end it is for this very run: it does not follow to the next one
                None,
                ev.encode_event(arrival),
            ),
        )

    def _state(self, draft: Draft, command: ev.StateRecorded, batch: Batch) -> None:
        run = draft.run
        assert run.info is not None
        batch.add(
            "states",
            (
                run.execution_id,
                run.info.type,
                key_of(run.workflow_id),
                run.partition,
                draft.number,
                run.events,  # it is the last event of its decision
                command.version,
                bytes(command.state).decode(),
            ),
        )

    def _update_done(self, draft: Draft, command: ev.UpdateCompleted, batch: Batch) -> None:
        if command.update_id not in draft.run.updates:
            batch.add("replies", (draft.run.execution_id, command.update_id, reply_result(command.result), draft.ids.get(0)))

    def _update_failed(self, draft: Draft, command: ev.UpdateFailed, batch: Batch) -> None:
        if command.update_id not in draft.run.updates:
            batch.add("replies", (draft.run.execution_id, command.update_id, reply_failure(command.failure), draft.ids.get(0)))

    def _close(self, draft: Draft, command: ev.Command, batch: Batch) -> None:
        run = draft.run
        result, failure = outcome_of(command)
        successor = draft.ids.get(0)
        retried = draft.fork is not None and draft.fork.link == "retry"
        if draft.launch is None:  # (the next attempt is found by what it is a retry of)
            after = None if retried else successor
            batch.add("closes", (run.execution_id, draft.state, result, failure, after, upserted(draft)))
        if run.tasks or run.instance is None:
            batch.add("close_activities", (run.execution_id,))
        if run.parent is not None and successor is None:
            self._tell_parent(draft, command, batch)
        if run.instance is None or run.instance.had_children:
            batch.add("orphans", (run.execution_id,))
        if is_entity(run.workflow_id):
            batch.add("state_ends", (run.execution_id,))
            for caller in left_waiting(draft):
                self._answer(caller, ev.CallFailed(caller.seq, unfinished(draft.state)), batch)
        if draft.fork is not None:
            return  # updates without an end go along
        for update_id in sorted(draft.unresolved() & run.remote_updates):
            batch.add("replies", (run.execution_id, update_id, reply_failure(unfinished(draft.state)), successor))

    def _tell_parent(self, draft: Draft, command: ev.Command, batch: Batch) -> None:
        parent = draft.run.parent
        if parent is None:
            return
        batch.add(
            "sends",
            (
                child_message_id(draft),
                parent.execution_id,
                parent.pool,
                partition_of(parent.workflow_id),
                "child",
                None,
                ev.encode_event(child_arrival(parent.seq, command)),
            ),
        )

    def _continue(self, draft: Draft, command: ev.RunContinued, batch: Batch) -> None:
        self._close(draft, command, batch)
        run, new = draft.run, draft.ids[0]
        info, parent = run.info, run.parent
        if info is None:
            return
        batch.add(
            "starts",
            (
                new,
                run.workflow_id,
                command.name,
                self.pool,
                new.int & 0x7FFF_FFFF_FFFF_FFFF,
                bytes(command.input).decode(),
                run.priority,
                None if run.deadline_us is None else max(0.001, (run.deadline_us - draft.at_us) / 1e6),
                None if parent is None else parent.execution_id,
                None if parent is None else parent.workflow_id,
                None if parent is None else parent.pool,
                None if parent is None else parent.seq,
                run.parent_close,
                run.execution_id,
                upserted(draft),
                None,
                None,
            ),
        )
        batch.add("moves", (run.execution_id, new))
        unread = [] if run.instance is None else run.instance.unread_signals()
        for position, (name, input) in enumerate(unread, -len(unread)):
            event = ev.encode_event(ev.SignalReceived(name, input))
            batch.add("carries", (new_id(), new, run.partition, name, event, position, "signal", None, run.execution_id))


def upserted(draft: Draft) -> str | None:
    """All search attributes that this decision upserted, as one JSON object; null removes a key."""
    merged: dict[str, Any] = {}
    for command in draft.commands:
        if isinstance(command, ev.AttributesUpserted):
            merged.update(msgspec.json.decode(command.attributes))
    return msgspec.json.encode(merged).decode() if merged else None


def _attributes(draft: Draft, new: NewRun) -> str | None:
    """Search attributes of a launched run: those of the start, and what the first decision upserted."""
    upserts = upserted(draft)
    if upserts is None:
        return new.attributes
    merged = {} if new.attributes is None else msgspec.json.decode(new.attributes)
    merged.update(msgspec.json.decode(upserts))
    return msgspec.json.encode({k: v for k, v in merged.items() if v is not None}).decode()


def id_taken(workflow_id: str) -> Failure:
    return Failure(f"workflow id {workflow_id!r} has an open run", "WorkflowAlreadyStarted")


def external_key(execution_id: UUID, seq: int) -> str:
    return f"ext:{execution_id}:{seq}"


def external_mail(execution_id: UUID, command: External) -> tuple[str, str | None, str, str]:
    """(kind, name, key, event) of a request to another run; the key keeps it from acting twice."""
    key = external_key(execution_id, command.seq)
    if isinstance(command, ev.ExternalSignalSent):
        return "signal", command.name, key, ev.encode_event(ev.SignalReceived(command.name, command.input, key))
    return "cancel", None, key, ev.encode_event(ev.CancelRequested(command.reason))


def child_message_id(draft: Draft) -> Any:
    """The mailbox row in which a parent hears of its child: one per child run, so it is never told twice."""
    return draft.run.execution_id


def child_arrival(seq: int, command: ev.Command) -> ev.ChildCompleted | ev.ChildFailed:
    if isinstance(command, ev.RunCompleted):
        return ev.ChildCompleted(seq, command.result)
    failure = failure_of_closing(command)
    assert failure is not None, "a run that neither completed nor continued has a failure"
    return ev.ChildFailed(seq, failure)


def answer_of(caller: ev.Caller, command: ev.OperationCompleted | ev.OperationFailed) -> ev.CallAnswered | ev.CallFailed:
    """What the run that called an operation hears of its end."""
    if isinstance(command, ev.OperationCompleted):
        return ev.CallAnswered(caller.seq, command.result)
    return ev.CallFailed(caller.seq, command.failure)


def answer_message_id(caller: ev.Caller) -> UUID:
    """The mailbox row of an answer: one per call, so that its caller is never told twice."""
    return UUID(bytes=sha256(f"{caller.execution_id}/{caller.seq}".encode()).digest()[:16])


def left_waiting(draft: Draft) -> list[ev.Caller]:
    """Runs that called operations of an entity which the engine ends: they are told."""
    calls: list[ev.Event] = [delivery.arrival for delivery in draft.deliveries]
    if isinstance(draft.run.instance, EntityInstance):
        calls += draft.run.instance.unanswered()
    told = {c.caller for c in draft.commands if isinstance(c, (ev.OperationCompleted, ev.OperationFailed))}
    waiting = {caller_of(call): None for call in calls if isinstance(call, ev.OperationCalled)}
    return [caller for caller in waiting if caller is not None and caller not in told]


def unfinished(state: str) -> Failure:
    return Failure(f"the run is {state}; the update did not finish", "WorkflowClosed", non_retryable=True)


_ROWS: dict[type, Callable[[Writer, Draft, Any, Batch], None]] = {
    ev.ActivityScheduled: Writer._activity,
    ev.ChildStarted: Writer._child,
    ev.ChildCancelRequested: Writer._child_cancel,
    ev.ExternalSignalSent: Writer._external,
    ev.ExternalCancelSent: Writer._external,
    ev.EntityCallSent: Writer._call,
    ev.OperationCompleted: Writer._operation_done,
    ev.OperationFailed: Writer._operation_done,
    ev.StateRecorded: Writer._state,
    ev.UpdateCompleted: Writer._update_done,
    ev.UpdateFailed: Writer._update_failed,
    ev.RunCompleted: Writer._close,
    ev.RunFailed: Writer._close,
    ev.RunCancelled: Writer._close,
    ev.RunTerminated: Writer._close,
    ev.RunTimedOut: Writer._close,
    ev.RunContinued: Writer._continue,
}
