"""Doing it again: a reset forks a run from one of its decisions, a rerun starts a new run from the same input (L-4)."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from harvest.core import events as ev
from harvest.core.replay import StoredDecision
from harvest.errors import NoAnswer, RerunRefused, ResetRefused, WorkflowAlreadyStarted, WorkflowClosed
from harvest.hub import executions, history
from harvest.hub.commit import fork_of_closed
from harvest.hub.executions import NewRun
from harvest.hub.messages import Mail
from harvest.hub.sqlstate import is_unique_violation
from harvest.ids import new_id, partition_of
from harvest.operations import start as starting
from harvest.operations.follow import closed_within
from harvest.operations.live import exactly, live_attempt
from harvest.operations.message import check_workflow, put_to
from harvest.operations.site import Site

SIGNALS = ("reapply", "drop")


def command(verb: str, workflow_id: str, *options: object, after: str = "") -> str:
    """A `harvest` command about a run, as it can be pasted into a shell."""
    dashes = "-- " if workflow_id.startswith("-") else ""
    middle = "".join(f" {option}" for option in options)
    return f"harvest {verb}{middle} {dashes}{shlex.quote(workflow_id)}{f' {after}' if after else ''}"


async def reset(
    site: Site,
    workflow_id: str,
    execution_id: UUID | None,
    *,
    decision: int | None,
    signals: str,
    reason: str,
    patience: float,
) -> UUID:
    """Forks a run from the end of `decision` (None: the last one that did not close it) and returns the new execution.

    An open run is terminated by the commit that makes the new one. `signals` that came after the decision are delivered again
    (reapply) or not (drop); unread ones always follow. Raises `ResetRefused`, `WorkflowAlreadyStarted` where another run has
    the workflow id, `NoAnswer`.
    """
    check_workflow(workflow_id, "resets")
    row = await exactly(site, workflow_id, execution_id)
    source: UUID = row["execution_id"]
    if row["erased_at"] is not None:
        raise ResetRefused(source, "its payloads were erased", "start it anew")
    decisions = (await history.load(site.db, [source]))[source]
    chosen = point_of(source, decisions, decision)
    successor = new_id()
    request = ev.ResetRequested(str(successor), chosen, signals, reason)
    mail = Mail(new_id(), workflow_id, "reset", None, None, ev.encode_event(request))
    if row["closed_at"] is None:
        stored = await put_to(site, mail, source)
        if stored is not None:
            site.wake(stored["pool"], source, stored["partition"], workflow_id)
            return await _carried_out(site, workflow_id, source, successor, patience)
    await _fork_closed(site, workflow_id, source, successor, chosen, drops=signals == "drop")
    site.wake(row["pool"], successor, partition_of(workflow_id), workflow_id)
    return successor


async def _carried_out(site: Site, workflow_id: str, source: UUID, successor: UUID, patience: float) -> UUID:
    if not await closed_within(site, source, patience):
        raise NoAnswer(
            f"the request to reset {workflow_id!r} is stored, but no worker has carried it out within {patience:g} s",
            hint="start a worker of its queue",
        )
    if not await executions.load(site.db, [successor]):
        row = await exactly(site, workflow_id, source)
        raise WorkflowClosed(workflow_id, source, row["state"], hint="it closed by itself before; reset it once more")
    return successor


async def _fork_closed(site: Site, workflow_id: str, source: UUID, successor: UUID, decision: int, *, drops: bool) -> None:
    row = (source, successor, "reset", None, 0.0, decision, drops, 0, "[]", None)
    names = [
        "execution_ids",
        "successors",
        "links",
        "seeds",
        "delays",
        "decisions",
        "drops",
        "carried",
        "unresolved",
        "attributes",
    ]
    named: dict[str, Any] = {f"f_{name}": [value] for name, value in zip(names, row, strict=True)}
    try:
        await site.db.fetch(fork_of_closed(), **named, skip_messages=[], skip_keys=[])
    except Exception as exc:
        if not is_unique_violation(exc):
            raise
        latest = await site.latest.submit(workflow_id)
        if latest is not None and latest["execution_id"] == successor:
            return  # a first try got through
        holder = source if latest is None else latest["execution_id"]
        raise WorkflowAlreadyStarted(workflow_id, holder, "RUNNING" if latest is None else latest["state"]) from None


def point_of(source: UUID, decisions: Sequence[StoredDecision], wanted: int | None) -> int:
    """The decision to fork after. Raises `ResetRefused`, saying which ones would do. Pure."""
    good = [d.decision for d in decisions if not any(isinstance(c, ev.Closing) for c in ev.decode_events(d.events)[1])]
    if not good:
        raise ResetRefused(source, "it has no decision to go back to", "end it if it is open, and rerun it")
    chosen = good[-1] if wanted is None else wanted
    if chosen not in good:
        raise ResetRefused(source, f"decision {wanted} is none to go back to", f"choose one from {good[0]} to {good[-1]}")
    children = open_children(decisions, chosen)
    if children:
        before = [d for d in good if d < chosen and not open_children(decisions, d)]
        then = f"choose decision {before[-1]}" if before else "rerun it"
        raise ResetRefused(source, f"at decision {chosen} it waited for the child {children[0]!r}", then)
    return chosen


def open_children(decisions: Iterable[StoredDecision], until: int) -> list[str]:
    """Workflow ids of the children that are under way at the end of this decision. Pure."""
    children: dict[int, str] = {}
    for stored in decisions:
        if stored.decision > until:
            break
        arrivals, commands = ev.decode_events(stored.events)
        for arrival in arrivals:
            if isinstance(arrival, (ev.ChildCompleted, ev.ChildFailed)):
                children.pop(arrival.seq, None)
        for command in commands:
            if isinstance(command, ev.ChildStarted):
                children[command.seq] = command.workflow_id
    return list(children.values())


async def rerun(site: Site, workflow_id: str, execution_id: UUID | None, *, new_workflow_id: str | None) -> UUID:
    """A new logical run from the input of an old one, under the same workflow id or a new one.

    Raises `RerunRefused` for an attempt that was retried: it names the latest one, whose inputs those are.
    """
    check_workflow(workflow_id, "reruns")
    row = await exactly(site, workflow_id, execution_id)
    source: UUID = row["execution_id"]
    if row["erased_at"] is not None:
        raise RerunRefused(f"the payloads of execution {source} were erased", hint="start it anew, with an input")
    if row["retried_as"] is not None:
        live = await live_attempt(site, source)
        raise RerunRefused(
            f"execution {source} was retried; the latest attempt is {live['execution_id']} ({live['state']})",
            hint=command("run rerun", workflow_id, "--execution-id", live["execution_id"]),
        )
    id = new_workflow_id or workflow_id
    check_workflow(id, "reruns")
    site.check_home(id)
    execution_id = new_id()
    run = NewRun(
        execution_id,
        id,
        row["type"],
        row["pool"],
        execution_id.int & 0x7FFF_FFFF_FFFF_FFFF,
        row["input"],
        priority=row["priority"],
        timeout=row["timeout"],
        chain_timeout=row["chain_timeout"],
        memo=row["memo"],
        attributes=row["search_attributes"],
        retry=row["retry"],
        rerun_of=source,
    )
    return (await starting.start(site, run, "fail")).execution_id
