"""Decisions and operations as spans: begun with the drive, ended when what was decided is durable."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec
from uuid import UUID

from opentelemetry.trace import Span, SpanContext

from harvest.core import events as ev
from harvest.decisions.decide import caller_of
from harvest.telemetry import traces

if TYPE_CHECKING:
    from harvest.decisions.decide import Draft
    from harvest.decisions.run import Run

P = ParamSpec("P")
log = logging.getLogger("harvest.decider")


def harmless(method: Callable[P, None]) -> Callable[P, None]:
    """What a span processor of the program raises is told, and never ends a decision."""

    @functools.wraps(method)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(*args, **kwargs)
        except Exception as exc:
            log.warning("a decision could not be traced: %s: %s", type(exc).__name__, exc)

    return guarded


class Later:
    """A span that begins now, and is made when it is wanted."""

    def __init__(self, *args: Any) -> None:
        self._args, self._began_ns = args, time.time_ns()
        self._made: Span | None = None

    def span(self) -> Span:
        if self._made is None:
            self._made = traces.begin(*self._args, began_ns=self._began_ns)
        return self._made

    def context(self) -> SpanContext:
        """For whatever the run's code makes beneath it."""
        return self.span().get_span_context()


class Tracing:
    """Of one decider; there is none where nothing is traced."""

    def __init__(self, queue: str) -> None:
        self.queue = queue

    def begin(self, run: Run, mode: str) -> None:
        """The drive begins: spans of its code belong to this decision. It is made when the code asks for it, or when the
        decision is durable: a drive that decides nothing begins none."""
        if run.info is None:
            return
        attributes: dict[str, Any] = {
            "harvest.workflow.id": run.workflow_id,
            "harvest.workflow.type": run.info.type,
            "harvest.queue": self.queue,
            "harvest.decision": run.decision + 1,
            "harvest.replay_mode": mode,
        }
        links = [] if run.parent is None or run.decision else [run.parent.execution_id]
        run.span = Later(f"decide {run.info.type}", run.execution_id, attributes, links)
        self._current(run, run.span)

    def drove(self, run: Run) -> None:
        """From here on nothing that its code does belongs to the decision."""
        self._current(run, None)

    def _current(self, run: Run, later: Later | None) -> None:
        seen = None if run.instance is None else run.instance.span
        if seen is not None:
            seen.now = None if later is None else later.context

    @harmless
    def landed(self, draft: Draft) -> None:
        run, later = draft.run, draft.run.span
        run.span = None
        if later is None:
            return
        span = later.span()
        span.set_attribute("harvest.arrivals", len(draft.deliveries))
        span.set_attribute("harvest.commands", len(draft.commands))
        for command in draft.commands:
            if isinstance(command, (ev.OperationCompleted, ev.OperationFailed)):
                self._operation(run, command, span)
        if draft.closing is not None:
            span.set_attribute("harvest.state", draft.state)
            if isinstance(draft.closing, ev.RunFailed):
                traces.failed(span, draft.closing.failure.type)
        span.end()

    def _operation(self, run: Run, command: ev.OperationCompleted | ev.OperationFailed, decision: Span) -> None:
        caller = caller_of(command)
        links = [] if caller is None else [UUID(caller.execution_id)]
        attributes = {"harvest.workflow.id": run.workflow_id, "harvest.operation.id": command.update_id}
        began = getattr(decision, "start_time", None) or time.time_ns()
        span = traces.begin(
            f"operation of {run.info.type if run.info else '?'}", run.execution_id, attributes, links, began_ns=began
        )
        if isinstance(command, ev.OperationFailed):
            traces.failed(span, command.failure.type)
        span.end()

    @harmless
    def failed(self, run: Run, exc: BaseException) -> None:
        later, run.span = run.span, None
        if later is not None:
            span = later.span()
            traces.failed(span, exc)
            span.end()
