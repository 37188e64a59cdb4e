"""Calls of an entity's operations: answered once, by whoever owns it, and durable by then (E-1, E-2).

In the owner's process a call skips the mailbox: it is handed to the decision that is next, which may be the one that
creates the entity. From elsewhere it is a row of mail, stored together with the entity where there is none.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec

from harvest.core.entity import GONE
from harvest.core.events import OperationCalled, encode_event
from harvest.decisions.answers import Admitted, Answer, Undelivered
from harvest.decisions.run import Delivery
from harvest.errors import NoAnswer, PayloadError, WorkflowNotFound
from harvest.hub import executions, messages
from harvest.hub.database import Row
from harvest.hub.messages import Mail
from harvest.ids import new_id, partition_of, queue_of
from harvest.operations.message import put
from harvest.operations.site import LocalOwner, Site
from harvest.operations.start import new_run
from harvest.operations.update import answer_of_mail, recorded, unpack
from harvest.telemetry.traces import reached

ANONYMOUS = "~"
"""Calls without an idempotency key have one of ours that begins with this; their answers are not kept for long."""
_NO_INPUT = msgspec.Raw(b"[]")


@dataclass(frozen=True, slots=True)
class Address:
    """`pool` is where the entity comes about if there is none yet."""

    type: str
    key: str
    workflow_id: str
    pool: str


async def call(site: Site, to: Address, name: str, input: msgspec.Raw, key: str | None, patience: float) -> msgspec.Raw:
    """The operation's result as JSON. Raises `Answer` for a bad end, `NoAnswer` after `patience` seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience
    while True:
        left = deadline - loop.time()
        if left <= 0:
            raise NoAnswer(f"operation {name!r} of {to.type} {to.key!r} was not answered within {patience:g} s")
        try:
            return await _once(site, to, name, input, key, left)
        except Answer as bad:
            if bad.failure.type != GONE:
                raise
        except WorkflowNotFound:
            pass  # it was deleted between two looks: the next one begins it anew


async def _once(site: Site, to: Address, name: str, input: msgspec.Raw, key: str | None, patience: float) -> msgspec.Raw:
    call_id = key if key is not None else f"{ANONYMOUS}{new_id().hex}"
    if key is not None:
        answered = await _answered_before(site, to, name, key)
        if answered is not None:
            return answered
    else:
        direct = await _directly(site, to, OperationCalled(call_id, name, input), patience)
        if direct is not None:
            return direct
    mail = Mail(new_id(), to.workflow_id, "update", name, call_id, encode_event(OperationCalled(call_id, name, input)))
    row = await _put(site, to, mail)
    try:
        return await answer_of_mail(site, mail, patience, known=not row["stored"])
    except NoAnswer:
        again = (
            "call again with the same idempotency_key" if key is not None else "with an idempotency_key calling again is safe"
        )
        raise NoAnswer(
            f"operation {name!r} of {to.type} {to.key!r} is stored, and unanswered after {patience:g} s; it may still be done",
            hint=f"it is kept by workers of queue {queue_of(row['pool'])!r}: is one running, or busy with it? {again}",
        ) from None


async def _answered_before(site: Site, to: Address, name: str, key: str) -> msgspec.Raw | None:
    """What this key was answered with, perhaps in an earlier life of the entity: a key acts once (E-2)."""
    known = await messages.by_key(site.db, workflow_id=to.workflow_id, kind="update", key=key)
    if known is None:
        return None
    if known["name"] != name:
        raise PayloadError("idempotency_key", f"{key!r} was given to operation {known['name']!r}, this is {name!r}")
    if known["reply"] is None:
        return None
    try:
        return unpack(known["reply"])
    except Answer as bad:
        if bad.failure.type == GONE:
            return None
        raise


async def _directly(site: Site, to: Address, call: OperationCalled, patience: float) -> msgspec.Raw | None:
    """Through an owner in this process; None when the mailbox has to take it."""
    ack: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    execution_id = await _hand_over(site, to, Delivery(call, ack=ack))
    if execution_id is None:
        return None
    reached(execution_id)
    try:
        async with asyncio.timeout(patience):
            answer: msgspec.Raw = await ack
            return answer
    except TimeoutError:
        raise NoAnswer(
            f"operation {call.name!r} of {to.type} {to.key!r} was not answered within {patience:g} s; it may still be done",
            hint="give an idempotency_key to make calling again safe",
        ) from None
    except Undelivered as exc:
        admitted = isinstance(exc, Admitted)
        return await recorded(site, to.workflow_id, execution_id, call.name, call.update_id, patience, admitted=admitted)


async def _hand_over(site: Site, to: Address, delivery: Delivery) -> UUID | None:
    """The run that has it; None where no owner here may take it."""
    partition = partition_of(to.workflow_id)
    for owner in site.owners:
        seat = owner.seat(to.workflow_id)
        if seat is not None and owner.offer(seat, partition, delivery):
            return seat
    if not any(owner.owns(to.workflow_id) for owner in site.owners):
        return None
    latest = await site.latest.submit(to.workflow_id)
    if latest is not None and latest["open"]:
        owner_ = site.owner_in(latest["pool"], to.workflow_id)
        if owner_ is not None and owner_.offer(latest["execution_id"], partition, delivery):
            found: UUID = latest["execution_id"]
            return found
        return None
    return _create(site.owner_in(to.pool, to.workflow_id), to, partition, delivery)


def _create(owner: LocalOwner | None, to: Address, partition: int, delivery: Delivery) -> UUID | None:
    """The entity and its first operation are one commit."""
    if owner is None or not owner.knows(to.type):
        return None
    seat = owner.seat(to.workflow_id)  # somebody else may have been quicker
    if seat is None:
        run = new_run(to.workflow_id, to.type, to.pool, _NO_INPUT)
        created = owner.launch(run)
        if created is None:
            return None
        created.add_done_callback(lambda future: future.exception())  # what became of it, the operation's answer tells
        seat = run.execution_id
    return seat if owner.offer(seat, partition, delivery) else None


async def _put(site: Site, to: Address, mail: Mail) -> Row:
    """Stores a call; an entity that is not there yet is stored with it. `stored` is false when its key was known before."""
    row = await put(site, mail)
    while row is None:
        async with site.db.transaction() as session:
            run = new_run(to.workflow_id, to.type, to.pool, _NO_INPUT)
            await executions.start(session, [run])
            row = (await messages.send(session, [mail])).get(mail.message_id)
    site.wake(row["pool"], row["execution_id"], row["partition"], to.workflow_id)
    reached(row["execution_id"])
    return row


async def exists(site: Site, to: Address) -> UUID | None:
    """The execution of a live entity."""
    latest = await site.latest.submit(to.workflow_id)
    if latest is None or not latest["open"]:
        return None
    found: UUID = latest["execution_id"]
    return found
