"""What each arrival does to a run: one small function per kind. They answer whether it belongs into history."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from harvest.core import events as ev
from harvest.core.program import ContinueAsNew, Handler
from harvest.errors import (
    ActivityError,
    ChildWorkflowError,
    ExternalWorkflowError,
    HistoryCapExceeded,
    InputError,
    NonDeterminismError,
    WorkflowMisuse,
)
from harvest.failure import error_of, failure_of

if TYPE_CHECKING:
    from harvest.core.instance import EngineFuture, Instance

log = logging.getLogger("harvest.workflow")
Ending = ev.TerminateRequested | ev.DeadlinePassed | ev.HistoryCapReached | ev.ResetRequested


def no_continuing(exc: BaseException) -> BaseException:
    if isinstance(exc, ContinueAsNew):
        return WorkflowMisuse(
            "an update cannot continue the run as new", hint="set a flag and do it in the run, or in a signal"
        )
    return exc


class Rejected(Exception):
    """An update was refused; the reason is the cause."""


def closing_command(arrival: Ending) -> ev.Command:
    """The closing command of an arrival that ends a run without asking its code."""
    if isinstance(arrival, ev.TerminateRequested):
        return ev.RunTerminated(arrival.reason)
    if isinstance(arrival, ev.DeadlinePassed):
        return ev.RunTimedOut()
    if isinstance(arrival, ev.ResetRequested):
        why = f": {arrival.reason}" if arrival.reason else ""
        return ev.RunTerminated(f"reset to decision {arrival.decision}{why}")
    text = f"history reached {arrival.events:,} events"
    return ev.RunFailed(failure_of(HistoryCapExceeded(text, hint="end long runs with workflow.continue_as_new")))


def timer_fired(run: Instance, arrival: ev.TimerFired) -> bool:
    timer = run.timers.pop(arrival.seq, None)
    if timer is None:
        return run.replaying
    callback, timer.callback = timer.callback, None
    if callback is not None:
        run.loop.call_soon(callback, *timer.args, context=timer.context)
    return True


def take_waiting(run: Instance, arrival: Any) -> EngineFuture | None:
    """Takes out what waits for this arrival; None for what nobody waits for (any more)."""
    future = run.pending.get(arrival.seq)
    if future is None or future.kind != KINDS[type(arrival)]:
        return None
    del run.pending[arrival.seq]
    run.children.pop(arrival.seq, None)
    return future


def resolved(run: Instance, arrival: ev.ActivityCompleted | ev.ChildCompleted | ev.CallAnswered) -> bool:
    future = take_waiting(run, arrival)
    if future is None:
        return run.replaying
    if not future.done():
        try:
            future.set_result(None if future.decode is None else future.decode(arrival.result))
        except Exception as exc:
            future.set_exception(exc)
    return True


def broke(run: Instance, arrival: ev.ActivityFailed | ev.ChildFailed | ev.ExternalDone | ev.CallFailed) -> bool:
    future = take_waiting(run, arrival)
    if future is None:
        return run.replaying
    if future.done():
        return True
    failure = arrival.failure
    if failure is None:
        future.set_result(None)
        return True
    error: Exception
    if future.error_of is not None:
        future.set_exception(future.error_of(failure))
        return True
    if isinstance(arrival, ev.ActivityFailed):
        error = ActivityError(future.name, failure.message, type=failure.type, attempt=arrival.attempt)
    elif isinstance(arrival, ev.ChildFailed):
        error = ChildWorkflowError(future.name, failure.message, type=failure.type)
    else:
        error = ExternalWorkflowError(failure.message)
    error.__cause__ = error_of(failure)
    future.set_exception(error)
    return True


def signal(run: Instance, arrival: ev.SignalReceived) -> bool:
    if not run.takes_signals:
        log.warning("entity %s: signal %r dropped, entities take operations", run.info.workflow_id, arrival.name)
        return run.replaying
    handler = run.program.signal(arrival.name)
    if handler is None:
        receivers = run.receivers.get(arrival.name)
        while receivers:
            future = receivers.popleft()
            if not future.done():
                future.set_result(arrival.input)
                return True
        run.mailbox.setdefault(arrival.name, deque()).append(arrival.input)
        return True
    try:
        result = run.loop.context.run(handler.invoke, run.target, arrival.input)
    except ContinueAsNew as again:
        run.close_with(ev.RunContinued(again.name, again.input))
        return True
    except InputError as exc:
        log.warning("%s %s: signal %r dropped: %s", run.info.type, run.info.workflow_id, arrival.name, exc)
        return True
    except Exception as exc:
        fail_run(run, exc)
        return True
    if asyncio.iscoroutine(result):
        run.loop.create_task(signal_task(run, result), name=f"signal-{arrival.name}", context=run.loop.context)
    return True


async def signal_task(run: Instance, coro: Any) -> None:
    try:
        await coro
    except ContinueAsNew as again:
        run.close_with(ev.RunContinued(again.name, again.input))
    except Exception as exc:
        fail_run(run, exc)


def fail_run(run: Instance, exc: Exception) -> None:
    """A signal handler raised: the run fails, as an exception in its main coroutine would make it."""
    if isinstance(exc, (WorkflowMisuse, NonDeterminismError)):
        run.fault = exc
    run.close_with(ev.RunFailed(failure_of(exc)))


def update(run: Instance, arrival: ev.UpdateAdmitted) -> bool:
    handler = run.program.update(arrival.name) if run.replaying else validated(run, arrival)
    try:
        result = run.loop.context.run(handler.invoke, run.target, arrival.input)
        if not asyncio.iscoroutine(result):
            run.issue_marker(ev.UpdateCompleted(arrival.update_id, handler.encode(result)))
            return True
    except (Exception, ContinueAsNew) as exc:
        run.issue_marker(ev.UpdateFailed(arrival.update_id, failure_of(no_continuing(exc))))
        return True
    task = update_task(run, arrival.update_id, handler, result)
    run.loop.create_task(task, name=f"update-{arrival.name}", context=run.loop.context)
    return True


def validated(run: Instance, arrival: ev.UpdateAdmitted) -> Handler:
    run.readonly = True
    try:
        handler = run.program.update(arrival.name)
        run.loop.context.run(handler.validate, run.target, arrival.input)
    except Exception as exc:
        raise Rejected from exc
    finally:
        run.readonly = False
    return handler


async def update_task(run: Instance, update_id: str, handler: Handler, coro: Any) -> None:
    try:
        command: ev.Command = ev.UpdateCompleted(update_id, handler.encode(await coro))
    except (Exception, ContinueAsNew, asyncio.CancelledError) as exc:
        command = ev.UpdateFailed(update_id, failure_of(no_continuing(exc)))
    if not run.sealed:
        run.issue_marker(command)


def operation(run: Instance, arrival: ev.OperationCalled) -> bool:
    run.admit(arrival)
    return True


def cancel(run: Instance, arrival: ev.CancelRequested) -> bool:
    if run.cancel_reason is None:  # a second request must not interrupt the cleaning up after the first
        run.cancel_reason = arrival.reason
        if run.main is not None:
            run.main.cancel()
    return True


def close_by_engine(run: Instance, arrival: Ending) -> bool:
    run.close_with(closing_command(arrival))
    return True


KINDS: dict[type, str] = {
    ev.ActivityCompleted: "activity",
    ev.ActivityFailed: "activity",
    ev.ChildCompleted: "child",
    ev.ChildFailed: "child",
    ev.ExternalDone: "external",
    ev.CallAnswered: "call",
    ev.CallFailed: "call",
}
ENDINGS = (ev.TerminateRequested, ev.DeadlinePassed, ev.HistoryCapReached, ev.ResetRequested)
APPLY: dict[type, Callable[[Instance, Any], bool]] = {
    ev.TimerFired: timer_fired,
    ev.ActivityCompleted: resolved,
    ev.ChildCompleted: resolved,
    ev.ActivityFailed: broke,
    ev.ChildFailed: broke,
    ev.ExternalDone: broke,
    ev.CallAnswered: resolved,
    ev.CallFailed: broke,
    ev.SignalReceived: signal,
    ev.UpdateAdmitted: update,
    ev.OperationCalled: operation,
    ev.CancelRequested: cancel,
    ev.TerminateRequested: close_by_engine,
    ev.DeadlinePassed: close_by_engine,
    ev.HistoryCapReached: close_by_engine,
    ev.ResetRequested: close_by_engine,
}
