"""What the verbs stand on: the database, the wakes, and the owners that live in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Protocol
from uuid import UUID

import msgspec

from harvest.coalesce import Coalescer
from harvest.core.program import RunInfo
from harvest.decisions.run import Delivery
from harvest.entity_sql import Limits, Pool
from harvest.errors import ConfigError, HubUnreachable, PayloadError, UnknownWorkflowError
from harvest.hub import executions, messages, settings, workers
from harvest.hub.database import Database, Row, explained
from harvest.hub.executions import NewRun
from harvest.hub.messages import Mail
from harvest.hub.sqlstate import Trouble, trouble_of
from harvest.ids import shard_of
from harvest.operations.strays import forward_strays
from harvest.payload.plain import check_finite
from harvest.wakes.listener import Listener
from harvest.wakes.notifier import Notifier
from harvest.wakes.router import Router
from harvest.wakes.topics import ANSWER, CLOSED, REPLY, SWITCH
from harvest.words import plural


class LocalOwner(Protocol):
    """An owner in this process, as callers use it."""

    @property
    def pool(self) -> str: ...

    @property
    def worker_id(self) -> UUID: ...

    def knows(self, workflow: str) -> bool: ...

    def keeps(self, type: str) -> bool:
        """True for a type of entities."""

    def owns(self, workflow_id: str) -> bool: ...

    def holds(self, workflow_id: str) -> UUID | None:
        """The open run of this id when it is in memory and has no unread mail."""

    def holds_open(self, execution_id: UUID) -> bool: ...

    def seat(self, workflow_id: str) -> UUID | None:
        """The open run of this id that an owner may be offered things for, loaded or not."""

    def offer(self, execution_id: UUID, partition: int, delivery: Delivery) -> bool: ...

    def wake(self, execution_id: UUID, partition: int) -> None: ...

    def begin(
        self, execution_id: UUID, info: RunInfo, *, priority: int = 0, deadline_us: int | None = None, mail: bool = False
    ) -> None: ...

    def launch(self, new: NewRun) -> asyncio.Future[None] | None: ...

    def ask(
        self, execution_id: UUID, partition: int, name: str, input: msgspec.Raw, *, read_mail: bool = False
    ) -> asyncio.Future[msgspec.Raw]: ...


class LocalSql(Protocol):
    """SQL over entities, as a worker in this process answers it."""

    @property
    def worker_id(self) -> UUID: ...

    def knows(self, type: str) -> bool: ...

    async def one(self, type: str, key: str, sql: str, params: Any) -> dict[str, Any]: ...

    async def part(self, type: str, sql: str, params: Any, tokens: list[list[Any]], patience: float) -> dict[str, Any]: ...


class Site:
    """One per client; a worker in the same process adds itself to `owners`."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.router = Router()
        self.notifier = Notifier(db)
        self.listener = Listener(db, self.router, [CLOSED, REPLY, ANSWER, SWITCH])
        self.mode = "owner"
        self.shard: tuple[int, int] | None = None
        self.notifier.on_strays = self.forward_strays
        self.owners: list[LocalOwner] = []
        self.sql: list[LocalSql] = []
        self._sandbox: Pool | None = None
        self.starts: Coalescer[NewRun, bool] = Coalescer(self._start_all)
        self.mail: Coalescer[Mail, Row | Exception | None] = Coalescer(self._send_all)
        self.latest: Coalescer[str, Row | None] = Coalescer(self._latest_of)
        self.outcomes: Coalescer[UUID, Row | None] = Coalescer(self._outcomes_of)
        self.replies: Coalescer[UUID, str | None] = Coalescer(self._replies_of)
        self._known_types: set[tuple[str, str, bool]] = set()
        self.notifier.announcer.listen(self.router)
        self.router.subscribe(CLOSED, self._closed)
        self.router.subscribe(REPLY, self._replied)
        self.router.subscribe(SWITCH, self.in_mode)

    @property
    def sandbox(self) -> Pool:
        """Where this client has SQL parsed, and the answers of several owners put together."""
        if self._sandbox is None:
            self._sandbox = Pool(Limits(children=1))
        return self._sandbox

    async def close(self) -> None:
        if self._sandbox is not None:
            await self._sandbox.close()

    def _closed(self, execution_ids: list[str]) -> None:
        for key in execution_ids:
            self.router.wake(CLOSED, key)

    def _replied(self, keys: list[str]) -> None:
        for key in keys:
            self.router.wake(REPLY, key)

    def in_mode(self, mode: str) -> None:
        """How the hub takes decisions now; where it is claimed, wakes also make runs claimable."""
        self.mode, self.notifier.poking = mode, mode == "sticky"

    async def forward_strays(self, execution_ids: Sequence[UUID]) -> None:
        await forward_strays(self, execution_ids)

    async def learn_mode(self) -> None:
        """Asks the hub: at the start, and after wakes may have been lost."""
        mode, self.shard = await settings.mode_and_shard(self.db)
        self.in_mode(mode)

    def check_home(self, workflow_id: str) -> None:
        """A hub that is one of several takes only the runs that live on it."""
        if self.shard is None:
            return
        here, shards = self.shard
        home = shard_of(workflow_id, shards)
        if home != here:
            raise ConfigError(
                "id",
                f"{workflow_id!r} lives on shard {home} of {shards}, and this hub is shard {here}",
                hint="connect(shards=[…]) or HARVEST_SHARDS, with all hubs in their order",
            )

    def owner_of(self, workflow_id: str) -> LocalOwner | None:
        """The owner of this workflow id in this process. A partition has one owner per pool."""
        for owner in self.owners:
            if owner.owns(workflow_id) and owner.holds(workflow_id) is not None:
                return owner
        return None

    def owner_in(self, pool: str, workflow_id: str) -> LocalOwner | None:
        for owner in self.owners:
            if owner.pool == pool and owner.owns(workflow_id):
                return owner
        return None

    def holds_open(self, execution_id: UUID) -> bool:
        """True when an owner in this process has the run in memory, so that its end cannot be missed here."""
        return any(owner.holds_open(execution_id) for owner in self.owners)

    def wake(self, pool: str, execution_id: UUID, partition: int, workflow_id: str) -> None:
        """Tells the owner of a run that there is something for it."""
        owner = self.owner_in(pool, workflow_id)
        if owner is not None:
            owner.wake(execution_id, partition)
        else:
            self.notifier.decide(pool, execution_id, partition)

    async def check_type(self, pool: str, workflow: str, *, entity: bool = False) -> None:
        """Raises `UnknownWorkflowError` when workers serve the queue and none of them knows the type, or not as an entity.

        With no worker alive the start is accepted: one that knows it may come.
        """
        key = (pool, workflow, entity)
        if key in self._known_types:
            return
        local = [owner for owner in self.owners if owner.pool == pool and owner.knows(workflow)]
        if not any(owner.keeps(workflow) is entity for owner in local):
            live = await workers.live(self.db, pool)
            known = [json.loads(row["definitions"]) for row in live]
            kept = {name for names in known for name in names.get("entities", ())}
            names = kept if entity else {name for each in known for name in each.get("workflows", ())} - kept
            if live and workflow not in names:
                kind = "entity" if entity else "workflow"
                raise UnknownWorkflowError(
                    workflow,
                    f"the {plural(len(live), 'worker')} of queue {pool!r}",
                    sorted(names),
                    kind=kind,
                )
            if not live:
                return
        self._known_types.add(key)

    # --- coalesced calls --------------------------------------------------------------------------

    async def _start_all(self, runs: Sequence[NewRun]) -> Sequence[bool]:
        created = await executions.start(self.db, runs)
        return [run.execution_id in created for run in runs]

    async def _send_all(self, mail: Sequence[Mail]) -> Sequence[Row | Exception | None]:
        try:
            found = await messages.send(self.db, mail, once=True)
        except Exception as exc:
            trouble = trouble_of(exc)
            if not trouble.passes:
                raise explained(exc, self.db.dsn) from exc
            if trouble is not Trouble.CONFLICT:
                return await self._send_again(mail, exc)
            found = await messages.send(self.db, mail)  # rolled back for certain
        return [found.get(item.message_id) for item in mail]

    async def _send_again(self, mail: Sequence[Mail], broken: Exception) -> Sequence[Row | Exception | None]:
        """The connection broke: keyed mail is sent again, which is harmless. A message without a key may have been
        stored, read and deleted already, so it is only looked for."""
        keyed = [item for item in mail if item.key is not None]
        unkeyed = [item.message_id for item in mail if item.key is None]
        found: dict[UUID, Row] = dict(await messages.send(self.db, keyed)) if keyed else {}
        if unkeyed:
            found.update(await messages.stored(self.db, unkeyed))
        unsure = HubUnreachable(
            f"the connection broke while a message was sent, and it may or may not have arrived: {broken}",
            hint="send it with an idempotency_key (signal) or update_id to make sending again safe",
        )
        return [found.get(item.message_id) or (unsure if item.key is None else None) for item in mail]

    async def _latest_of(self, workflow_ids: Sequence[str]) -> Sequence[Row | None]:
        found = await executions.latest(self.db, workflow_ids)
        return [found.get(workflow_id) for workflow_id in workflow_ids]

    async def _outcomes_of(self, execution_ids: Sequence[UUID]) -> Sequence[Row | None]:
        found = await executions.outcomes(self.db, execution_ids)
        return [found.get(execution_id) for execution_id in execution_ids]

    async def _replies_of(self, message_ids: Sequence[UUID]) -> Sequence[str | None]:
        found = await messages.replies(self.db, message_ids)
        return [found.get(message_id) for message_id in message_ids]


def as_json(where: str, value: Any) -> str:
    """JSON of a plain value; `PayloadError` names where it does not go."""
    try:
        raw = msgspec.json.encode(value)
    except (TypeError, ValueError) as exc:
        raise PayloadError(where, f"cannot be written as JSON: {exc}") from None
    check_finite(where, value, raw)
    return raw.decode()
