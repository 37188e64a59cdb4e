"""A handle on an entity: call its operations, ask its queries, read its state."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Concatenate, TypeVar, overload
from uuid import UUID

import msgspec

from harvest.client.calls import handler_call
from harvest.core.entity import DELETE, STATE
from harvest.decisions.answers import Answer
from harvest.definitions.entity import operation_error
from harvest.definitions.options import Span, seconds
from harvest.entity import entity_type, operation_call
from harvest.entity_sql import Limits
from harvest.entity_sql.pool import Params, check
from harvest.errors import EntityNotFound, OperationRejected, PayloadError, WorkflowNotFound
from harvest.failure import error_of
from harvest.hub import entities as stored
from harvest.ids import check_name, check_queue, entity_id
from harvest.operations import entities, entity_sql, query
from harvest.operations.entities import Address
from harvest.operations.entity_sql import EntityRows, Token
from harvest.operations.site import Site
from harvest.payload.plain import check_finite
from harvest.telemetry.traces import calling

R = TypeVar("R")
KEY_CAP = 900
_EMPTY = msgspec.Raw(b"[]")


@dataclass(frozen=True, slots=True)
class EntitySummary:
    """One line of a listing: the entity as it was when its state was recorded last. Sizes in bytes of JSON."""

    type: str
    key: str
    execution_id: UUID
    queue: str
    partition: int
    event_id: int
    version: int
    bytes: int
    created_at: datetime
    updated_at: datetime


class EntityHandle:
    """Addresses the entity (type, key), which comes about with its first operation on a worker of `queue`."""

    def __init__(self, site: Site, target: Any, key: str, queue: str) -> None:
        self._site = site
        self.type, self.definition = entity_type(target)
        self.key = key
        self.address = Address(self.type, key, entity_id(self.type, key), check_queue("queue", queue))

    def __repr__(self) -> str:
        return f"<EntityHandle {self.type} {self.key}>"

    @property
    def id(self) -> str:
        """The workflow id of its run, for `client.handle` and `harvest run`."""
        return self.address.workflow_id

    @overload
    async def call(
        self,
        operation: Callable[Concatenate[Any, ...], Coroutine[Any, Any, R]],
        *args: Any,
        idempotency_key: str | None = None,
        timeout: Span = 60.0,
    ) -> R: ...
    @overload
    async def call(
        self,
        operation: Callable[Concatenate[Any, ...], R],
        *args: Any,
        idempotency_key: str | None = None,
        timeout: Span = 60.0,
    ) -> R: ...
    @overload
    async def call(self, operation: str, *args: Any, idempotency_key: str | None = None, timeout: Span = 60.0) -> Any: ...
    async def call(self, operation: Any, *args: Any, idempotency_key: str | None = None, timeout: Span = 60.0) -> Any:
        """What the operation returned; it is durable by then.

        The same `idempotency_key` acts once and answers each time. Raises what the operation raised (`OperationFailed`, or an
        error it declares); before anything is stored `PayloadError` for arguments that do not fit (`OperationRejected` where
        only the worker knows); `NoAnswer` after `timeout`.
        """
        name, raw, handler = operation_call(operation, args, self.definition)
        if handler is None:
            check_finite(f"operation {name!r}", args, bytes(raw))
        if idempotency_key is not None:
            check_name("idempotency_key", idempotency_key, KEY_CAP)
            if idempotency_key.startswith(entities.ANONYMOUS):
                raise PayloadError("idempotency_key", f"must not begin with {entities.ANONYMOUS!r}, got {idempotency_key!r}")
        answer = await self._call(name, raw, idempotency_key, timeout, () if handler is None else handler.raises)
        return msgspec.json.decode(answer) if handler is None else handler.signature.decode_result(answer)

    async def _call(self, name: str, raw: msgspec.Raw, key: str | None, timeout: Span, raises: Any) -> msgspec.Raw:
        site = self._site
        site.check_home(self.id)
        await site.check_type(self.address.pool, self.type, entity=True)
        try:
            with calling("call", f"{self.type}.{name}", workflow_id=self.id):
                return await entities.call(site, self.address, name, raw, key, seconds("timeout", timeout) or 60.0)
        except Answer as bad:
            if bad.rejected:
                raise OperationRejected(name, bad.failure.message, type=bad.failure.type) from error_of(bad.failure)
            raise operation_error(name, bad.failure, raises) from error_of(bad.failure)

    async def delete(self, *, timeout: Span = 60.0) -> None:
        """Ends it, after the operations that were called before. The next call to its key begins a new one.

        Raises `EntityNotFound` where there is none.
        """
        if await entities.exists(self._site, self.address) is None:
            raise EntityNotFound(f"there is no {self.type} with the key {self.key!r}")
        await self._call(DELETE, _EMPTY, None, timeout, ())

    @overload
    async def query(self, query_: Callable[Concatenate[Any, ...], R], *args: Any, timeout: Span = 10.0) -> R: ...
    @overload
    async def query(self, query_: str, *args: Any, timeout: Span = 10.0) -> Any: ...
    async def query(self, query_: Any, *args: Any, timeout: Span = 10.0) -> Any:
        """Asks for what is durable now. Raises `EntityNotFound`, `QueryFailed`, `QueryTimeout`."""
        name, raw, handler = handler_call("query", query_, args, self.definition)
        answer = await self._ask(name, raw, timeout)
        return msgspec.json.decode(answer) if handler is None else handler.signature.decode_result(answer)

    async def state(self, *, timeout: Span = 10.0) -> Any:
        """Its state: the model where the class is known, else plain data. Raises `EntityNotFound`."""
        answer = await self._ask(STATE, _EMPTY, timeout)
        return msgspec.json.decode(answer) if self.definition is None else self.definition.load_state(bytes(answer))

    async def _ask(self, name: str, raw: msgspec.Raw, timeout: Span) -> msgspec.Raw:
        found = await entities.exists(self._site, self.address)
        if found is None:
            raise EntityNotFound(f"there is no {self.type} with the key {self.key!r}")
        try:
            return await query.query(self._site, self.id, found, name, raw, seconds("timeout", timeout) or 10.0)
        except WorkflowNotFound:
            raise EntityNotFound(f"the {self.type} with the key {self.key!r} was just deleted") from None

    async def sql(self, sql: str, params: Params = (), *, timeout: Span = 10.0) -> EntityRows:
        """One SELECT over its last committed state: the table is `entity (type, key, state, event_id, updated_at)`.

        A worker with `owner_entity_sql` answers. Raises `EntityNotFound`, `SqlRefused`, `SqlOverrun`, `SqlBusy`, `SqlError`
        (with `line` and `column`), `QueryTimeout`.
        """
        check(sql, params, Limits())
        return await entity_sql.query_one(self._site, self.address, sql, params, seconds("timeout", timeout) or 10.0)

    async def token(self) -> Token:
        """A commit token: a read that gets it in `after` sees all that was acknowledged until now. Raises `EntityNotFound`."""
        found = await stored.token(self._site.db, self.id)
        if found is None:
            raise EntityNotFound(f"there is no {self.type} with the key {self.key!r}")
        return Token(self.type, self.key, found["execution_id"], found["event_id"])

    async def describe(self) -> EntitySummary:
        """Raises `EntityNotFound`."""
        row = await stored.find(self._site.db, self.type, self.key)
        if row is None:
            raise EntityNotFound(f"there is no {self.type} with the key {self.key!r}")
        return summary_of(row)


def summary_of(row: Any) -> EntitySummary:
    return EntitySummary(**{name: row[name] for name in EntitySummary.__slots__})
