"""API and dashboard within somebody else's application, behind its own door."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, HTTPException

from harvest import Client
from harvest.server import Principal, router

START = {"type": "greet", "id": "g", "args": ["x"]}


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
