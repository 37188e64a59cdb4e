"""Mail to a run: signals, cancel and terminate requests.

Where the owner is in this process and holds the run, an unkeyed message skips the mailbox and is acknowledged
after the commit that ingested it; otherwise it is acknowledged once its row is stored.
"""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import msgspec

from harvest.core.events import Arrival, CancelRequested, SignalReceived, TerminateRequested, encode_event
from harvest.decisions.answers import Undelivered
from harvest.decisions.run import Delivery
from harvest.errors import NoAnswer, WorkflowMisuse, WorkflowNotFound
from harvest.hub import messages
from harvest.hub.database import Row
from harvest.hub.messages import Mail
from harvest.ids import is_entity, new_id, partition_of
from harvest.operations.follow import result
from harvest.operations.live import act_on_live
from harvest.operations.site import Site
from harvest.telemetry.traces import reached


async def deliver(
    site: Site,
    workflow_id: str,
    kind: str,
    name: str | None,
    arrival: Arrival,
    key: str | None = None,
    *,
    attempt: UUID | None = None,
) -> UUID:
    """Makes one message durable; returns the execution that has it.

    It goes to the open run of the id, or with `attempt` to the live attempt of that execution. `WorkflowNotFound` where
    none is open.
    """
    found = None
    if attempt is not None:
        mail = Mail(new_id(), workflow_id, kind, name, key, encode_event(arrival))
        found = (await put_to_live(site, mail, attempt))["execution_id"]
    elif key is None:
        found = await _directly(site, workflow_id, arrival)
    if found is None:
        found = await post(site, workflow_id, kind, name, arrival, key)
    reached(found)
    return found


def offer(site: Site, workflow_id: str, arrival: Arrival) -> tuple[UUID, asyncio.Future[Any]] | None:
    """Hands an arrival to an owner in this process: the run that has it, and what resolves with its answer.

    None where no owner here may take it directly.
    """
    owner = site.owner_of(workflow_id)
    execution_id = None if owner is None else owner.holds(workflow_id)
    if owner is None or execution_id is None:
        return None
    ack: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    if not owner.offer(execution_id, partition_of(workflow_id), Delivery(arrival, ack=ack)):
        return None
    return execution_id, ack


async def _directly(site: Site, workflow_id: str, arrival: Arrival) -> UUID | None:
    offered = offer(site, workflow_id, arrival)
    if offered is None:
        return None
    execution_id, ack = offered
    try:
        await ack
    except Undelivered:
        return None
    return execution_id


async def post(site: Site, workflow_id: str, kind: str, name: str | None, arrival: Arrival, key: str | None) -> UUID:
    """Through the mailbox."""
    row = await put(site, Mail(new_id(), workflow_id, kind, name, key, encode_event(arrival)))
    if row is None:
        raise WorkflowNotFound(
            f"no open run has the workflow id {workflow_id!r}", hint="is it closed already? see `harvest run show`"
        )
    site.wake(row["pool"], row["execution_id"], row["partition"], workflow_id)
    found: UUID = row["execution_id"]
    return found


async def put(site: Site, mail: Mail) -> Row | None:
    """Stores mail for the open run; None when there is none, also after a run that was just continuing as new."""
    for _ in range(10):
        row = await site.mail.submit(mail)
        assert not isinstance(row, Exception)
        if row is not None:
            return row
        latest = await site.latest.submit(mail.workflow_id)
        if latest is None or not latest["open"]:
            return None
    return None


async def put_to(site: Site, mail: Mail, execution_id: UUID) -> Row | None:
    """Stores mail for this very execution; None when it is closed."""
    return await messages.send_to(site.db, mail, execution_id)


async def put_to_live(site: Site, mail: Mail, attempt: UUID) -> Row:
    """Stores mail for the live attempt of an execution, and wakes it. A stored message is never sent twice (L-7)."""

    async def act(target: Row) -> Row | None:
        row = await put_to(site, mail, target["execution_id"])
        if row is not None:
            site.wake(row["pool"], row["execution_id"], row["partition"], mail.workflow_id)
        return row

    return await act_on_live(site, mail.workflow_id, attempt, act)


def check_workflow(workflow_id: str, what: str) -> None:
    """Raises `WorkflowMisuse` for a request that only workflows understand."""
    if is_entity(workflow_id):
        raise WorkflowMisuse(
            f"{workflow_id!r} is an entity: it takes no {what}", hint="call an operation: client.entity(Type, key)"
        )


async def signal(
    site: Site, workflow_id: str, name: str, input: msgspec.Raw, key: str | None, attempt: UUID | None = None
) -> UUID:
    check_workflow(workflow_id, "signals")
    return await deliver(site, workflow_id, "signal", name, SignalReceived(name, input, key), key, attempt=attempt)


async def cancel(site: Site, workflow_id: str, reason: str, attempt: UUID | None = None) -> UUID:
    """Asks the run to cancel; returns once the request is durable. A queued retry is not begun then (L-6)."""
    check_workflow(workflow_id, "cancel requests")
    return await deliver(site, workflow_id, "cancel", None, CancelRequested(reason), attempt=attempt)


async def terminate(site: Site, workflow_id: str, reason: str, *, attempt: UUID | None = None, patience: float = 10.0) -> UUID:
    """Ends the run without asking its code; returns once it is closed, also where the request went on to a next attempt.

    History has one writer, so its owner does it. `NoAnswer` when none did within `patience` seconds: the
    request is durable and takes effect when a worker comes.
    """
    execution_id = await deliver(site, workflow_id, "terminate", None, TerminateRequested(reason), attempt=attempt)
    try:
        async with asyncio.timeout(patience):
            return (await result(site, execution_id)).execution_id
    except TimeoutError:
        raise NoAnswer(
            f"the request to terminate {workflow_id!r} is stored, but no worker has carried it out within {patience:g} s",
            hint="start a worker of its queue",
        ) from None
