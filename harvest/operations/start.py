"""Start a run: the workflow id is the contract, the policies say what happens when it is taken (R-6)."""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from harvest.core.events import SignalReceived, encode_event
from harvest.decisions.answers import Undelivered
from harvest.errors import ConfigError, PayloadError, WorkflowAlreadyStarted, WorkflowNotFound
from harvest.hub import executions, messages
from harvest.hub.database import Session, notify
from harvest.hub.executions import NewRun
from harvest.hub.messages import Mail
from harvest.ids import ENTITY, WORKFLOW_ID_CAP, check_name, check_priority, check_queue, is_entity, new_id, partition_of
from harvest.operations.message import terminate
from harvest.operations.site import Site
from harvest.wakes.topics import DECIDE, channel, dump

CONFLICT = ("fail", "use_existing", "terminate_existing")
REUSE = ("allow_duplicate", "allow_failed", "reject_duplicate")


class Started(NamedTuple):
    """`created` is False when an open run of this id was used instead."""

    execution_id: UUID
    created: bool


def check_start(workflow_id: str, queue: str, conflict: str, reuse: str, priority: int) -> None:
    """Raises for arguments that cannot be, before anything is stored."""
    check_name("id", workflow_id, WORKFLOW_ID_CAP)
    if is_entity(workflow_id):
        raise PayloadError("id", f"must not begin with {ENTITY!r}, got {workflow_id!r}: such ids are those of entities")
    check_queue("queue", queue)
    check_priority("priority", priority)
    if conflict not in CONFLICT:
        raise ConfigError("conflict", f"must be one of {', '.join(CONFLICT)}, got {conflict!r}")
    if reuse not in REUSE:
        raise ConfigError("reuse", f"must be one of {', '.join(REUSE)}, got {reuse!r}")


def check_attributes(text: str) -> str:
    if "\\u0000" in text:
        raise PayloadError("search_attributes", "a NUL character cannot be searched for")
    return text


def new_run(workflow_id: str, type: str, pool: str, input: msgspec.Raw, **options: Any) -> NewRun:
    """`options`: reuse, priority, timeout, delay (seconds), memo and attributes (JSON texts)."""
    execution_id = new_id()
    seed = execution_id.int & 0x7FFF_FFFF_FFFF_FFFF
    return NewRun(execution_id, workflow_id, type, pool, seed, bytes(input).decode(), **options)


async def start(site: Site, run: NewRun, conflict: str, *, signal: tuple[str, msgspec.Raw] | None = None) -> Started:
    """Stores the run (and, with `signal`, a first signal in the same transaction), then wakes its owner.

    Raises `WorkflowAlreadyStarted` as the policies say. A repeated call with the same `run` is harmless.
    """
    if signal is None and await _launched(site, run):
        return Started(run.execution_id, True)
    for _ in range(50):
        if signal is not None:
            done = await _with_signal(site, run, conflict, signal)
            if done is not None:
                return done
        elif await site.starts.submit(run):
            _announce(site, run, mail=False)
            return Started(run.execution_id, True)
        latest = await site.latest.submit(run.workflow_id)
        if latest is None:
            continue
        if latest["execution_id"] == run.execution_id:  # an earlier try stored it; how far it is, its owner knows
            site.wake(run.pool, run.execution_id, partition_of(run.workflow_id), run.workflow_id)
            return Started(run.execution_id, True)
        if not latest["open"]:
            if run.reuse != "allow_duplicate":
                raise WorkflowAlreadyStarted(run.workflow_id, latest["execution_id"], latest["state"])
        elif conflict == "use_existing":
            if signal is None:
                return Started(latest["execution_id"], False)
        elif conflict == "terminate_existing":
            try:
                await terminate(site, run.workflow_id, "replaced by a new start")
            except WorkflowNotFound:
                pass  # it closed by itself meanwhile
        else:
            raise WorkflowAlreadyStarted(run.workflow_id, latest["execution_id"], latest["state"])
    raise WorkflowAlreadyStarted(run.workflow_id, "?", "changing too quickly")


async def _launched(site: Site, run: NewRun) -> bool:
    """The shortest way: an owner in this process stores the run together with its first decision."""
    owner = site.owner_in(run.pool, run.workflow_id)
    if owner is None or not run.plain or not owner.knows(run.type):
        return False
    durable = owner.launch(run)
    if durable is None:
        return False
    try:
        await durable
    except Undelivered:
        return False
    return True


async def _with_signal(site: Site, run: NewRun, conflict: str, signal: tuple[str, msgspec.Raw]) -> Started | None:
    """Start and signal in one transaction; the signal also goes to a run that is open already."""
    name, input = signal
    mail = Mail(new_id(), run.workflow_id, "signal", name, None, encode_event(SignalReceived(name, input)))
    async with site.db.transaction() as session:
        created = run.execution_id in await executions.start(session, [run])
        if not created and conflict != "use_existing":
            return None
        sent = (await messages.send(session, [mail])).get(mail.message_id)
    if created:
        _announce(site, run, mail=True)
        return Started(run.execution_id, True)
    if sent is None:
        return None
    site.wake(sent["pool"], sent["execution_id"], sent["partition"], run.workflow_id)
    return Started(sent["execution_id"], False)


def _announce(site: Site, run: NewRun, *, mail: bool) -> None:
    """The short way to an owner in this process, else a wake. A delayed start is found when it is due."""
    if run.delay > 0:
        return
    owner = site.owner_in(run.pool, run.workflow_id)
    if owner is None:
        site.notifier.decide(run.pool, run.execution_id, partition_of(run.workflow_id))
        return
    if run.timeout is not None or run.chain_timeout is not None or run.retry is not None:
        owner.wake(run.execution_id, partition_of(run.workflow_id))  # its deadline is the hub's to tell
        return
    owner.begin(run.execution_id, run.info(), priority=run.priority, mail=mail)


async def start_inside(site: Site, session: Session, run: NewRun, conflict: str) -> Started:
    """Start in a caller's transaction: it exists if and when that commits, and its wake goes out then."""
    created = run.execution_id in await executions.start(session, [run])
    if created:
        # The one NOTIFY that rides in a transaction: it is the caller's, not a decision's.
        payload = dump([run.pool, [[str(run.execution_id), partition_of(run.workflow_id)]]])
        await notify(session, [(channel(site.db.schema, DECIDE), payload)])
        return Started(run.execution_id, True)
    latest = (await executions.latest(session, [run.workflow_id])).get(run.workflow_id)
    if latest is not None and latest["open"] and conflict == "use_existing":
        return Started(latest["execution_id"], False)
    raise WorkflowAlreadyStarted(
        run.workflow_id, None if latest is None else latest["execution_id"], "RUNNING" if latest is None else latest["state"]
    )


__all__ = ["CONFLICT", "REUSE", "Started", "check_start", "new_run", "start", "start_inside"]
