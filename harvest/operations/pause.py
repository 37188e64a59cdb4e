"""Pause and resume: a paused run ingests nothing, and its deadlines stand still.

Its owner carries a pause out, so that no decision is on its way when `pause` returns. Nobody decides a paused run, so a
resume is one statement.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

from harvest.core.events import PauseRequested, encode_event
from harvest.decisions.answers import Answer
from harvest.decisions.rows import reply_failure
from harvest.errors import NoAnswer
from harvest.failure import Failure
from harvest.hub import executions, messages
from harvest.hub.database import Row
from harvest.hub.messages import Mail
from harvest.ids import new_id
from harvest.operations.follow import LOOK_EVERY
from harvest.operations.live import act_on_live, closed_error, live_attempt
from harvest.operations.message import check_workflow, put_to
from harvest.operations.site import Site
from harvest.operations.update import unpack
from harvest.wakes.topics import REPLY, reply_key

TAKEN_BACK = "PauseTakenBack"


async def pause(site: Site, workflow_id: str, execution_id: UUID | None, patience: float) -> UUID:
    """Returns the execution that stands still; a paused one stays so. Raises `WorkflowClosed`, `WorkflowNotFound`, or
    `NoAnswer` when no worker carried it out within `patience` seconds: it takes effect when one comes."""
    check_workflow(workflow_id, "pauses")
    message_id = new_id()
    key = f"~pause:{message_id.hex}"
    mail = Mail(message_id, workflow_id, "pause", None, key, encode_event(PauseRequested(key)))
    deadline = asyncio.get_running_loop().time() + patience

    async def act(target: Row) -> UUID | None:
        found: UUID = target["execution_id"]
        if target["state"] == "PAUSED":
            return found
        row = await put_to(site, mail, found)
        if row is None:
            return None
        site.wake(row["pool"], found, row["partition"], workflow_id)
        return await _carried_out(site, mail, found, deadline)

    paused = await act_on_live(site, workflow_id, execution_id, act)
    await messages.discard(site.db, message_id)
    return paused


async def _carried_out(site: Site, mail: Mail, execution_id: UUID, deadline: float) -> UUID:
    loop, key = asyncio.get_running_loop(), reply_key(mail.workflow_id, mail.key or "")
    while True:
        waiter = site.router.waiter(REPLY, key)
        try:
            raw = await site.replies.submit(mail.message_id)
            target = await live_attempt(site, execution_id)
            if raw is not None:
                _check(raw, target)
            if raw is not None or target["state"] == "PAUSED":
                found: UUID = target["execution_id"]
                return found
            left = deadline - loop.time()
            if left <= 0:
                raise NoAnswer(
                    f"the request to pause {mail.workflow_id!r} is stored, but no worker has carried it out yet",
                    hint="it takes effect as soon as a worker of its queue comes; `harvest run resume` takes it back",
                )
            await asyncio.wait({waiter}, timeout=min(LOOK_EVERY, left))
        finally:
            site.router.forget(REPLY, key, waiter)


def _check(raw: str, target: Row) -> None:
    try:
        unpack(raw)
    except Answer as bad:
        if bad.failure.type == TAKEN_BACK:
            raise NoAnswer(f"the run {target['workflow_id']!r} was resumed before it paused") from None
        raise closed_error(target) from None


async def resume(site: Site, workflow_id: str, execution_id: UUID | None) -> UUID:
    """Returns the execution that goes on; one that is not paused just does. Raises `WorkflowClosed`, `WorkflowNotFound`."""
    check_workflow(workflow_id, "pauses")
    taken_back = reply_failure(Failure("the run was resumed before it paused", TAKEN_BACK))

    async def act(target: Row) -> UUID | None:
        found: UUID = target["execution_id"]
        done = await executions.resume(site.db, found, taken_back)
        for key in done["taken_back"] or ():
            site.router.wake(REPLY, reply_key(workflow_id, key))
            site.notifier.reply(workflow_id, key)
        if done["resumed"] or done["taken_back"]:
            site.wake(target["pool"], found, target["partition"], workflow_id)
        if done["resumed"]:
            for queue in done["queues"] or ():
                site.notifier.queue(queue)
            return found
        again = await live_attempt(site, found)
        return found if again["open"] and again["execution_id"] == found else None

    return await act_on_live(site, workflow_id, execution_id, act)
