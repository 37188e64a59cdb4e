"""Several hubs as shards: a workflow id always lands on the same one."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import UUID

from harvest.client.client import Client
from harvest.client.entity import EntityHandle, EntitySummary
from harvest.client.handle import RunSummary, WorkflowHandle
from harvest.client.letters import DeadLetters
from harvest.definitions.options import Span, seconds
from harvest.entity import entity_type
from harvest.entity_sql import check
from harvest.entity_sql.pool import Params
from harvest.errors import ConfigError, HubError, HubUnreachable
from harvest.hub import settings
from harvest.hub.database import redacted
from harvest.ids import entity_id, new_id, shard_of
from harvest.operations import entity_sql
from harvest.operations.bulk import BulkReport
from harvest.operations.entity_sql import FleetRows, Token, Unanswered

log = logging.getLogger("harvest.client")
T = TypeVar("T")
OPEN_AGAIN = 1.0
"""Seconds between tries to open a shard that is down."""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A shard that could not answer: its number, its address without the password, and why."""

    shard: int
    hub: str
    error: str


class Listing(AsyncIterator[RunSummary]):
    """Runs of all shards, newest first. `unavailable` names the shards whose runs are missing; it is complete once the
    listing is."""

    def __init__(
        self,
        sources: list[tuple[int, AsyncIterator[RunSummary]]],
        unavailable: list[Unavailable],
        name: Any,
        limit: int | None,
    ) -> None:
        self.unavailable = unavailable
        self._sources, self._name, self._left = dict(sources), name, limit
        self._heads: dict[int, RunSummary] = {}

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RunSummary:
        if self._left is not None:
            if self._left <= 0:
                raise StopAsyncIteration
            self._left -= 1
        missing = [n for n in self._sources if n not in self._heads]
        await asyncio.gather(*(self._pull(n) for n in missing))
        if not self._heads:
            raise StopAsyncIteration
        newest = max(self._heads, key=lambda n: (self._heads[n].created_at, self._heads[n].execution_id))
        return self._heads.pop(newest)

    async def _pull(self, shard: int) -> None:
        try:
            self._heads[shard] = await anext(self._sources[shard])
        except StopAsyncIteration:
            del self._sources[shard]
        except HubError as exc:
            del self._sources[shard]
            self.unavailable.append(self._name(shard, exc))


async def _all(rows: AsyncIterator[T]) -> Sequence[T]:
    return [row async for row in rows]


class Counts(dict[str, int]):
    """Runs by state over the shards that answered; `unavailable` names the others."""

    unavailable: Sequence[Unavailable]


class Workers(list[dict[str, Any]]):
    """Living workers of the shards that answered, each with its `shard`; `unavailable` names the others."""

    unavailable: Sequence[Unavailable]


class ShardedClient:
    """`connect(shards=[…])`. The order and the number of the hubs are part of where a run lives: they must not change.

    A call about one run goes to its shard and raises `HubUnreachable` when that is down. Calls over all runs answer from the
    shards that are up, and name the others in `unavailable`.
    """

    def __init__(self, clients: Sequence[Client]) -> None:
        if not clients:
            raise ConfigError("shards", "no hub given", hint="connect(shards=['postgresql://…', …])")
        self.clients = list(clients)
        self._open: set[int] = set()
        self._why: dict[int, Exception] = {}
        self._set: UUID | None = None
        self._opener: asyncio.Task[None] | None = None

    # --- life

    async def __aenter__(self) -> Self:
        results = await asyncio.gather(*(self._try(n) for n in range(len(self.clients))), return_exceptions=True)
        try:
            for result in results:
                if isinstance(result, BaseException) and not isinstance(result, HubUnreachable):
                    raise result
            if not self._open:
                reasons = "; ".join(f"{u.shard}: {u.error}" for u in self._down())
                raise HubUnreachable(
                    f"none of the {len(self.clients)} shards answers: {reasons}", hint="is HARVEST_SHARDS right?"
                )
            await self._agree()
        except BaseException:
            await self._close()
            raise
        for n, exc in self._why.items():
            log.info("shard %d is down: %s", n, exc)
        self._opener = asyncio.create_task(self._keep_opening())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if self._opener is not None:
            self._opener.cancel()
        await self._close()

    async def _close(self) -> None:
        await asyncio.gather(*(self.clients[n].__aexit__(None, None, None) for n in self._open))
        self._open.clear()

    async def _try(self, n: int) -> None:
        client = self.clients[n]
        try:
            await client.__aenter__()
        except HubUnreachable as exc:
            self._why[n] = exc
            client.db.closed_because = f"shard {n} of {len(self.clients)} is down: {exc.message}"
            raise
        if self._set is not None:
            try:
                self._check(n, await settings.shard(client.db))
            except BaseException:
                await client.__aexit__(None, None, None)
                raise
        client.db.closed_because = None
        self._open.add(n)
        self._why.pop(n, None)

    async def _agree(self) -> None:
        """Each hub knows which shard it is, of which set. The first time all have to be there, and are told."""
        marks = {n: await settings.shard(self.clients[n].db) for n in self.up}
        told = [mark.shard_set for mark in marks.values() if mark.shard_set is not None]
        if told:
            self._set = told[0]
            for n, mark in marks.items():
                self._check(n, mark)
            return
        if len(marks) < len(self.clients):
            missing = "; ".join(f"{u.shard}: {u.error}" for u in self._down())
            raise HubUnreachable(f"the first time all shards have to be up, and some are down: {missing}")
        self._set = new_id()
        for n in marks:
            if not await settings.take_shard(self.clients[n].db, n, len(self.clients), self._set):
                self._check(n, await settings.shard(self.clients[n].db))  # somebody else was quicker
        for n in marks:
            await self.clients[n].site.learn_mode()

    def _check(self, n: int, mark: settings.Mark) -> None:
        """A list in another order, or with another hub in it, would look for runs where they are not."""
        expected = settings.Mark(n, len(self.clients), self._set)
        if mark == expected:
            return
        hub = redacted(self.clients[n].db.dsn)
        if mark.shard_set is None:
            what = f"the hub at {hub} was never a shard, and the others are shards of a set already"
        elif mark.shard_set != self._set:
            what = f"the hub at {hub} is a shard of another set of hubs"
        else:
            what = f"the hub at {hub} is shard {mark.shard} of {mark.shards}, not {n} of {len(self.clients)}"
        raise ConfigError("shards", what, hint="give all hubs of the set, in the order that they were first given in")

    async def _keep_opening(self) -> None:
        while True:
            await asyncio.sleep(OPEN_AGAIN)
            for n in list(self._why):
                try:
                    await self._try(n)
                    log.info("shard %d is up", n)
                except Exception as exc:
                    log.debug("shard %d is still down: %s", n, exc)

    @property
    def up(self) -> list[int]:
        """The shards that are open now."""
        return sorted(self._open)

    @property
    def unavailable(self) -> Sequence[Unavailable]:
        """The shards that are down now."""
        return self._down()

    def _name(self, n: int, exc: Exception) -> Unavailable:
        message = getattr(exc, "message", None) or str(exc)
        return Unavailable(n, redacted(self.clients[n].db.dsn), message)

    # --- one run

    def shard(self, workflow_id: str) -> int:
        return shard_of(workflow_id, len(self.clients))

    def client(self, workflow_id: str) -> Client:
        """The client of the shard of this id. Raises `HubUnreachable` while it is down."""
        n = self.shard(workflow_id)
        if n not in self._open:
            raise HubUnreachable(f"shard {n} of {len(self.clients)}, where {workflow_id!r} lives, is down: {self._why.get(n)}")
        return self.clients[n]

    async def start(self, workflow: Any, *args: Any, id: str, **options: Any) -> WorkflowHandle[Any]:
        """As `Client.start`, on the shard of the id."""
        return await self.client(id).start(workflow, *args, id=id, **options)

    async def execute(self, workflow: Any, *args: Any, id: str, **options: Any) -> Any:
        return await self.client(id).execute(workflow, *args, id=id, **options)

    async def signal_with_start(self, workflow: Any, *args: Any, id: str, **options: Any) -> WorkflowHandle[Any]:
        return await self.client(id).signal_with_start(workflow, *args, id=id, **options)

    async def update_with_start(self, workflow: Any, *args: Any, id: str, **options: Any) -> Any:
        return await self.client(id).update_with_start(workflow, *args, id=id, **options)

    def handle(self, workflow_id: str, workflow: Any = None, *, execution_id: UUID | None = None) -> WorkflowHandle[Any]:
        """A handle on a run by its id; its calls raise `HubUnreachable` while its shard is down."""
        return self.clients[self.shard(workflow_id)].handle(workflow_id, workflow, execution_id=execution_id)

    def entity(self, type: Any, key: str, *, queue: str = "default") -> EntityHandle:
        """As `Client.entity`, on the shard of its id."""
        name, _ = entity_type(type)
        return self.clients[self.shard(entity_id(name, key))].entity(type, key, queue=queue)

    # --- all entities

    async def entities(self, type: Any, *, prefix: str = "", limit: int | None = None) -> AsyncIterator[EntitySummary]:
        """As `Client.entities`, over the shards that are up, by key."""
        found, _ = await self._each(lambda client: _all(client.entities(type, prefix=prefix, limit=limit)))
        merged = sorted((each for rows in found.values() for each in rows), key=lambda each: each.key)
        for each in merged[:limit]:
            yield each

    async def entity_types(self) -> dict[str, int]:
        """How many live entities there are of each type, on the shards that are up."""
        found, _ = await self._each(lambda client: client.entity_types())
        total: Counter[str] = Counter()
        for types in found.values():
            total.update(types)
        return dict(total)

    async def query_entities_sql(
        self, type: Any, sql: str, params: Params = (), *, after: Sequence[Token] = (), timeout: Span = 10.0
    ) -> FleetRows:
        """As `Client.query_entities_sql`, over all shards. A shard that is down is in `unanswered`."""
        name, _ = entity_type(type)
        patience = seconds("timeout", timeout) or 10.0
        if not self.up:
            raise HubUnreachable("no shard is up")
        site = self.clients[self.up[0]].site
        check(sql, params, site.sandbox.limits)
        plan = await site.sandbox.split(sql)
        mine = {n: [t for t in after if self.shard(entity_id(t.type, t.key)) == n] for n in range(len(self.clients))}
        numbers = {id(self.clients[n]): n for n in self.up}
        found, down = await self._each(lambda c: entity_sql.gather(c.site, name, plan, params, mine[numbers[id(c)]], patience))
        for n, parts in found.items():
            parts.freshness = [replace(each, shard=n) for each in parts.freshness]
            parts.unanswered = [replace(each, shard=n) for each in parts.unanswered]
        rows = await entity_sql.finish(site, plan, params, list(found.values()))
        rows.unanswered += [Unanswered("", (), f"shard {each.shard} is down: {each.error}", each.shard) for each in down]
        return rows

    # --- all runs

    def list(self, *, limit: int | None = None, **filters: Any) -> Listing:
        """As `Client.list`, over all shards, newest first."""
        sources = [(n, self.clients[n].list(limit=limit, **filters)) for n in self.up]
        return Listing(sources, [*self._down()], self._name, limit)

    def _down(self) -> Sequence[Unavailable]:
        return [self._name(n, exc) for n, exc in sorted(self._why.items())]

    async def _each(self, ask: Callable[[Client], Awaitable[T]]) -> tuple[dict[int, T], Sequence[Unavailable]]:
        numbers, unavailable = self.up, [*self._down()]
        answers = await asyncio.gather(*(ask(self.clients[n]) for n in numbers), return_exceptions=True)
        found: dict[int, T] = {}
        for n, answer in zip(numbers, answers, strict=True):
            if isinstance(answer, HubError):
                unavailable.append(self._name(n, answer))
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found[n] = answer
        return found, unavailable

    @property
    def dead_letters(self) -> DeadLetters:
        """As `Client.dead_letters`, over the shards that are up."""
        if not self.up:
            raise HubUnreachable("no shard is up")
        return DeadLetters([self.clients[n].site for n in self.up])

    async def bulk(self, verb: str, **options: Any) -> BulkReport:
        """As `Client.bulk`, on one shard after the other; a shard that is down raises before anything is done."""
        if self._why:
            raise HubUnreachable(f"{len(self._why)} of {len(self.clients)} shards are down; nothing was done")
        total = BulkReport(verb, options.get("dry_run", True))
        progress, limit = options.pop("progress", None), options.pop("limit", None)
        for client in self.clients:
            left = None if limit is None else limit - total.matched
            if left is not None and left <= 0:
                break
            total.add(await client.bulk(verb, limit=left, **options))
            if progress is not None:
                progress(total)
        return total

    async def counts(self, type: str | None = None) -> Counts:
        """How many runs there are by state."""
        found, unavailable = await self._each(lambda client: client.counts(type))
        total = Counts()
        for counts in found.values():
            for state, count in counts.items():
                total[state] = total.get(state, 0) + count
        total.unavailable = unavailable
        return total

    async def workers(self) -> Workers:
        found, unavailable = await self._each(lambda client: client.workers())
        rows = Workers({**row, "shard": n} for n, each in found.items() for row in each)
        rows.unavailable = unavailable
        return rows
