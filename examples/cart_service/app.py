"""The service: HTTP in front, one client and one worker inside the process, and Harvest's own pages for its staff."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException, Query, Request
from fastapi.security import HTTPBasic, HTTPBasicCredentials
from harvest.entity_sql import SqlError, plain
from pydantic import BaseModel

import harvest
from examples.cart_service.carts import Cart, CartState, Closed, Empty, Line, charge
from harvest import Client, EntityHandle, Worker, WorkerConfig
from harvest.errors import EntityNotFound, EntitySqlOff, NoAnswer, PayloadError, QueryTimeout
from harvest.server import Principal
from harvest.server import router as harvest_router

QUEUE = "carts"


class Answer(BaseModel):
    columns: list[str]
    rows: list[list[Any]]


def staff(given: Annotated[HTTPBasicCredentials | None, Depends(HTTPBasic(auto_error=False))] = None) -> Principal:
    """Who may see what Harvest shows at /ops. Your own sign-in goes here: a session, a gateway's header, a JWT.

    Whoever has the password of STAFF_PASSWORD may look, act, and ask in SQL; while it is not set, nobody may.
    """
    password = os.environ.get("STAFF_PASSWORD")
    if password is None or given is None or not secrets.compare_digest(given.password.encode(), password.encode()):
        raise HTTPException(401, "this is for staff", {"WWW-Authenticate": 'Basic realm="ops"'})
    return Principal(given.username, scopes={"operate", "sql"})


def create_app(url: str | None = None) -> FastAPI:
    """`url` of the hub, else HARVEST_DATABASE_URL. The schema must have been migrated (`harvest migrate`)."""
    client = harvest.connect(url or os.environ["HARVEST_DATABASE_URL"])

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        directory = os.environ.get("HARVEST_OWNER_DISK_CACHE") or tempfile.mkdtemp(prefix="carts-")
        config = WorkerConfig(owner_disk_cache=directory, owner_entity_sql=True)
        async with (
            client,
            Worker(client, queue=QUEUE, definitions=[Cart, charge], config=config),
        ):
            app.state.client = client
            yield

    app = FastAPI(title="Carts", lifespan=lifespan)
    app.add_exception_handler(EntityNotFound, _refuse(404))
    app.add_exception_handler(Closed, _refuse(409))
    app.add_exception_handler(Empty, _refuse(409))
    app.add_exception_handler(PayloadError, _refuse(422))
    app.add_exception_handler(SqlError, _refuse(400))
    for not_now in (NoAnswer, QueryTimeout, EntitySqlOff):
        app.add_exception_handler(not_now, _refuse(503))
    _routes(app)
    app.include_router(harvest_router(client, auth=staff), prefix="/ops")
    return app


def _refuse(status: int) -> Any:
    async def handler(request: Request, exc: Exception) -> Any:
        from fastapi.responses import JSONResponse  # noqa: PLC0415

        return JSONResponse({"detail": getattr(exc, "message", str(exc)), "error": type(exc).__name__}, status)

    return handler


def _client(request: Request) -> Client:
    client: Client = request.app.state.client
    return client


def _cart(key: str, client: Annotated[Client, Depends(_client)]) -> EntityHandle:
    try:
        return client.entity(Cart, key, queue=QUEUE)
    except PayloadError as exc:
        raise HTTPException(422, exc.message) from None


Handle = Annotated[EntityHandle, Depends(_cart)]
Key = Annotated[str | None, Header(alias="Idempotency-Key")]


def _routes(app: FastAPI) -> None:
    @app.get("/carts/{key}")
    async def show(cart: Handle) -> CartState:
        state: CartState = await cart.state()
        return state

    @app.get("/carts/{key}/total")
    async def total(cart: Handle) -> Decimal:
        return await cart.query(Cart.total)

    @app.post("/carts/{key}/lines", status_code=201)
    async def add(cart: Handle, line: Line, idempotency_key: Key = None) -> int:
        return await cart.call(Cart.add, line, idempotency_key=idempotency_key)

    @app.delete("/carts/{key}/lines/{sku}")
    async def remove(cart: Handle, sku: str, idempotency_key: Key = None) -> int:
        return await cart.call(Cart.remove, sku, idempotency_key=idempotency_key)

    @app.post("/carts/{key}/check-out")
    async def check_out(cart: Handle, idempotency_key: Key = None) -> str:
        return await cart.call(Cart.check_out, idempotency_key=idempotency_key)

    @app.delete("/carts/{key}", status_code=204)
    async def delete(cart: Handle) -> None:
        await cart.delete()

    @app.get("/carts/{key}/sql")
    async def ask(cart: Handle, q: Annotated[str, Query(max_length=4_000)]) -> Answer:
        """Read-only SQL over one cart. (Put your own authorisation in front of it.)"""
        rows = await cart.sql(q)
        return Answer(columns=rows.columns, rows=rows.plain())

    @app.get("/statistics")
    async def statistics(client: Annotated[Client, Depends(_client)]) -> list[dict[str, Any]]:
        """Carts by status, over all of them."""
        rows = await client.query_entities_sql(
            Cart,
            "SELECT state ->> '$.status' AS status, count(*) AS carts, avg(json_array_length(state, '$.lines')) AS lines"
            " FROM entity GROUP BY status ORDER BY status",
        )
        return [{name: plain(value) for name, value in row.items()} for row in rows.dicts()]
