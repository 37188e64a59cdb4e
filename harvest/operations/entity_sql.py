"""Questions in SQL: of one entity to its owner, of a whole type to every owner, whose answers are put together.

A query over a type is split into a part for each owner and a final one (`harvest.entity_sql`). An owner that does not
answer is named; the others' rows are there all the same.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
import zstandard

from harvest.backoff import Backoff
from harvest.entity_sql import Plan, Result, SqlBusy, SqlClosed, SqlError, SqlOverrun, SqlRefused, check, plain
from harvest.errors import (
    DefinitionError,
    EntityNotFound,
    EntitySqlOff,
    HarvestError,
    NoAnswer,
    QueryTimeout,
    UnknownWorkflowError,
)
from harvest.hub import answers, entities, workers
from harvest.ids import entity_id, new_id, partition_of
from harvest.operations.entities import Address
from harvest.operations.query import Pieces, send_pieces
from harvest.operations.site import LocalSql, Site
from harvest.wakes.topics import ANSWER, ASK, dump

ONE, PART = "@sql", "@sql-part"
ONE_WORKER = 7.0
"""Seconds after which a question about one entity is put to whoever owns it then: longer than any query may run."""
LOOK_AFTER = Backoff(0.3, cap=1.0)
"""Between looks whether a worker that owes an answer is still alive."""
RESTARTS = 5
_ERRORS: dict[str, type[SqlError]] = {kind.__name__: kind for kind in (SqlBusy, SqlClosed, SqlError, SqlOverrun, SqlRefused)}
_OURS: dict[str, type[HarvestError]] = {k.__name__: k for k in (DefinitionError, EntityNotFound, EntitySqlOff)}


Place = tuple[str, int]
"""A partition of a pool."""


@dataclass(slots=True)
class Rows:
    """Columns, and rows in their order."""

    columns: list[str]
    rows: list[tuple[Any, ...]]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def dicts(self) -> list[dict[str, Any]]:
        return Result(self.columns, [list(row) for row in self.rows]).dicts()

    def plain(self) -> list[list[Any]]:
        """Rows as JSON has them (infinities as texts, bytes as base64)."""
        return [[plain(value) for value in row] for row in self.rows]


@dataclass(slots=True)
class EntityRows(Rows):
    """Rows of a query over one entity. `source` says where its state was read: resident, disk or history; the state is
    that of `event_id`."""

    source: str
    event_id: int
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Token:
    """What a read can wait for: this entity (in this life) as far as this event."""

    type: str
    key: str
    execution_id: UUID
    event_id: int


@dataclass(frozen=True, slots=True)
class Fresh:
    """How far the answer of one partition goes: `event_id` is the highest among its `entities`."""

    pool: str
    partition: int
    epoch: int
    event_id: int
    entities: int
    worker_id: UUID
    shard: int | None = None


@dataclass(frozen=True, slots=True)
class Unanswered:
    """Partitions of a pool (or, with none, a whole shard) whose entities are missing from an answer, and why."""

    pool: str
    partitions: tuple[int, ...]
    reason: str
    shard: int | None = None


@dataclass(slots=True)
class FleetRows(Rows):
    """Rows of a query over a type. `complete` when every partition that has such entities has answered."""

    freshness: list[Fresh] = field(default_factory=list, repr=False)
    unanswered: list[Unanswered] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return not self.unanswered


@dataclass(slots=True)
class Parts:
    """What the owners of one hub gave for the partial query."""

    rows: list[list[Any]] = field(default_factory=list)
    freshness: list[Fresh] = field(default_factory=list)
    unanswered: list[Unanswered] = field(default_factory=list)

    def add(self, owner: UUID, found: dict[str, Any], answered: set[Place], reasons: Reasons) -> bool:
        """False where this answer and an earlier one are about the same partition."""
        fresh = [Fresh(*each, worker_id=owner) for each in found["partitions"]]  # type: ignore[misc]
        places = {(each.pool, each.partition) for each in fresh}
        if places & answered:
            return False
        self.rows += found["rows"]
        self.freshness += fresh
        answered |= places
        reasons.of_places.update({(pool, partition): why for pool, partition, why in found["problems"]})
        return True


@dataclass(slots=True)
class Reasons:
    """Why something is missing."""

    of_workers: dict[UUID, str] = field(default_factory=dict)
    of_places: dict[Place, str] = field(default_factory=dict)


# --- one entity


async def query_one(site: Site, to: Address, sql: str, params: Any, patience: float) -> EntityRows:
    """Raises `EntityNotFound`, `EntitySqlOff`, `QueryTimeout`, and `SqlError` and its kin."""
    check(sql, params, site.sandbox.limits)
    here = [local for local in site.sql if local.knows(to.type)]
    if here:
        owner = site.owner_in(to.pool, to.workflow_id)
        local = next((each for each in here if owner is not None and each.worker_id == owner.worker_id), here[0])
        found = await local.one(to.type, to.key, sql, params)
    else:
        found = await _at_the_owner(site, to, sql, params, patience)
    rows = [tuple(row) for row in found["rows"]]
    return EntityRows(found["columns"], rows, found["source"], found["event_id"], datetime.fromisoformat(found["updated_at"]))


async def _at_the_owner(site: Site, to: Address, sql: str, params: Any, patience: float) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience
    while True:
        latest = await site.latest.submit(to.workflow_id)
        if latest is None or not latest["open"]:
            raise EntityNotFound(f"there is no {to.type} with the key {to.key!r}")
        whom = await entities.responder(site.db, latest["pool"], partition_of(to.workflow_id), to.type)
        left = max(0.1, deadline - loop.time())
        if whom is not None:
            request = {"type": to.type, "key": to.key, "sql": sql, "params": params}
            try:
                answer: dict[str, Any] = await ask(site, whom, ONE, request, min(left, ONE_WORKER))
                return answer
            except (SqlClosed, NoAnswer, EntitySqlOff):  # it is going, or gone: another one will have the entity
                if loop.time() > deadline - 0.1:
                    raise
        if loop.time() > deadline:
            raise QueryTimeout(
                f"no worker with owner_entity_sql answers for {to.type} {to.key!r}",
                hint="start one: WorkerConfig(owner_disk_cache=…, owner_entity_sql=True)",
            )
        await asyncio.sleep(0.05)


# --- all of a type


async def query_all(site: Site, type: str, sql: str, params: Any, tokens: Sequence[Token], patience: float) -> FleetRows:
    """Raises `SqlError` and its kin for the query; who does not answer is in `unanswered`."""
    check(sql, params, site.sandbox.limits)
    plan = await site.sandbox.split(sql)
    await check_known(site, type)
    parts = await gather(site, type, plan, params, tokens, patience)
    return await finish(site, plan, params, [parts])


async def check_known(site: Site, type: str) -> None:
    """Raises `UnknownWorkflowError` for a type that no living worker keeps and no entity has."""
    if any(local.knows(type) for local in site.sql) or await entities.pools(site.db, type):
        return
    live = [json.loads(row["definitions"]).get("entities", ()) for row in await workers.live(site.db)]
    if not any(type in names for names in live):
        raise UnknownWorkflowError(type, "any living worker", sorted({n for names in live for n in names}), kind="entity")


async def finish(site: Site, plan: Plan, params: Any, hubs: Sequence[Parts]) -> FleetRows:
    rows = [row for parts in hubs for row in parts.rows]
    columns = plan.columns
    if not plan.rows_alone:
        merged = await site.sandbox.merge(plan, rows, params)
        rows = merged.rows
    freshness = [each for parts in hubs for each in parts.freshness]
    unanswered = [each for parts in hubs for each in parts.unanswered]
    return FleetRows(columns, [tuple(row) for row in rows], freshness, unanswered)


async def gather(site: Site, type: str, plan: Plan, params: Any, tokens: Sequence[Token], patience: float) -> Parts:
    """Asks each owner once, and again for partitions that moved meanwhile."""
    loop = asyncio.get_running_loop()
    deadline, restarts = loop.time() + patience, 0
    parts, reasons, answered = Parts(), Reasons(), set[Place]()
    wanted = {(row["pool"], p) for row in await entities.pools(site.db, type) for p in row["partitions"]}
    wanted |= {(pool, partition_of(entity_id(t.type, t.key))) for t in tokens for pool, _ in wanted}
    owners: dict[Place, UUID] = {}
    while left := wanted - answered - reasons.of_places.keys():
        owners = await entities.owners(site.db, sorted({pool for pool, _ in left}), type)
        whom = {w for w in (owners.get(place) for place in left) if w is not None and w not in reasons.of_workers}
        work = [_one_part(site, owner, type, plan, params, tokens, max(0.1, deadline - loop.time())) for owner in whom]
        for owner, found in zip(whom, await asyncio.gather(*work), strict=True):
            if isinstance(found, SqlError):
                raise found
            if isinstance(found, Exception):
                reasons.of_workers[owner] = str(found)
            elif not parts.add(owner, found, answered, reasons):
                restarts += 1  # it has taken over what another one has answered for: from the beginning, to count nothing twice
                parts, answered = Parts(), set()
                reasons.of_places.clear()
                break
        left = wanted - answered - reasons.of_places.keys()
        if restarts > RESTARTS or loop.time() > deadline - 0.1:
            break
        if left and not await _may_come(site, left, owners, reasons.of_workers):
            break
        await asyncio.sleep(0.05 if left else 0)
    parts.unanswered = _missing(wanted - answered, owners, reasons)
    return parts


async def _may_come(
    site: Site, left: set[tuple[str, int]], owners: dict[tuple[str, int], UUID], errors: dict[UUID, str]
) -> bool:
    """False when nobody is left who could answer: owners have refused, or no worker serves the pool at all."""
    open_pools = {place[0] for place in left if owners.get(place) not in errors}
    return bool(open_pools & await entities.served(site.db))


def _missing(places: set[Place], owners: dict[Place, UUID], reasons: Reasons) -> list[Unanswered]:
    by_reason: dict[tuple[str, str], list[int]] = {}
    for pool, partition in sorted(places):
        owner = owners.get((pool, partition))
        if owner is None:
            reason = "no owner with owner_entity_sql"
        else:
            reason = reasons.of_workers.get(owner, f"worker {owner} did not answer in time")
        reason = reasons.of_places.get((pool, partition), reason)
        by_reason.setdefault((pool, reason), []).append(partition)
    return [Unanswered(pool, tuple(partitions), reason) for (pool, reason), partitions in by_reason.items()]


async def _one_part(
    site: Site, owner: UUID, type: str, plan: Plan, params: Any, tokens: Sequence[Token], patience: float
) -> dict[str, Any] | Exception:
    wait_for = [[entity_id(t.type, t.key), t.key, str(t.execution_id), t.event_id] for t in tokens if t.type == type]
    try:
        local = next((each for each in site.sql if each.worker_id == owner), None)
        if local is not None:
            async with asyncio.timeout(patience):
                return await local.part(type, plan.partial, params, wait_for, patience)
        request = {"type": type, "sql": plan.partial, "params": params, "tokens": wait_for, "patience": 0.7 * patience}
        answer: dict[str, Any] = await ask(site, owner, PART, request, patience)
        return answer
    except (SqlError, HarvestError, TimeoutError) as exc:
        if isinstance(exc, SqlBusy) or (isinstance(exc, SqlOverrun) and exc.limit == "table_bytes"):
            return EntitySqlOff(exc.message)  # not the query's doing: others may answer for these partitions
        return TimeoutError(f"worker {owner} did not answer in time") if isinstance(exc, TimeoutError) else exc


# --- through the hub


def pack(value: Any) -> str:
    """Any values of SQL as a text that can travel in a NOTIFY."""
    return base64.b85encode(zstandard.ZstdCompressor(level=1).compress(msgspec.msgpack.encode(value))).decode()


def unpack(text: str) -> Any:
    return msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(base64.b85decode(text), max_output_size=1 << 30))


async def ask(site: Site, whom: UUID, name: str, request: dict[str, Any], patience: float) -> Any:
    """Puts a question to one worker. Raises what it raised, `NoAnswer` after `patience` seconds or once it is gone."""
    question = str(new_id())
    waiter = site.router.waiter(ANSWER, question)
    leave = site.router.subscribe(ANSWER, Pieces(lambda key, value: site.router.wake(ANSWER, key, value)).add)
    try:
        await send_pieces(site.db, ASK, question, dump(["", question, "", name, pack(request), str(whom)]))
        await _answered(site, whom, waiter, patience)
        kind, value = json.loads(waiter.result())
        if kind == "stored":
            value = await answers.take(site.db, UUID(question))
        answer = unpack(value)
    finally:
        leave()
        site.router.forget(ANSWER, question, waiter)
    if "error" in answer:
        raise _error(answer["error"])
    return answer


async def _answered(site: Site, whom: UUID, waiter: asyncio.Future[Any], patience: float) -> None:
    """Looks now and then whether the worker is still there: one that stops leaves questions behind."""
    loop = asyncio.get_running_loop()
    deadline, looks = loop.time() + patience, 0
    while True:
        await asyncio.wait({waiter}, timeout=min(LOOK_AFTER.delay(looks := looks + 1), max(0.0, deadline - loop.time())))
        if waiter.done():
            return
        if loop.time() >= deadline:
            raise NoAnswer(f"worker {whom} did not answer within {patience:g} s")
        if not await workers.is_live(site.db, whom) and not waiter.done():
            raise NoAnswer(f"worker {whom} is gone")


def _error(told: dict[str, Any]) -> Exception:
    kind = _ERRORS.get(told["type"])
    if kind is not None:
        place = {"line": told.get("line"), "column": told.get("column")}
        return (
            SqlOverrun(told["message"], limit=told.get("limit", ""), **place)
            if kind is SqlOverrun
            else kind(told["message"], **place)
        )
    return _OURS.get(told["type"], HarvestError)(told["message"])


SENT_AT_ONCE = 200_000
"""Characters of an answer that travel as NOTIFYs; a longer one is stored for the one who asked."""


async def reply(site: Site, local: LocalSql | None, question: str, name: str, input: str) -> None:
    """The worker's side of `ask`."""
    request = unpack(input)
    try:
        if local is None:
            raise EntitySqlOff("this worker does not answer SQL over entities: owner_entity_sql is off")
        if name == ONE:
            answer = await local.one(request["type"], request["key"], request["sql"], request["params"])
        else:
            tokens, patience = request["tokens"], request["patience"]
            answer = await local.part(request["type"], request["sql"], request["params"], tokens, patience)
    except SqlError as exc:
        answer = {
            "error": {
                "type": type(exc).__name__,
                "message": exc.message,
                "line": exc.line,
                "column": exc.column,
                "limit": getattr(exc, "limit", ""),
            }
        }
    except HarvestError as exc:
        answer = {"error": {"type": type(exc).__name__, "message": exc.message}}
    text = pack(answer)
    if len(text) <= SENT_AT_ONCE:
        await send_pieces(site.db, ANSWER, question, dump(["result", text]))
    else:
        await answers.put(site.db, UUID(question), text)
        await send_pieces(site.db, ANSWER, question, dump(["stored", ""]))
