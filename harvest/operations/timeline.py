"""What a run did when: its history as spans. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from harvest.clock import MICRO
from harvest.words import duration


@dataclass(slots=True)
class Span:
    """`kind`: run, activity, timer, child, external, call, update, signal, cancel, decision or marker. `ended_at` is None for
    what is under way, and equal to `started_at` for what has no length. `outcome`: done, failed, cancelled, or the run's end;
    of a decision its replay mode."""

    kind: str
    name: str
    started_at: datetime
    ended_at: datetime | None = None
    seq: int | None = None
    outcome: str | None = None


_BEGIN = {
    "ActivityScheduled": "activity",
    "TimerStarted": "timer",
    "ChildStarted": "child",
    "ExternalSignalSent": "external",
    "ExternalCancelSent": "external",
    "EntityCallSent": "call",
}
_END = {
    "ActivityCompleted": "done",
    "ActivityFailed": "failed",
    "ActivityCancelRequested": "cancelled",
    "TimerFired": "done",
    "TimerCancelled": "cancelled",
    "ChildCompleted": "done",
    "ChildFailed": "failed",
    "ChildCancelRequested": "cancelled",
    "CallAnswered": "done",
    "CallFailed": "failed",
}
_UPDATE_ENDS = {"UpdateCompleted": "done", "UpdateFailed": "failed", "OperationCompleted": "done", "OperationFailed": "failed"}
_POINTS = {
    "SignalReceived": "signal",
    "CancelRequested": "cancel",
    "TerminateRequested": "cancel",
    "ResetRequested": "marker",
    "SideEffectRecorded": "marker",
    "VersionMarked": "marker",
    "StateRecorded": "marker",
    "WorkflowRetryScheduled": "marker",
}
_RUN_ENDS = {
    "RunCompleted": "COMPLETED",
    "RunFailed": "FAILED",
    "RunCancelled": "CANCELLED",
    "RunTerminated": "TERMINATED",
    "RunTimedOut": "TIMED_OUT",
    "RunContinued": "CONTINUED_AS_NEW",
}


def timeline(type: str, created_at: datetime, decisions: Iterable[Any]) -> list[Span]:
    """`decisions` are rows with at, replay_mode and events (JSON text), in order."""
    run = Span("run", type, created_at)
    spans, under_way = [run], dict[Any, Span]()
    for row in decisions:
        at = row["at"]
        spans.append(Span("decision", f"decision {row['decision']}", at, at, outcome=row["replay_mode"]))
        for event in msgspec.json.decode(row["events"]):
            _place(event, at, run, spans, under_way)
    return spans


def _place(event: dict[str, Any], at: datetime, run: Span, spans: list[Span], under_way: dict[Any, Span]) -> None:
    kind, seq = event["type"], event.get("seq")
    if kind in _BEGIN:
        span = Span(_BEGIN[kind], _name(event), at, seq=seq)
        if kind == "TimerStarted":
            span.name = f"timer {duration(event['delay_us'] / MICRO)}"
        under_way[seq] = span
        spans.append(span)
    elif kind == "ExternalDone":
        _end(under_way.pop(seq, None), at, "failed" if event.get("failure") else "done")
    elif kind in _END:
        _end(under_way.pop(seq, None), at, _END[kind])
    elif kind in ("UpdateAdmitted", "OperationCalled"):
        span = under_way[event["update_id"]] = Span("update", event["name"], at)
        spans.append(span)
    elif kind in _UPDATE_ENDS:
        _end(under_way.pop(event["update_id"], None), at, _UPDATE_ENDS[kind])
    elif kind in _RUN_ENDS:
        _end(run, at, _RUN_ENDS[kind])
        for span in under_way.values():
            _end(span, at, "abandoned")
    elif kind in _POINTS:
        spans.append(Span(_POINTS[kind], _name(event), at, at, seq=seq))


def _end(span: Span | None, at: datetime, outcome: str) -> None:
    if span is not None:
        span.ended_at, span.outcome = at, outcome


def _name(event: dict[str, Any]) -> str:
    return str(event.get("name") or event.get("workflow_id") or event.get("patch_id") or event["type"])
