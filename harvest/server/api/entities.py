"""Entities: list, look, call, and SQL over one or all of them."""

import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from harvest.client import EntityHandle
from harvest.client.plain import plain
from harvest.errors import NoAnswer
from harvest.operations.entity_sql import Token
from harvest.server import models
from harvest.server.api.collection import Cursor, Limit
from harvest.server.desk import PROBLEMS, Desk, cursor_key, cursor_text
from harvest.server.routing import in_path

TYPE = r"^[^\x00/:]+$"
Type = Annotated[str, Path(min_length=1, max_length=200, pattern=TYPE)]
Operation = Annotated[str, Path(min_length=1, max_length=200, pattern=r"^[^\x00/]+$")]
Queue = Annotated[str, Query(min_length=1, max_length=200, pattern=r"^[^@\x00]+$", description="whose workers keep it")]
Prefix = Annotated[str, Query(max_length=500, pattern=r"^[^\x00]*$", description="of the key")]


def routes(desk: Desk, prefix: str) -> APIRouter:
    router = APIRouter(prefix=f"{prefix}/entities", route_class=desk.route, responses=PROBLEMS, tags=["entities"])
    all_of_them(router, desk)
    one(router, desk)
    return router


def all_of_them(router: APIRouter, desk: Desk) -> None:
    read, sql, client = desk.needs("read"), desk.needs("sql"), desk.client

    @router.get("", dependencies=[read], response_model=dict[str, int])
    async def types() -> Any:
        """How many live entities there are of each type."""
        return await desk.shared.get("entity types", client.entity_types)

    @router.get("/{type}", dependencies=[read], response_model=models.EntityPage)
    async def list_entities(type: Type, prefix: Prefix = "", limit: Limit = 100, cursor: Cursor | None = None) -> Any:
        """Live entities of a type, by key."""
        after = cursor_key(cursor)
        page = [each async for each in client.entities(type, prefix=prefix, after=after, limit=limit, page=limit)]
        return {"entities": plain(page), "next": cursor_text(page[-1].key) if len(page) == limit else None}

    @router.post("/{type}/sql", dependencies=[sql], response_model=models.FleetRows)
    async def sql_over_type(type: Type, body: models.FleetSql) -> Any:
        """One SELECT over all live entities of a type. Partitions that did not answer are in `unanswered`."""
        began = time.perf_counter()
        after = [Token(**token.model_dump()) for token in body.after]
        rows = await client.query_entities_sql(type, body.sql, body.params, after=after, timeout=desk.patience(body.timeout))
        return {
            "columns": rows.columns,
            "rows": rows.plain(),
            "complete": rows.complete,
            "freshness": plain(rows.freshness),
            "unanswered": plain(rows.unanswered),
            "milliseconds": (time.perf_counter() - began) * 1e3,
        }


def one(router: APIRouter, desk: Desk) -> None:
    async def address(
        request: Request,
        type: Type,
        key: Annotated[str, Path(min_length=1, pattern=r"^[^\x00]+$", description="slashes as %2F")],
        queue: Queue = "default",
    ) -> EntityHandle:
        return desk.client.entity(type, in_path(request, key, "key", "entities", skip=1), queue=queue)

    One = Annotated[EntityHandle, Depends(address)]
    read, operate, may_sql = desk.needs("read"), desk.needs("operate", mutates=True), desk.needs("sql")

    stored: dict[int | str, dict[str, Any]] = {
        202: {"model": models.Called, "description": "Stored; no worker has answered yet"}
    }

    @router.post("/{type}/{key:path}/call/{operation}", dependencies=[operate], response_model=models.Called, responses=stored)
    async def call(entity: One, operation: Operation, response: Response, body: models.Call | None = None) -> Any:
        """Calls an operation; what it did is durable then. A key acts once and answers each time."""
        body = body or models.Call()
        try:
            result = await entity.call(
                operation, *body.args, idempotency_key=body.idempotency_key, timeout=desk.patience(body.timeout)
            )
        except NoAnswer:
            response.status_code = 202
            return {"state": "stored"}
        desk.changed(entity.id)
        return {"state": "completed", "result": result}

    @router.post("/{type}/{key:path}/query/{name}", dependencies=[read], response_model=models.Answer)
    async def query(entity: One, name: Operation, body: models.Query | None = None) -> Any:
        """Asks for what is durable now."""
        body = body or models.Query()
        return {"result": await entity.query(name, *body.args, timeout=desk.patience(body.timeout))}

    @router.post("/{type}/{key:path}/sql", dependencies=[may_sql], response_model=models.EntityRows)
    async def sql(entity: One, body: models.Sql) -> Any:
        """One SELECT over its last committed state."""
        began = time.perf_counter()
        rows = await entity.sql(body.sql, body.params, timeout=desk.patience(body.timeout))
        return {
            "columns": rows.columns,
            "rows": rows.plain(),
            "source": rows.source,
            "event_id": rows.event_id,
            "updated_at": rows.updated_at,
            "milliseconds": (time.perf_counter() - began) * 1e3,
        }

    @router.get("/{type}/{key:path}/token", dependencies=[read], response_model=models.Token)
    async def token(entity: One) -> Any:
        """A commit token: a read that gets it in `after` sees all that was acknowledged until now."""
        return plain(await entity.token())

    @router.get("/{type}/{key:path}", dependencies=[read], response_model=models.EntityState)
    async def show(entity: One, timeout: models.AskedFor = 10.0) -> Any:
        """The entity with its state."""
        return {**plain(await entity.describe()), "state": plain(await entity.state(timeout=desk.patience(timeout)))}

    @router.delete("/{type}/{key:path}", dependencies=[operate], response_model=models.Called, responses=stored)
    async def delete(entity: One, response: Response, timeout: models.AskedFor = 30.0) -> Any:
        """Ends it, after the operations that were called before."""
        try:
            await entity.delete(timeout=desk.patience(timeout))
        except NoAnswer:
            response.status_code = 202
            return {"state": "stored"}
        desk.changed(entity.id)
        return {"state": "completed"}
