"""Spans (OpenTelemetry): decisions, activities, operations of entities, and the calls of clients.

The trace id of a run is made from its execution id, so that every worker that ever has the run, and every process that
talks to it, finds the same trace with nothing stored or sent along: spans of other traces (a caller, a parent, an entity) are
linked to it. Replay is mute: what workflow code finds as the current span is unsampled while it replays or answers
questions, and is the decision while that is being made, so that spans of the code itself belong to it.

Nothing of a payload is in a span. Where the program has set up no tracer provider, nothing is made.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from functools import cache
from hashlib import blake2b
from typing import Any
from uuid import UUID

from opentelemetry import trace
from opentelemetry.context import Context as Nothing
from opentelemetry.context import attach, detach
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags

log = logging.getLogger("harvest.telemetry")
NAME = "harvest"
MUTED = SpanContext(trace_id=1, span_id=1, is_remote=False, trace_flags=TraceFlags(0))
"""An unsampled parent: samplers that follow their parent (the default) drop what is beneath it."""
_ROOT = 0xFFFF_FFFF_FFFF_FFFF


def on() -> bool:
    """True when the program has set up a tracer provider."""
    return not type(trace.get_tracer_provider()).__name__.startswith(("Proxy", "NoOp"))


def _tracer() -> trace.Tracer:
    return _tracer_of(trace.get_tracer_provider())


@cache
def _tracer_of(provider: trace.TracerProvider) -> trace.Tracer:
    return provider.get_tracer(NAME)


def trace_id(execution_id: UUID) -> int:
    """It begins as the execution id does; the lower half is a hash, because samplers take it for random."""
    return execution_id.int & ~_ROOT | int.from_bytes(blake2b(execution_id.bytes, digest_size=8).digest())


def of_run(execution_id: UUID) -> SpanContext:
    """The beginning of a run's trace, the same in every process. The provider's sampler decides by the trace id, whatever the
    current span is."""
    mine, flags = trace_id(execution_id), TraceFlags.SAMPLED
    sampler = getattr(trace.get_tracer_provider(), "sampler", None)
    if sampler is not None and not sampler.should_sample(Nothing(), mine, NAME).decision.is_sampled():
        flags = TraceFlags.DEFAULT
    return SpanContext(mine, mine & _ROOT, is_remote=True, trace_flags=TraceFlags(flags))


class RunSpan(NonRecordingSpan):
    """The current span as a run's code finds it: the decision that is being made, else mute."""

    def __init__(self) -> None:
        super().__init__(MUTED)
        self.now: Callable[[], SpanContext] | None = None

    def get_span_context(self) -> SpanContext:
        now, self.now = self.now, None  # making a span looks at the current one, which is this
        if now is None:
            return MUTED
        try:
            return now()
        except Exception as exc:
            sour(exc)
            return MUTED
        finally:
            self.now = now


def watch(context: Context) -> RunSpan | None:
    """Has the code that runs in `context` find a `RunSpan`; None where nothing is traced."""
    if not on():
        return None
    span = RunSpan()
    context.run(lambda: attach(trace.set_span_in_context(span)))
    return span


def begin(name: str, execution_id: UUID, attributes: dict[str, Any], links: list[UUID], *, began_ns: int | None = None) -> Span:
    """A span in the trace of a run, linked to those of other runs."""
    parent = trace.set_span_in_context(NonRecordingSpan(of_run(execution_id)))
    return _tracer().start_span(
        name,
        parent,
        SpanKind.INTERNAL,
        {"harvest.execution.id": str(execution_id), **attributes},
        [Link(of_run(other)) for other in links],
        began_ns or time.time_ns(),
    )


def sour(exc: Exception) -> None:
    """A span processor of the program has raised, which none should: what is traced goes on all the same."""
    log.warning("a span processor failed: %s: %s", type(exc).__name__, exc)


@contextmanager
def spanning(make: Callable[[], Span]) -> Iterator[None]:
    """Around what is traced: the current span, which ends with it. Whatever making or ending it raises ends nothing else."""
    try:
        span = make()
    except Exception as exc:
        sour(exc)
        span = NonRecordingSpan(MUTED)
    token = attach(trace.set_span_in_context(span))
    why: BaseException | None = None
    try:
        yield
    except BaseException as exc:
        why = exc
        raise
    finally:
        detach(token)
        try:
            if why is not None:
                failed(span, why)
            span.end()
        except Exception as exc:
            sour(exc)


def failed(span: Span, why: BaseException | str) -> None:
    """Marks it as failed; of the error only its type is told."""
    given = why if isinstance(why, str) else getattr(getattr(why, "failure", why), "type", None)
    type_ = given if isinstance(given, str) else type(why).__name__
    span.set_attribute("error.type", type_)
    span.set_status(Status(StatusCode.ERROR, type_))


@contextmanager
def calling(what: str, name: str, **attributes: str) -> Iterator[None]:
    """Around a call of a client, in the caller's own trace: `what` is start, signal, query, update or call."""
    if not on():
        yield
        return
    given = {f"harvest.{key.replace('_', '.')}": value for key, value in attributes.items()}
    with spanning(lambda: _tracer().start_span(f"{what} {name}", kind=SpanKind.CLIENT, attributes=given)):
        yield


def reached(execution_id: UUID) -> None:
    """The call under way has reached this run: its span is linked to the run's trace."""
    span = trace.get_current_span()
    if span.is_recording():
        span.add_link(of_run(execution_id))


@contextmanager
def attempting(name: str, execution_id: UUID, workflow_id: str, seq: int, number: int) -> Iterator[None]:
    """Around one attempt of an activity; spans that its code makes are beneath it."""
    if not on():
        yield
        return
    attributes = {"harvest.workflow.id": workflow_id, "harvest.activity.seq": seq, "harvest.activity.attempt": number}
    with spanning(lambda: begin(f"activity {name}", execution_id, attributes, [])):
        yield
