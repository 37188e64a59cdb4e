"""Why a run is not moving: one sentence, and the command that mends it. Facts are read first; the verdict is pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from harvest.core.standing import Awaitable
from harvest.errors import HarvestError
from harvest.failure import decode_failure
from harvest.hub import diagnosis, workers
from harvest.hub.workflow_tasks import STRIKES
from harvest.ids import queue_of
from harvest.operations.again import command
from harvest.operations.live import exactly
from harvest.operations.query import query
from harvest.operations.site import Site

LATE = 5.0
"""Seconds after which what is due counts as not being looked at."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the verdict is made from; `awaits` is None where no worker answered."""

    run: Any
    now: datetime
    mode: str
    task: Any
    owner: Any
    workers: Sequence[Any]
    waiting: Sequence[Any]
    awaits: list[Awaitable] | None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`code` is for scripts, `sentence` for people, `command` mends it (None where nothing needs to be done)."""

    workflow_id: str
    execution_id: UUID
    code: str
    sentence: str
    command: str | None = None


async def diagnose(site: Site, workflow_id: str, execution_id: UUID | None) -> Diagnosis:
    """About this very execution (L-4). Raises `WorkflowNotFound`."""
    row = await exactly(site, workflow_id, execution_id)
    found, pool = row["execution_id"], row["pool"]
    facts = Facts(
        run=row,
        now=(await diagnosis.read(site.db, "now"))[0]["now"],
        mode=site.mode,
        task=await diagnosis.task(site.db, found),
        owner=await diagnosis.owner_of(site.db, pool, row["partition"]),
        workers=[w for w in await workers.live(site.db) if pool in w["pools"]],
        waiting=await diagnosis.waiting_on(site.db, found),
        awaits=await _awaits(site, row),
    )
    code, sentence, command = verdict(facts)
    return Diagnosis(workflow_id, found, code, sentence, command)


async def _awaits(site: Site, row: Any) -> list[Awaitable] | None:
    if row["closed_at"] is not None or not row["decisions"]:
        return None
    try:
        raw = await query(site, row["workflow_id"], row["execution_id"], "@awaitables", msgspec.Raw(b"[]"), 2.0)
    except HarvestError:
        return None
    return msgspec.json.decode(raw, type=list[Awaitable])


def span(seconds: float) -> str:
    """A length of time as people say it."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


Verdict = tuple[str, str, str | None]


def verdict(facts: Facts) -> Verdict:
    """(code, sentence, command): the first thing that is in the way. Pure."""
    for look in (_closed, _paused, _failing, _unserved, _not_begun, _unlooked, _awaiting):
        found = look(facts)
        if found is not None:
            return found
    return "running", "it is being decided, or its worker did not say what it waits for", _run(facts, "run stack")


def _run(facts: Facts, verb: str, *options: object, after: str = "") -> str:
    return command(verb, facts.run["workflow_id"], *options, after=after)


def _closed(facts: Facts) -> Verdict | None:
    run = facts.run
    if run["closed_at"] is None:
        return None
    if run["retried_as"] is not None:
        sentence = f"attempt {run['attempt']} failed, and the run goes on as execution {run['retried_as']}"
        return "retried", sentence, _run(facts, "run diagnose", "--execution-id", run["retried_as"])
    if run["continued_to"] is not None:
        sentence = f"it is {run['state']}, and goes on as execution {run['continued_to']}"
        return "continued", sentence, _run(facts, "run diagnose", "--execution-id", run["continued_to"])
    if run["failure"] is None:
        return "closed", f"it is {run['state']}: there is nothing left to do", None
    failure = decode_failure(run["failure"])
    sentence = f"it is {run['state']}: {failure.type}: {failure.message}"
    again = (
        None
        if run["state"] == "CANCELLED" or run["erased_at"] is not None
        else _run(facts, "run rerun", "--execution-id", run["execution_id"])
    )
    return "closed", sentence, again


def _paused(facts: Facts) -> Verdict | None:
    if facts.run["state"] != "PAUSED":
        return None
    since = f"{facts.run['paused_at']:%Y-%m-%d %H:%M:%S} UTC"
    error = facts.run["error"]
    failing = "" if error is None else f"; its decisions failed before: {decode_failure(error).message.partition(chr(10))[0]}"
    return "paused", f"it is paused since {since}{failing}", _run(facts, "run resume")


def _failing(facts: Facts) -> Verdict | None:
    run = facts.run
    if run["error"] is None:
        return None
    error = decode_failure(run["error"])
    if (run["strikes"] or 0) >= STRIKES:
        sentence = f"it is in the dead letters, its decisions fail: {error.type}: {error.message.partition(chr(10))[0]}"
        return "dead", sentence, f"harvest dead-letters redrive {run['execution_id']}"
    sentence = (
        f"its last decision failed ({run['strikes']} of {STRIKES} strikes): {error.type}: {error.message.partition(chr(10))[0]}"
    )
    return "failing", sentence, _run(facts, "run pause")


def _unserved(facts: Facts) -> Verdict | None:
    run, pool = facts.run, facts.run["pool"]
    queue, _, build = pool.partition("@")
    start = f"harvest worker MODULE --queue {shlex.quote(queue)}"
    if build:
        start = f"HARVEST_BUILD_ID={shlex.quote(build)} {start}"
    if not facts.workers:
        return "no_worker", f"no worker of queue {queue!r}{f' and build {build!r}' if build else ''} is alive", start
    able = [w for w in facts.workers if run["type"] in json.loads(w["definitions"]).get("workflows", ())]
    if not able:
        count = len(facts.workers)
        return "unknown_type", f"none of the {count} workers of queue {queue!r} knows the workflow {run['type']!r}", start
    if facts.mode == "owner":
        owner = facts.owner
        if owner is None or owner["worker_id"] is None or not owner["leased"]:
            return "unowned", f"nobody owns partition {run['partition']} of {pool!r} just now", "harvest doctor"
        blocked = json.loads(owner["figures"] or "{}").get("blocked_by")
        if blocked:
            sentence = f"the event loop of its owner ({owner['host']}, pid {owner['pid']}) is held by {blocked}"
            return "blocked", sentence, "harvest doctor"
    return None


def _not_begun(facts: Facts) -> Verdict | None:
    run, task = facts.run, facts.task
    if run["decisions"] or task is None or task["due_at"] is None or task["due_at"] <= facts.now:
        return None
    left = (task["due_at"] - facts.now).total_seconds()
    what = "its start is delayed" if run["attempt"] == 1 else f"attempt {run['attempt']} waits for its back-off"
    return "delayed", f"{what}: it begins in {span(left)}", None


def _unlooked(facts: Facts) -> Verdict | None:
    """Something is there for it, and nobody takes it."""
    mail = [w for w in facts.waiting if w["kind"] == "mail" and (facts.now - w["since"]).total_seconds() > LATE]
    overdue = facts.task is not None and facts.task["due_at"] is not None and facts.task["state"] != "running"
    if mail:
        waits = (facts.now - min(w["since"] for w in mail)).total_seconds()
        kinds = ", ".join(sorted(w["name"] for w in mail))
        return "unread", f"mail ({kinds}) has been waiting for {span(waits)}, its worker is behind or stuck", "harvest doctor"
    if overdue and (facts.now - facts.task["due_at"]).total_seconds() > LATE:
        late = (facts.now - facts.task["due_at"]).total_seconds()
        return "overdue", f"it has been due for {span(late)}, and its worker is behind or stuck", "harvest doctor"
    return None


def _awaiting(facts: Facts) -> Verdict | None:
    activities = [w for w in facts.waiting if w["kind"] == "activity"]
    if activities:
        return _activity(facts, min(activities, key=lambda a: a["seq"]))
    children = [w for w in facts.waiting if w["kind"] == "child"]
    if children:
        child = children[0]
        return "child", f"it waits for the child {child['name']!r}", command("run diagnose", child["name"])
    awaits = facts.awaits or []
    signals = sorted({a.name for a in awaits if a.kind == "signal"})
    conditions = [a for a in awaits if a.kind == "condition"]
    timers = [a for a in awaits if a.kind == "timer"]
    until = ""
    if timers:
        soonest = min(a.due_us or 0 for a in timers) / 1e6
        until = f"a timer in {span(soonest - facts.now.timestamp())}"
    if signals:
        more = f", or {until}" if until else ""
        sentence = f"it waits for the signal {' or '.join(map(repr, signals))}{more}"
        return "signal", sentence, _run(facts, "run signal", after=shlex.quote(signals[0]))
    if conditions:
        more = f", or for {until}" if until else ""
        return "condition", f"it waits for a condition ({conditions[0].where}){more}", _run(facts, "run awaitables")
    if until:
        return "timer", f"it sleeps: {until}", None
    if awaits:
        first = awaits[0]
        return first.kind, f"it waits for the {first.kind} {first.name!r}", _run(facts, "run awaitables")
    return None


def _activity(facts: Facts, task: Any) -> Verdict:
    seq, name, queue = task["seq"], task["name"], task["queue"]
    if task["state"] == "running":
        held = (facts.now - task["since"]).total_seconds()
        sentence = f"activity {name!r} ({seq}) has been under way for {span(held)}, attempt {task['attempt']}"
        return "activity_running", sentence, _run(facts, "activity fail-now", after=str(seq))
    if task["state"] == "done":
        return "activity_done", f"activity {name!r} ({seq}) is done, and its result is about to be read", None
    failure = "" if task["failure"] is None else f" after {decode_failure(task['failure']).message!r}"
    if task["due_at"] > facts.now:
        left = (task["due_at"] - facts.now).total_seconds()
        sentence = f"activity {name!r} ({seq}) is tried again in {span(left)}{failure}, attempt {task['attempt']}"
        return "activity_backoff", sentence, _run(facts, "activity retry-now", after=str(seq))
    waited = (facts.now - task["due_at"]).total_seconds()
    sentence = f"activity {name!r} ({seq}) has been waiting in queue {queue!r} for {span(waited)}"
    return "activity_queued", sentence, f"harvest worker MODULE --queue {shlex.quote(queue_of(queue))}"
