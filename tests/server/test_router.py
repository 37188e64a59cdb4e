"""API and dashboard within somebody else's application, behind its own door."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI, HTTPException

from harvest import Client
from harvest.server import Principal, router
from tests.server import flows

START = {"type": "greet", "id": "g", "args": ["x"]}


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, timeout_graceful_shutdown=1))
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    await task


@asynccontextmanager
async def mounted(client: Client, auth: Callable[..., Any], *prefixes: str) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    for prefix in prefixes:
        app.include_router(router(client, auth=auth), prefix=prefix)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            yield http


async def ann() -> Principal:
    return Principal("ann", ["admin"])


async def nobody() -> Principal:
    raise HTTPException(401, "who are you?", {"WWW-Authenticate": "Basic"})


async def elsewhere() -> Principal:
    raise HTTPException(303, headers={"Location": "/sign-in"})


async def broken() -> Principal:
    raise RuntimeError("the directory is down: hunter2")


async def nothing() -> None:
    return None


async def a_name() -> str:
    return "ann"


async def a_typo() -> Principal:
    return Principal("ann", ["administrator"])


async def one_text() -> Principal:
    return Principal("ann", "admin")


async def test_it_goes_where_it_is_mounted(door):
    async with mounted(door, ann, "/ops", "/deep/er") as http:
        for prefix in ("/ops", "/deep/er"):
            page = await http.get(f"{prefix}/fleet")
            assert page.status_code == 200
            links = re.findall(r'(?:href|src)="([^"#]*)"', page.text)
            assert links and all(link.startswith(f"{prefix}/") for link in links)
            assert (await http.get(f"{prefix}/static/app.js")).status_code == 200
            assert (await http.get(f"{prefix}/api/me")).json()["name"] == "ann"
        assert (await http.get("/")).status_code == 404


@pytest.mark.parametrize(
    ("auth", "status", "logged"),
    [
        (nobody, 401, ""),
        (broken, 500, "the directory is down"),
        (nothing, 500, "returns a Principal or raises HTTPException, not None"),
        (a_name, 500, "not 'ann'"),
        (a_typo, 500, "administrator"),
        (one_text, 500, "as a list, got 'admin'"),
    ],
)
async def test_whoever_its_door_does_not_let_in_stays_out(door, caplog, auth, status, logged):
    async with mounted(door, auth, "/ops") as http:
        for method, path in (("GET", "/api/workflows"), ("POST", "/api/workflows"), ("GET", "/api/changes")):
            answer = await http.request(method, f"/ops{path}", json=START if method == "POST" else None)
            assert answer.status_code == status
            assert answer.headers["content-type"] == "application/problem+json"
            assert "hunter2" not in answer.text
        for path in ("/ops/", "/ops/fleet"):
            page = await http.get(path)
            assert (page.status_code, page.headers["content-type"]) == (status, "text/html; charset=utf-8")
            assert "hunter2" not in page.text
    assert logged in caplog.text
    assert await door.counts() == {} and await door.audit() == []


async def test_its_door_says_where_to_sign_in(door):
    async with mounted(door, elsewhere, "/ops") as http:
        for path in ("/ops/", "/ops/api/workflows"):
            answer = await http.get(path)
            assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")
    async with mounted(door, nobody, "/ops") as http:
        for path in ("/ops/", "/ops/api/workflows"):
            assert (await http.get(path)).headers["www-authenticate"] == "Basic"


async def test_streams_are_live_where_no_lifespan_is_run(door, fleet):
    """An application under another (`mount`) is not told when it begins."""
    inner, outer = FastAPI(), FastAPI()
    inner.include_router(router(door, auth=ann))
    outer.mount("/ops", inner)
    handle = await door.start(flows.Order, 3, id="o")
    seen: list[str] = []
    path = "/ops/api/workflows/by-id/o/events"
    async with (
        serving(outer) as address,
        httpx.AsyncClient(base_url=address, timeout=20) as http,
        http.stream("GET", path) as stream,
    ):
        async for line in stream.aiter_lines():
            if line.startswith("event:"):
                seen.append(line[7:])
                if len(seen) == 1:
                    await handle.signal("approve")
    assert (seen[0], seen[-2:]) == ("TimerStarted", ["RunCompleted", "end"])
