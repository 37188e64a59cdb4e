"""Updates: validated, answered, de-duplicated by update id (R-8)."""

from __future__ import annotations

import asyncio
from uuid import UUID

import msgspec

from harvest.core.events import UpdateAdmitted, UpdateCompleted, UpdateFailed, encode_event
from harvest.decisions.answers import Admitted, Answer, Carried, Undelivered
from harvest.errors import HarvestError, NoAnswer, UpdateNotFound, WorkflowClosed, WorkflowNotFound
from harvest.failure import Failure
from harvest.hub import history, messages
from harvest.hub.messages import Mail
from harvest.ids import new_id
from harvest.operations.follow import LOOK_EVERY
from harvest.operations.message import check_workflow, offer, put, put_to_live
from harvest.operations.site import Site
from harvest.telemetry.traces import reached
from harvest.wakes.topics import REPLY, reply_key


class Reply(msgspec.Struct):
    """A stored answer: a result, unless one of the others is set."""

    result: msgspec.Raw = msgspec.Raw(b"null")
    failure: Failure | None = None
    rejected: Failure | None = None


async def update(
    site: Site,
    workflow_id: str,
    name: str,
    input: msgspec.Raw,
    update_id: str | None,
    patience: float,
    attempt: UUID | None = None,
) -> msgspec.Raw:
    """The handler's result as JSON. Raises `Answer` for a bad end, `NoAnswer` after `patience` seconds."""
    check_workflow(workflow_id, "updates")
    if update_id is None and attempt is None:
        update_id = str(new_id())
        direct = await _directly(site, workflow_id, name, input, update_id, patience)
        if direct is not None:
            return direct
    mail = await _stored(site, workflow_id, name, input, update_id or str(new_id()), attempt)
    return await answer_of_mail(site, mail, patience, known=False)


async def admit(
    site: Site, workflow_id: str, name: str, input: msgspec.Raw, update_id: str, attempt: UUID | None = None
) -> None:
    """Returns once the update is durable; `later` has its answer. Raises `WorkflowNotFound`, `WorkflowClosed`."""
    check_workflow(workflow_id, "updates")
    await _stored(site, workflow_id, name, input, update_id, attempt)


async def later(site: Site, workflow_id: str, update_id: str, patience: float, attempt: UUID | None = None) -> msgspec.Raw:
    """The answer to an update that has its id from its sender: of the newest run of the workflow id that has it, or with
    `attempt` of that one's logical run (L-5).

    Raises `Answer` for a bad end, `NoAnswer` after `patience` seconds, `UpdateNotFound`.
    """
    check_workflow(workflow_id, "updates")
    mail = await _known(site, workflow_id, update_id, attempt)
    if mail is None:
        raise UpdateNotFound(f"{workflow_id!r} has no update with the id {update_id!r}")
    return await answer_of_mail(site, mail, patience, known=False)


async def of_newest(site: Site, workflow_id: str, update_id: str) -> bool:
    """True when the newest run of the workflow id, open or closed, has an update of this id: to ask for it again starts
    nothing."""
    found = await messages.by_key(site.db, workflow_id=workflow_id, kind="update", key=update_id)
    if found is None:
        return False
    latest = await site.latest.submit(workflow_id)
    return latest is not None and latest["execution_id"] == found["execution_id"]


async def _known(site: Site, workflow_id: str, update_id: str, attempt: UUID | None) -> Mail | None:
    """The update that has this id already."""
    if attempt is None:
        found = await messages.by_key(site.db, workflow_id=workflow_id, kind="update", key=update_id)
    else:
        found = await messages.by_key_of_run(site.db, attempt, kind="update", key=update_id)
    return None if found is None else Mail(found["message_id"], workflow_id, "update", found["name"], update_id, "")


async def _stored(site: Site, workflow_id: str, name: str, input: msgspec.Raw, update_id: str, attempt: UUID | None) -> Mail:
    """The update as mail: this one, or that which has its id already. Raises `WorkflowNotFound`, `WorkflowClosed`."""
    mail = Mail(new_id(), workflow_id, "update", name, update_id, encode_event(UpdateAdmitted(update_id, name, input)))
    closed: HarvestError = WorkflowNotFound(f"no open run has the workflow id {workflow_id!r}")
    row = None
    if attempt is None:
        row = await put(site, mail)
        if row is not None:
            site.wake(row["pool"], row["execution_id"], row["partition"], workflow_id)
            reached(row["execution_id"])
    else:
        try:
            row = await put_to_live(site, mail, attempt)
        except WorkflowClosed as exc:
            closed = exc
    if row is not None and row["stored"]:
        return mail
    known = await _known(site, workflow_id, update_id, attempt)
    if known is None:
        raise closed
    return known


async def _message_of(site: Site, mail: Mail) -> UUID:
    """Under which message its key is known. Raises `WorkflowNotFound`."""
    found = await messages.by_key(site.db, workflow_id=mail.workflow_id, kind=mail.kind, key=mail.key or "")
    if found is None:
        raise WorkflowNotFound(f"no open run has the workflow id {mail.workflow_id!r}")
    message_id: UUID = found["message_id"]
    return message_id


async def _directly(
    site: Site, workflow_id: str, name: str, input: msgspec.Raw, update_id: str, patience: float
) -> msgspec.Raw | None:
    """Through an owner in this process; None when the mailbox has to take it."""
    offered = offer(site, workflow_id, UpdateAdmitted(update_id, name, input))
    if offered is None:
        return None
    execution_id, ack = offered
    reached(execution_id)
    try:
        answer: msgspec.Raw = await asyncio.wait_for(ack, patience)
        return answer
    except TimeoutError:
        raise NoAnswer(f"update {name!r} of {workflow_id!r} was not answered within {patience:g} s") from None
    except Carried:
        return await answer_of_mail(site, Mail(new_id(), workflow_id, "update", name, update_id, ""), patience)
    except Undelivered as exc:
        admitted = isinstance(exc, Admitted)
        return await recorded(site, workflow_id, execution_id, name, update_id, patience, admitted=admitted)


async def recorded(
    site: Site, workflow_id: str, execution_id: UUID, name: str, update_id: str, patience: float, *, admitted: bool
) -> msgspec.Raw | None:
    """The owner went away. None when history does not know the update (which is not to be believed when it was `admitted`:
    it may wait within a recorded state); else the answer that history will have, or that of the run that took it over."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience
    while True:
        events = await history.of_update(site.db, execution_id, update_id)
        if not events and not admitted:
            return None
        for event in events:
            if isinstance(event, UpdateCompleted):
                return event.result
            if isinstance(event, UpdateFailed):
                raise Answer(event.failure)
        carried = await messages.by_key(site.db, workflow_id=workflow_id, kind="update", key=update_id)
        if carried is not None:
            mail = Mail(new_id(), workflow_id, "update", name, update_id, "")
            return await answer_of_mail(site, mail, max(0.0, deadline - loop.time()))
        if loop.time() > deadline:
            raise NoAnswer(f"update {name!r} was admitted, but not answered within {patience:g} s")
        await asyncio.sleep(LOOK_EVERY)


async def answer_of_mail(site: Site, mail: Mail, patience: float, *, known: bool = True) -> msgspec.Raw:
    """Waits for the answer to a keyed request. Its row is looked for where the key may be `known` from before.

    Raises `Answer` for a bad end, `NoAnswer` after `patience` seconds, `WorkflowNotFound` when no run has the key.
    """
    workflow_id, update_id = mail.workflow_id, mail.key or ""
    message_id = await _message_of(site, mail) if known else mail.message_id
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience
    key = reply_key(workflow_id, update_id)
    while True:
        waiter = site.router.waiter(REPLY, key)
        try:
            raw = await site.replies.submit(message_id)
            if raw is not None:
                return unpack(raw)
            left = deadline - loop.time()
            if left <= 0:
                raise NoAnswer(
                    f"{mail.name!r} ({update_id}) is stored, but not answered within {patience:g} s",
                    hint="ask again with the same update id or key to wait for its answer; is a worker of its queue running?",
                )
            await asyncio.wait({waiter}, timeout=min(LOOK_EVERY, left))
        finally:
            site.router.forget(REPLY, key, waiter)


def unpack(raw: str) -> msgspec.Raw:
    reply = msgspec.json.decode(raw, type=Reply)
    if reply.failure is not None:
        raise Answer(reply.failure)
    if reply.rejected is not None:
        raise Answer(reply.rejected, rejected=True)
    return reply.result
