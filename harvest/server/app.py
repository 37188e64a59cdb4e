"""The server's own application, and the router that other applications mount."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from harvest.client import Client
from harvest.config import ServerConfig, seconds
from harvest.operations.audit import Forgetting
from harvest.server import problems
from harvest.server.access import Access
from harvest.server.api import api
from harvest.server.desk import Desk
from harvest.server.headers import AS_TEXT, SecurityHeaders
from harvest.server.limits import BodyLimit
from harvest.server.pages import pages

LONGEST_STREAM = 900.0
"""Seconds after which the stream of somebody whom another application let in ends: that one is asked again then."""


def router(
    client: Client,
    *,
    auth: Callable[..., Any],
    dashboard: bool = True,
    audit_keep: timedelta = timedelta(days=90),
) -> APIRouter:
    """API and dashboard as a router of your own FastAPI application: `app.include_router(router(…), prefix="/harvest")`.

    `auth` is a dependency of yours that returns a `Principal` (a name and scopes) or raises `HTTPException`. The client has to
    be open while requests come in. Limits of bodies and rates are yours there. `audit_keep` as in `ServerConfig`.
    """
    desk = Desk(client, auth, longest_stream=LONGEST_STREAM)
    return mounted(desk, pages(desk, None) if dashboard else None, seconds(audit_keep))


def mounted(desk: Desk, shown: APIRouter | None, audit_keep: float) -> APIRouter:
    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(desk.watch.stop)
            if audit_keep:
                await stack.enter_async_context(Forgetting(desk.client.db, audit_keep))
            yield
        await desk.auditor.flush()

    found = APIRouter(lifespan=lifespan)
    found.routes.extend(api(desk).routes)
    if shown is not None:
        found.include_router(shown)
    return found


def create_app(client: Client, config: ServerConfig | None = None) -> FastAPI:
    """API and dashboard with their own door (`Access`). The client has to be open when the application starts."""
    config = config or ServerConfig()
    access = Access(client, config)
    desk = Desk(client, access.principal, max_wait=seconds(config.max_wait), still=access.still, first=access.first)
    access.on_change = desk.watch.look_again

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await access.open()
        yield

    app = FastAPI(
        title="Harvest",
        version=version("harvest-engine"),
        description="Durable workflows and stateful entities. Errors are RFC 9457 problem documents.",
        lifespan=lifespan,
        openapi_url="/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    app.include_router(mounted(desk, pages(desk, access) if config.dashboard else None, seconds(config.audit_keep)))
    app.state.harvest_login, app.state.harvest_desk = config.dashboard, desk
    app.add_middleware(BodyLimit, most=config.max_body)
    app.add_middleware(SecurityHeaders)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _bug)
    return app


async def _http(request: Request, exc: Exception) -> Any:
    assert isinstance(exc, HTTPException)
    if exc.status_code == 405:
        exc.headers = {"Allow": ", ".join(allowed(request))}
    if exc.status_code == 404 and request.scope["path"].startswith("/api") and exc.detail == "Not Found":
        hint = "routes are in /openapi.json; a run by its workflow id is at /api/workflows/by-id/ID"
        return problems.problem_response(problems.named(exc) | {"detail": "there is no such route", "hint": hint})
    return problems.of_http(exc)


def allowed(request: Request) -> list[str]:
    """All methods of a path, whichever routes they belong to."""
    app: FastAPI = request.app
    found: dict[int, set[str]] = {}
    for template, methods in app.openapi()["paths"].items():
        if re.fullmatch(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(template)), request.scope["path"]):
            found.setdefault(template.count("{"), set()).update(method.upper() for method in methods)
    return sorted(found[min(found)]) if found else []


async def _invalid(_: Request, exc: Exception) -> Any:
    assert isinstance(exc, RequestValidationError)
    return problems.of_validation(exc)


async def _bug(_: Request, exc: Exception) -> Any:
    answer = problems.of_bug(exc)
    answer.headers.update(AS_TEXT)  # it is outside of what adds them
    return answer
