"""The server's application in this process, on a hub of the test's own; for streams and browsers a real listening one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

import harvest
from harvest import Client, Worker, WorkerConfig
from harvest.config import ServerConfig
from harvest.server import create_app
from harvest.server.serve import serve
from tests.server import flows


@asynccontextmanager
async def http_to(client: Client, **config: Any) -> AsyncIterator[httpx.AsyncClient]:
    """HTTP to an application of its own, without a socket."""
    app = create_app(client, ServerConfig(**config))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 1), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=30) as http:
            yield http


@asynccontextmanager
async def listening(client: Client, **config: Any) -> AsyncIterator[str]:
    """The address of a server that really listens."""
    stopping, lines = asyncio.Event(), asyncio.Queue[str]()
    settings = ServerConfig(port=0, **config)
    task = asyncio.create_task(serve(client, settings, say=lines.put_nowait, stopping=stopping))
    first = asyncio.create_task(lines.get())
    await asyncio.wait({task, first}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        first.cancel()
        await task
    address = (await first).rstrip("/")
    async with httpx.AsyncClient() as http:
        while True:
            try:
                await http.get(f"{address}/openapi.json")
                break
            except httpx.TransportError:
                await asyncio.sleep(0.01)
    try:
        yield address
    finally:
        stopping.set()
        await task


@pytest.fixture
async def door(dsn: str) -> AsyncIterator[Client]:
    """The client that the server has: it shares nothing with the worker but the hub."""
    async with harvest.connect(dsn) as opened:
        yield opened


@pytest.fixture
async def http(door: Client) -> AsyncIterator[httpx.AsyncClient]:
    async with http_to(door) as opened:
        yield opened


@pytest.fixture
async def fleet(worker: Callable[..., Worker], tmp_path: Any) -> AsyncIterator[Worker]:
    """A worker that knows all of `flows`."""
    async with worker(*flows.ALL, owner_disk_cache=tmp_path / "cache", owner_entity_sql=True) as running:
        yield running


__all__ = ["WorkerConfig", "http_to", "listening"]
