"""What is needed to decide: the run's row, its history, its mail, its finished activities. Few queries for many runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import msgspec

from harvest.core import events as ev
from harvest.core.entity import rebuild as rebuild_entity
from harvest.core.instance import Instance
from harvest.core.program import RunInfo
from harvest.core.replay import StoredDecision, replay_decision
from harvest.decisions.run import Delivery, Parent, Run
from harvest.definitions.entity import EntityDefinition
from harvest.definitions.registry import Registry
from harvest.errors import WorkflowMisuse
from harvest.failure import decode_failure
from harvest.hub import activity_tasks, executions, history, messages, workflow_tasks
from harvest.hub.database import Database, Row
from harvest.hub.workflow_tasks import STRIKES
from harvest.ids import is_entity, queue_of


@dataclass(slots=True)
class Loaded:
    """`row` is None where the run does not exist, or (not `cold`) was known already."""

    row: Row | None = None
    decisions: list[StoredDecision] = field(default_factory=list)
    error: Exception | None = None
    deliveries: list[Delivery] = field(default_factory=list)
    cold: bool = False
    wakes: int | None = None
    cached: int = 0
    """How many of the decisions a cache had."""
    fits: bool = True
    """False where what the cache had was not what the hub has."""


async def load(
    db: Database,
    cold: Sequence[UUID],
    mail: Sequence[UUID],
    *,
    claimed: Sequence[UUID] = (),
    known: Mapping[UUID, list[StoredDecision]] | None = None,
) -> dict[UUID, Loaded]:
    """Row and history of the runs in `cold`, mail and finished activities of those in `mail`.

    Of a run in `known` only the last decision that is known and those after it are read; where the two do not fit, all.

    Of the runs in `claimed` it is read before their mail how often they were poked: what is poked later counts as unseen.
    Before the first decision of a run that continues or retries another one, mail that got stuck there is brought over:
    it came first.
    """
    found: dict[UUID, Loaded] = {execution_id: Loaded() for execution_id in (*cold, *mail)}
    if cold:
        for execution_id in cold:
            found[execution_id].cold = True
        for execution_id, row in (await executions.load(db, cold)).items():
            found[execution_id].row = row
        await _histories(db, cold, known or {}, found)
        for execution_id in cold:
            read = found[execution_id]
            if read.row is not None and read.row["predecessor"] is not None and not read.decisions:
                await messages.forward(db, read.row["predecessor"], execution_id)
    if claimed:
        for execution_id, wakes in (await workflow_tasks.wakes(db, claimed)).items():
            found[execution_id].wakes = wakes
    if mail:
        for row in await messages.load(db, mail):
            _add(found[row["execution_id"]], row, _mail)
        for row in await activity_tasks.done(db, mail):
            _add(found[row["execution_id"]], row, lambda row: Delivery(finished_arrival(row)))
    return found


async def _histories(
    db: Database, cold: Sequence[UUID], known: Mapping[UUID, list[StoredDecision]], found: dict[UUID, Loaded]
) -> None:
    after = {execution_id: decisions[-1].decision for execution_id, decisions in known.items()}
    read = await history.load(db, cold, starting=after)
    unfit = [execution_id for execution_id in known if not _fits(known[execution_id], read.get(execution_id) or [])]
    if unfit:
        read.update(await history.load(db, unfit))
    for execution_id, decisions in read.items():
        loaded, had = found[execution_id], known.get(execution_id)
        if had is None:
            loaded.decisions = decisions
        elif execution_id in unfit:
            loaded.decisions, loaded.fits = decisions, False
        else:
            loaded.decisions, loaded.cached = had + decisions[1:], len(had)


def _fits(known: list[StoredDecision], read: list[StoredDecision]) -> bool:
    return bool(read) and read[0] == known[-1]


def _mail(row: Row) -> Delivery:
    return Delivery(ev.decode_arrival(row["event"]), row["message_id"], row["key"] is not None)


def _add(loaded: Loaded, row: Row, read: Callable[[Row], Delivery]) -> None:
    """A row that cannot be read is its own run's trouble, nobody else's (F-4)."""
    try:
        loaded.deliveries.append(read(row))
    except (msgspec.MsgspecError, ValueError) as exc:
        loaded.error = exc


def finished_arrival(row: Row) -> ev.Arrival:
    """The arrival of a finished activity task."""
    if row["failure"] is not None:
        return ev.ActivityFailed(row["seq"], decode_failure(row["failure"]), row["attempt"])
    return ev.ActivityCompleted(row["seq"], msgspec.Raw((row["result"] or "null").encode()))


def info_of(row: Row) -> RunInfo:
    continued = row["continued_from"]
    return RunInfo(
        workflow_id=row["workflow_id"],
        execution_id=str(row["execution_id"]),
        type=row["type"],
        queue=queue_of(row["pool"]),
        seed=row["seed"],
        input=msgspec.Raw(row["input"].encode()),
        parent_workflow_id=row["parent_workflow_id"],
        continued_from=None if continued is None else str(continued),
        attempt=row["attempt"],
    )


def describe_run(run: Run, row: Row, decisions: list[StoredDecision]) -> None:
    """Fills in what the row says; the instance comes with `rebuild`."""
    run.info = info_of(row)
    run.workflow_id = row["workflow_id"]
    run.priority, run.deadline_us, run.chain_deadline_us = row["priority"], row["deadline_us"], row["chain_deadline_us"]
    run.retry = retry_of(row["retry"])
    if run.dead and not row["strikes"] and not row["failing"]:
        run.strikes = 0  # redriven
    run.strikes = max(run.strikes, row["strikes"] or 0)
    run.failing = row["failing"]
    run.stored = (row["task_state"] or "pending", row["due_us"]) if run.claim is None else ("running", None)
    run.dead = run.strikes >= STRIKES
    if row["parent_execution_id"] is not None:
        run.parent = Parent(row["parent_execution_id"], row["parent_workflow_id"], row["parent_pool"], row["parent_seq"])
        run.parent_close = row["parent_close"]
    run.known = True
    run.decision = decisions[-1].decision if decisions else 0
    run.forked = row["reset_decision"] is not None and row["reset_decision"] == run.decision
    run.events = 0 if not decisions else decisions[-1].first_event_id - 1 + count_events(decisions[-1])
    run.recorded = decisions[0].decision if decisions else 0
    run.history_bytes = sum(len(d.events) for d in decisions)


def retry_of(text: str | None) -> ev.RetrySpec | None:
    return None if text is None else msgspec.json.decode(text, type=ev.RetrySpec)


def count_events(stored: StoredDecision) -> int:
    """Events of a decision, without looking into them."""
    return len(msgspec.json.decode(stored.events, type=list[msgspec.Raw]))


_WORK = (ev.ActivityScheduled, ev.ExternalSignalSent, ev.ExternalCancelSent, ev.EntityCallSent)


@dataclass(slots=True)
class Unfinished:
    """What a rebuilt run has under way that lives in no row: local activities and external requests."""

    local: list[ev.ActivityScheduled] = field(default_factory=list)
    external: list[ev.ExternalSignalSent | ev.ExternalCancelSent] = field(default_factory=list)


def rebuild(run: Run, decisions: list[StoredDecision], registry: Registry, check: Any) -> Unfinished:
    """Replays history into a fresh instance. What is in the run's queue already is not under way any more.

    Raises what replay raises; the run has no instance then."""
    info = run.info
    if info is None:
        raise RuntimeError("describe_run comes first")
    program = registry.workflow(info.type)
    if isinstance(program, EntityDefinition) is not is_entity(info.workflow_id):
        raise WorkflowMisuse(f"run {info.workflow_id!r} is of type {info.type!r}, which is {program!r}")
    if isinstance(program, EntityDefinition):
        return _rebuild_entity(run, program, info, decisions, check)
    instance = Instance(info, program, check_activity=check)
    work: dict[int, Any] = {}
    admitted: dict[str, bool] = {}
    try:
        for stored in decisions:
            arrivals, commands = replay_decision(instance, stored)
            for arrival in arrivals:
                if isinstance(arrival, ev.UpdateAdmitted):
                    admitted[arrival.update_id] = True
            for command in commands:
                if isinstance(command, _WORK):
                    work[command.seq] = command
                elif isinstance(command, (ev.UpdateCompleted, ev.UpdateFailed)):
                    admitted.pop(command.update_id, None)
    except BaseException:
        instance.seal()
        raise
    instance.replaying = False
    run.instance = instance
    run.remote_updates = set(admitted) - set(run.updates)
    left = _under_way(run, instance, work)
    if run.forked:  # tasks and calls of the other run are its own
        asked = [
            work[seq] for seq in sorted(instance.pending) if seq in run.tasks or isinstance(work.get(seq), ev.EntityCallSent)
        ]
        run.reissue = asked
    return left


def _rebuild_entity(
    run: Run, program: EntityDefinition, info: RunInfo, decisions: list[StoredDecision], check: Any
) -> Unfinished:
    entity = run.instance = rebuild_entity(info, program, decisions, check)
    run.history_bytes = entity.footprint(run.history_bytes)
    called = [call for call in entity.unanswered() if call.caller is None]
    run.remote_updates = {call.update_id for call in called} - set(run.updates)
    work: dict[int, Any] = {}
    if entity.pending:
        for stored in decisions:
            for command in ev.decode_events(stored.events)[1]:
                if isinstance(command, (ev.ActivityScheduled, ev.ExternalSignalSent, ev.ExternalCancelSent)):
                    work[command.seq] = command
    return _under_way(run, entity, work)


def _under_way(run: Run, instance: Instance, work: dict[int, Any]) -> Unfinished:
    """Sorts what the code waits for: in memory only (`hot`), or in a task row (`tasks`)."""
    run.hot, run.tasks = set(), {}
    left = Unfinished()
    arrived = {getattr(delivery.arrival, "seq", 0) for delivery in run.queue}
    for seq in sorted(instance.pending):
        asked = work.get(seq)
        if isinstance(asked, ev.ActivityScheduled) and asked.options.mode != "local":
            run.tasks[seq] = "pending"
        elif asked is not None and not isinstance(asked, ev.EntityCallSent):
            run.hot.add(seq)
            if seq not in arrived:
                (left.local if isinstance(asked, ev.ActivityScheduled) else left.external).append(asked)
    return left
