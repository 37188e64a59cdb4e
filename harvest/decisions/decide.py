"""Drive the code of one run with what arrived, and note what it asked for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from harvest.clock import MICRO
from harvest.core import events as ev
from harvest.core.arrivals import closing_command
from harvest.core.instance import Instance
from harvest.core.program import Outcome
from harvest.decisions.run import Delivery, Run
from harvest.definitions.retry import next_attempt
from harvest.failure import Failure, encode_failure
from harvest.ids import is_entity, new_id

log = logging.getLogger("harvest.decisions")

HISTORY_CAP = 51_200
SLOW_DRIVE = 2.0
_FINISHED = (ev.ActivityCompleted, ev.ActivityFailed)
ENDING = (ev.TerminateRequested, ev.DeadlinePassed, ev.HistoryCapReached, ev.ResetRequested)
HALTING = (*ENDING, ev.PauseRequested)
_CLOSED_STATES: dict[type, str] = {
    ev.RunCompleted: "COMPLETED",
    ev.RunFailed: "FAILED",
    ev.RunCancelled: "CANCELLED",
    ev.RunTerminated: "TERMINATED",
    ev.RunTimedOut: "TIMED_OUT",
    ev.RunContinued: "CONTINUED_AS_NEW",
}


class Fork(NamedTuple):
    """A closing run begins again: as a `retry` from nothing (`decision` 0), or by a `reset` from the end of `decision`.

    `delay` in seconds. `drops`: signals that came after the decision are not delivered again.
    """

    link: str
    decision: int
    delay: float = 0.0
    drops: bool = False


class Draft:
    """A decision that is not durable yet.

    `events` is None when nothing belongs into history (a refused update, a wake for nothing). `ids` gives
    the execution ids of started children by seq, and under 0 that of the run that takes over: a continuation, or a `fork`.
    """

    __slots__ = (
        "at_us",
        "by_engine",
        "closing",
        "commands",
        "deliveries",
        "ended",
        "events",
        "first_event_id",
        "fork",
        "ids",
        "launch",
        "mode",
        "number",
        "pausing",
        "rejected",
        "run",
        "task",
    )

    def __init__(self, run: Run, at_us: int, deliveries: list[Delivery], mode: str) -> None:
        self.run, self.at_us, self.deliveries, self.mode = run, at_us, deliveries, mode
        self.number = run.decision + 1
        self.first_event_id = run.events + 1
        self.commands: list[ev.Command] = []
        self.events: str | None = None
        self.rejected: list[tuple[Delivery, BaseException]] = []
        self.closing: ev.Command | None = None
        self.task: tuple[str, int | None] | None = None
        self.ids: dict[int, UUID] = {}
        self.ended: list[int] = []  # activity tasks whose row goes
        self.launch = run.launch
        self.by_engine = False  # ended without asking the code
        self.fork: Fork | None = None
        self.pausing = False

    @property
    def state(self) -> str:
        return _CLOSED_STATES[type(self.closing)]

    @property
    def empty(self) -> bool:
        """True when there is nothing to write at all."""
        return self.events is None and self.task is None and not self.deliveries

    @property
    def parks(self) -> bool:
        """True where its commit ends a claim."""
        return self.run.claim is not None and self.task is not None and self.task[0] == "parked"

    def unresolved(self) -> set[str]:
        """Updates that were admitted, in this decision or before, and have no end."""
        run = self.run
        answered = {c.update_id for c in self.commands if isinstance(c, (ev.UpdateCompleted, ev.UpdateFailed))}
        answered.update(d.arrival.update_id for d, _ in self.rejected)  # type: ignore[union-attr]
        return (run.remote_updates | run.updates.keys()) - answered


def gather(run: Run, now_us: int) -> list[Delivery]:
    """What is there for this decision: mail and results in order of arrival, then timers in order of due time."""
    deliveries = list(run.queue)
    run.queue.clear()
    instance = run.instance
    if instance is not None:
        due = instance.next_due_us()
        if due is not None and due <= now_us:
            deliveries += [Delivery(fired) for fired in instance.due_timers(now_us)]
    return deliveries


def begins_later(run: Run, now_us: int) -> bool:
    """True for a delayed run whose time has not come; only a cancel request makes it begin (and end)."""
    due = run.stored[1]
    if run.decision or run.stored[0] != "pending" or due is None or due <= now_us:
        return False
    return not any(isinstance(d.arrival, (*HALTING, ev.CancelRequested)) for d in run.queue)


def halting(run: Run, deliveries: list[Delivery], now_us: int) -> Delivery | None:
    """The arrival that ends the run without asking its code, else one that pauses it, if there is one."""
    pause = None
    for delivery in deliveries:
        if isinstance(delivery.arrival, HALTING):
            if not isinstance(delivery.arrival, ev.PauseRequested):
                return delivery
            pause = delivery
    if pause is not None:
        return pause
    if run.chain_deadline_us is not None and run.chain_deadline_us <= now_us:
        return Delivery(ev.DeadlinePassed())
    if run.deadline_us is not None and run.deadline_us <= now_us:
        return Delivery(ev.DeadlinePassed())
    if run.events >= HISTORY_CAP and not is_entity(run.workflow_id):
        return Delivery(ev.HistoryCapReached(run.events))
    return None


Reserve = Callable[[str, str | None], bool]


def decide(run: Run, now_us: int, mode: str, reserve: Reserve, most: int = 1) -> Draft | None:
    """One decision, or None when there is nothing to decide and nothing to write.

    `reserve(name, queue)` takes a slot of this process for an eager activity, if one is free; `most` is the ceiling of
    attempts.

    Raises what the code of the run let escape; the instance is unusable then, and the deliveries are back
    in the run's queue.
    """
    deliveries = gather(run, now_us)
    if run.instance is not None:
        now_us = max(now_us, run.instance.now_us)  # what the code saw is what history says, also where a clock stepped back
    halt = halting(run, deliveries, now_us)
    draft = Draft(run, now_us, deliveries, mode)
    if halt is not None:
        if isinstance(halt.arrival, ev.PauseRequested):
            _pause(draft)
        else:
            _end(draft, halt)
        return draft
    instance = run.instance
    if instance is None:
        raise RuntimeError("decide needs an instance")
    if deliveries or instance.main is None or instance.restless:
        try:
            _drive(draft, instance, reserve, most)
        except BaseException:
            run.queue.extendleft(reversed([d for d in deliveries if not isinstance(d.arrival, ev.TimerFired)]))
            raise
    if draft.closing is None:
        if run.reissue and draft.events is None:  # a decision that says: from here on the history is its own
            draft.events, run.decision = "[]", draft.number
        draft.task = _task_change(run)
    return None if draft.empty else draft


def _drive(draft: Draft, instance: Instance, reserve: Reserve, most: int) -> None:
    run, deliveries = draft.run, draft.deliveries
    started = time.perf_counter()
    outcome: Outcome = instance.activate(draft.at_us, [d.arrival for d in deliveries])
    spent = time.perf_counter() - started
    if spent > SLOW_DRIVE:
        log.warning("workflow %s %s held the loop for %.1f s in one decision", instance.info.type, run.workflow_id, spent)
    taken = outcome.taken
    if len(taken) < len(deliveries):
        # The run closed before these were looked at: signals among them follow a continue-as-new.
        draft.deliveries = deliveries[: len(taken)]
        run.queue.extendleft(reversed([d for d in deliveries[len(taken) :] if not isinstance(d.arrival, ev.TimerFired)]))
    ingested: list[ev.Event] = [d.arrival for d, keep in zip(deliveries, taken, strict=False) if keep]
    for index, reason in outcome.rejected.items():
        draft.rejected.append((deliveries[index], reason))
    draft.commands = outcome.commands
    if outcome.closed:
        draft.closing = outcome.commands[-1]
    _note_work(run, draft, reserve)
    if isinstance(draft.closing, ev.RunFailed):
        _retry(draft, draft.closing, instance, most)
    if ingested or outcome.commands or draft.number == 1:
        draft.events = ev.encode_events([*ingested, *outcome.commands])
        run.events += len(ingested) + len(outcome.commands)
        run.history_bytes = instance.footprint(run.history_bytes + len(draft.events))
        run.decision = draft.number
    for command in outcome.commands:
        if isinstance(command, (ev.ChildStarted, ev.RunContinued)):
            draft.ids[getattr(command, "seq", 0)] = new_id()


def _retry(draft: Draft, closing: ev.RunFailed, instance: Instance, most: int) -> None:
    """L-1, L-6: the next attempt, unless the failure is final or the run was asked to cancel."""
    run = draft.run
    if run.info is None or is_entity(run.workflow_id) or instance.cancel_reason is not None:
        return
    left = None if run.chain_deadline_us is None else (run.chain_deadline_us - draft.at_us) / MICRO
    spec = run.retry or instance.program.retry
    delay = next_attempt(spec, run.info.attempt, closing.failure, most=most, left=left)
    if delay is not None:
        draft.ids[0], draft.fork = new_id(), Fork("retry", 0, delay)
        note = ev.WorkflowRetryScheduled(str(draft.ids[0]), run.info.attempt + 1, round(delay * MICRO))
        draft.commands.append(note)  # type: ignore[arg-type]


def _pause(draft: Draft) -> None:
    """Nothing is ingested; what had arrived goes back to where it came from."""
    run = draft.run
    pauses = [d for d in draft.deliveries if isinstance(d.arrival, ev.PauseRequested)]
    run.queue.extend(d for d in draft.deliveries if not isinstance(d.arrival, (ev.PauseRequested, ev.TimerFired)))
    draft.deliveries, draft.pausing = pauses, True


def _note_work(run: Run, draft: Draft, reserve: Reserve) -> None:
    """Keeps the books of what is under way: in memory (`hot`), in task rows (`tasks`), and updates."""
    hot, tasks = run.hot, run.tasks
    for delivery in draft.deliveries:
        arrival = delivery.arrival
        if isinstance(arrival, ev.UpdateAdmitted):
            if delivery.ack is not None:
                run.updates[arrival.update_id] = delivery.ack
            elif caller_of(arrival) is None:
                run.remote_updates.add(arrival.update_id)
            continue
        seq = getattr(arrival, "seq", 0)
        if seq in hot:
            hot.discard(seq)
        elif tasks.pop(seq, None) is not None or (isinstance(arrival, _FINISHED) and is_entity(run.workflow_id)):
            draft.ended.append(seq)  # (an operation may have ended without waiting for it)
    for command in draft.commands:
        if isinstance(command, ev.ActivityScheduled):
            options = command.options
            if options.mode == "local":
                hot.add(command.seq)
            elif draft.closing is None:
                mine = options.mode == "eager" and reserve(command.name, options.queue)
                tasks[command.seq] = "running" if mine else "pending"
        elif isinstance(command, (ev.ExternalSignalSent, ev.ExternalCancelSent)):
            hot.add(command.seq)
        elif isinstance(command, ev.ActivityCancelRequested):
            hot.discard(command.seq)
            if tasks.pop(command.seq, None) is not None:
                draft.ended.append(command.seq)


def _task_change(run: Run) -> tuple[str, int | None] | None:
    """What the task row has to say, or None when it says so already.

    A claim is kept while this worker has something of the run in its hands: its own eager tasks, too.
    """
    held = run.hot or run.restless or (run.claim is not None and "running" in run.tasks.values())
    wanted: tuple[str, int | None] = ("running", None) if held else ("parked", run.next_due_us())
    if wanted == run.stored:
        return None
    return wanted


def _end(draft: Draft, ending: Delivery) -> None:
    run = draft.run
    closing = closing_command(ending.arrival)  # type: ignore[arg-type]
    if isinstance(ending.arrival, ev.ResetRequested):
        request = ending.arrival
        draft.fork = Fork("reset", request.decision, drops=request.signals == "drop")
        draft.ids[0] = UUID(request.execution_id)
        run.queue.extend(d for d in draft.deliveries if d is not ending)  # it follows to the run that takes over
        draft.deliveries = [ending]
    for delivery in draft.deliveries:
        if isinstance(delivery.arrival, ev.UpdateAdmitted) and delivery.ack is None and caller_of(delivery.arrival) is None:
            run.remote_updates.add(delivery.arrival.update_id)
    draft.deliveries = [d for d in draft.deliveries if d is ending or d.message is not None or d.ack is not None]
    draft.closing, draft.commands, draft.by_engine = closing, [closing], True
    draft.events = ev.encode_events([ending.arrival, closing])
    run.events += 2
    run.decision = draft.number


def caller_of(event: ev.Event) -> ev.Caller | None:
    """The run that waits for an operation; None for updates, and for operations called from outside."""
    return getattr(event, "caller", None)


def outcome_of(closing: ev.Command) -> tuple[str | None, str | None]:
    """(result, failure) of a closing command as JSON texts."""
    if isinstance(closing, ev.RunCompleted):
        return bytes(closing.result).decode(), None
    failure = failure_of_closing(closing)
    return None, None if failure is None else encode_failure(failure)


def failure_of_closing(closing: ev.Command) -> Failure | None:
    if isinstance(closing, ev.RunFailed):
        return closing.failure
    if isinstance(closing, ev.RunCancelled):
        return Failure(closing.reason or "cancelled", "Cancelled")
    if isinstance(closing, ev.RunTerminated):
        return Failure(closing.reason or "terminated", "Terminated")
    if isinstance(closing, ev.RunTimedOut):
        return Failure("the run's own timeout passed", "TimedOut")
    return None


def needs_its_row(draft: Draft) -> bool:
    """True when the statement would have to see the run that it inserts."""
    if isinstance(draft.closing, ev.RunContinued) or draft.fork is not None:
        return True
    posts = (c for c in draft.commands if isinstance(c, (ev.ExternalSignalSent, ev.ExternalCancelSent)))
    return any(c.workflow_id == draft.run.workflow_id for c in posts)
