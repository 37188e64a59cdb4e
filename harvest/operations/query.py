"""Queries: no footprint (R-9). In the owner's process a call; from elsewhere two NOTIFYs and no row."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any
from uuid import UUID

import msgspec

import harvest.hub.database as hub
from harvest.backoff import Backoff
from harvest.decisions.answers import Undelivered
from harvest.errors import HarvestError, QueryFailed, QueryTimeout, WorkflowNotFound
from harvest.hub import executions, workflow_tasks
from harvest.hub.workflow_tasks import STRIKES
from harvest.ids import new_id, partition_of, queue_of
from harvest.operations.site import LocalOwner, Site
from harvest.wakes.topics import ANSWER, ASK, channel, dump

log = logging.getLogger("harvest.operations")
PIECE = 3_500
"""Characters per NOTIFY; longer questions and answers travel in pieces (at worst doubled by JSON quoting)."""
ASK_AGAIN = Backoff(0.2, cap=1.0)
"""Seconds until a question is asked again: its run may be between two owners."""


async def query(
    site: Site, workflow_id: str, execution_id: UUID | None, name: str, input: msgspec.Raw, patience: float
) -> msgspec.Raw:
    """The handler's result as JSON. Raises `QueryFailed`, `QueryTimeout` or `WorkflowNotFound`."""
    owner = site.owner_of(workflow_id)
    if owner is not None:
        held = owner.holds(workflow_id)
        if held is not None and (execution_id is None or held == execution_id):
            try:
                return await _within(patience, name, _ask(owner, held, workflow_id, name, input))
            except Undelivered:
                pass
    row = await _find(site, workflow_id, execution_id)
    owner = site.owner_in(row["pool"], workflow_id)
    if owner is not None:
        try:
            return await _within(patience, name, _ask(owner, row["execution_id"], workflow_id, name, input))
        except Undelivered:
            pass  # it went to another worker meanwhile
    return await _remotely(site, row, workflow_id, name, input, patience)


async def _within(patience: float, name: str, answer: Awaitable[msgspec.Raw]) -> msgspec.Raw:
    try:
        return await asyncio.wait_for(answer, patience)
    except TimeoutError:
        raise QueryTimeout(f"query {name!r} was not answered within {patience:g} s") from None


async def _find(site: Site, workflow_id: str, execution_id: UUID | None) -> Any:
    """This very execution, else the newest run of the id."""
    if execution_id is None:
        latest = await site.latest.submit(workflow_id)
        if latest is not None:
            return latest
    else:
        found = await executions.describe(site.db, workflow_id=None, execution_id=execution_id)
        if found is not None:
            return found
    raise WorkflowNotFound(f"no run has the workflow id {workflow_id!r}")


async def _ask(
    owner: LocalOwner, execution_id: UUID, workflow_id: str, name: str, input: msgspec.Raw, *, read_mail: bool = False
) -> msgspec.Raw:
    try:
        return await owner.ask(execution_id, partition_of(workflow_id), name, input, read_mail=read_mail)
    except (QueryFailed, WorkflowNotFound, Undelivered):
        raise
    except Exception as exc:
        raise QueryFailed(f"query {name!r} failed: {type(exc).__name__}: {exc}") from exc


async def _remotely(site: Site, row: Any, workflow_id: str, name: str, input: msgspec.Raw, patience: float) -> msgspec.Raw:
    question = str(new_id())
    loop = asyncio.get_running_loop()
    deadline, asked = loop.time() + patience, 0
    waiter = site.router.waiter(ANSWER, question)
    leave = site.router.subscribe(ANSWER, Pieces(lambda key, value: site.router.wake(ANSWER, key, value)).add)
    try:
        while loop.time() < deadline:
            _, responder = await workflow_tasks.responder(
                site.db, pool=row["pool"], execution_id=row["execution_id"], type=row["type"]
            )
            whom = None if responder is None else str(responder)
            text = dump([row["pool"], str(row["execution_id"]), workflow_id, name, bytes(input).decode(), whom])
            await send_pieces(site.db, ASK, question, text)
            asked += 1
            await asyncio.wait({waiter}, timeout=min(ASK_AGAIN.delay(asked), max(0.0, deadline - loop.time())))
            if waiter.done():
                kind, value = json.loads(waiter.result())
                if kind == "result":
                    return msgspec.Raw(value.encode())
                if kind == "failure":
                    raise QueryFailed(value)
                waiter = site.router.waiter(ANSWER, question)  # another worker has taken the run meanwhile
                await asyncio.sleep(0.02)
    finally:
        leave()
        site.router.forget(ANSWER, question, waiter)
    raise QueryTimeout(
        f"no worker answered query {name!r} of {workflow_id!r} within {patience:g} s",
        hint=f"is a worker of queue {queue_of(row['pool'])!r} running?",
    )


async def send_pieces(db: hub.Database, topic: str, key: str, text: str) -> None:
    """Sends a text of any length as NOTIFYs `[key, index, count, piece]`."""
    pieces = [text[i : i + PIECE] for i in range(0, len(text), PIECE)] or [""]
    name = channel(db.schema, topic)
    await hub.notify(db, [(name, dump([key, n, len(pieces), piece])) for n, piece in enumerate(pieces)])


class Pieces:
    """Puts texts together again; `done(key, text)` once per text."""

    def __init__(self, done: Any) -> None:
        self.done = done
        self._parts: dict[str, dict[int, str]] = {}

    def add(self, payload: Any) -> None:
        key, index, count, piece = payload
        parts = self._parts.setdefault(key, {})
        parts[index] = piece
        if len(parts) == count:
            del self._parts[key]
            self.done(key, "".join(parts[n] for n in range(count)))


ReplySql = Callable[[Site, str, str, str], Coroutine[Any, Any, None]]


class Answerer:
    """The worker's side: answers questions about runs it owns, and in sticky mode those that are put to it by its id.

    Questions in SQL are put to a worker, not to one of its pools: the `first` of its answerers takes them.
    `claim(execution_id)` takes a run for the time of an answer; False where another worker decides it just now.
    """

    def __init__(
        self, site: Site, owner: LocalOwner, claim: Callable[[UUID], Awaitable[bool]], reply_sql: ReplySql, *, first: bool
    ) -> None:
        self.site, self.owner, self.claim, self.reply_sql, self.first = site, owner, claim, reply_sql, first
        self._tasks: set[asyncio.Task[None]] = set()
        self.leave = site.router.subscribe(ASK, Pieces(self._asked).add)

    def _asked(self, key: str, text: str) -> None:
        pool, execution_id, workflow_id, name, input, whom = json.loads(text)
        if name.startswith("@sql"):
            if whom == str(self.owner.worker_id) and self.first:
                self._spawn(self._reply(key, name, input))
            return
        mine = self.owner.owns(workflow_id) if whom is None else whom == str(self.owner.worker_id)
        if pool == self.owner.pool and mine:
            work = self._answer(key, UUID(execution_id), workflow_id, name, input, claimed=whom is not None)
            self._spawn(work)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reply(self, key: str, name: str, input: str) -> None:
        try:
            await self.reply_sql(self.site, key, name, input)
        except Exception as exc:
            log.warning("could not answer a query in SQL: %s", exc)

    async def _answer(self, key: str, execution_id: UUID, workflow_id: str, name: str, input: str, *, claimed: bool) -> None:
        try:
            question = msgspec.Raw(input.encode())
            if claimed and not await self.claim(execution_id):
                known = await executions.describe(self.site.db, workflow_id=None, execution_id=execution_id)
                if known is not None and known["state"] == "RUNNING":
                    if (known["strikes"] or 0) >= STRIKES:
                        raise QueryFailed("the run is parked: its decisions fail; see `harvest run show`")
                    if not known["decisions"] and known["task_state"] == "pending":
                        raise QueryFailed("the run has not begun yet: its start is delayed, or waits for a worker")
                    await send_pieces(self.site.db, ANSWER, key, dump(["elsewhere", ""]))
                    return
            raw = await _ask(self.owner, execution_id, workflow_id, name, question, read_mail=True)
            answer = dump(["result", bytes(raw).decode()])
        except Undelivered:  # it closed, or went elsewhere: whoever asks looks again
            answer = dump(["elsewhere", ""])
        except HarvestError as exc:
            answer = dump(["failure", exc.message])
        try:
            await send_pieces(self.site.db, ANSWER, key, answer)
        except Exception as exc:
            log.warning("could not answer a query of %s: %s", workflow_id, exc)
