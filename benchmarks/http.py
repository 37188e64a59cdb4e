"""The server: `python -m benchmarks.http [overhead list viewers] [--json FILE]`.

    overhead  each call over HTTP and through the Python client, alternating: milliseconds
    list      pages of a hundred of 1,000,000 closed runs by type and state, over HTTP
    viewers   transactions per second of the hub while 0, 1 and 50 pages look at an idle and at a busy fleet

Server and worker are processes of their own. HTTP is spoken over one kept-alive connection with as little code as it takes, so
that the figures are the server's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import httpx
from rich.console import Console

from benchmarks.fleet import fleet_of
from benchmarks.flows import Counter, steps
from harvest import Client

ROOT = Path(__file__).parents[1]
TOKEN_SCOPES = ["admin", "sql"]
FILL = """
insert into harvest.executions
  (execution_id, workflow_id, type, pool, partition, state, seed, created_at, closed_at, input, result)
select gen_random_uuid(), 'w-' || n, 'type-' || (n % 7), 'default', harvest.partition_of('w-' || n),
  case when n % 1000 = 0 then 'FAILED' when n % 5000 = 1 then 'CANCELLED' else 'COMPLETED' end, n,
  now() - n * interval '0.1 s', now() - n * interval '0.05 s', '[]', '1'
from generate_series(1, 1000000) n
"""


class Wire:
    """HTTP/1.1 over one connection."""

    def __init__(self, host: str, port: int, secret: str) -> None:
        self.host, self.port, self.secret = host, port, secret

    async def open(self) -> None:
        self.reader, self.writer = await asyncio.open_connection(self.host, self.port)

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        payload = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: {self.host}\r\nAuthorization: Bearer {self.secret}\r\n"
        if body is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n"
        self.writer.write(head.encode() + b"\r\n" + payload)
        answer = await self.reader.readuntil(b"\r\n\r\n")
        status = int(answer[9:12])
        length = int(next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:")).split(b":")[1])
        content = await self.reader.readexactly(length)
        assert status < 400, content
        return json.loads(content) if content else None


@contextlib.asynccontextmanager
async def served(dsn: str) -> AsyncIterator[tuple[str, int]]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "harvest.cli.main", "server", "--port", "0", "--log-level", "error"),
        cwd=ROOT,
        env={**os.environ, "HARVEST_DATABASE_URL": dsn, "HARVEST_SERVER_RATE_LIMIT": "1000000/second"},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    address = (await process.stdout.readline()).decode().strip().rstrip("/").removeprefix("http://")
    host, _, port = address.rpartition(":")
    async with httpx.AsyncClient() as http:
        while True:
            try:
                await http.get(f"http://{address}/openapi.json")
                break
            except httpx.TransportError:
                await asyncio.sleep(0.05)
    try:
        yield host, int(port)
    finally:
        process.terminate()
        await process.wait()


async def timed(work: Callable[[], Awaitable[Any]]) -> float:
    began = time.perf_counter()
    await work()
    return (time.perf_counter() - began) * 1e3


async def overhead(rounds: int) -> dict[str, Any]:
    async with fleet_of(1) as (hub, _, client), served(hub.dsn) as (host, port):
        wire = Wire(host, port, (await client.tokens.create("bench", scopes=TOKEN_SCOPES)).secret)
        await wire.open()
        handle = await client.start(Counter, 10**9, id="counter")
        numbers = iter(range(10**9))
        by_id = "/api/workflows/by-id/counter"

        def start_by_http() -> Awaitable[Any]:
            return wire.call("POST", "/api/workflows", {"type": "steps", "id": f"h{next(numbers)}", "args": [0, "local"]})

        async def to_end_by_http() -> None:
            started = await start_by_http()
            await wire.call("GET", f"/api/workflows/{started['execution_id']}/result?wait=10s")

        pairs: dict[str, tuple[Callable[[], Awaitable[Any]], Callable[[], Awaitable[Any]]]] = {
            "start": (lambda: client.start(steps, 0, "local", id=f"p{next(numbers)}"), start_by_http),
            "start to result": (lambda: client.execute(steps, 0, "local", id=f"p{next(numbers)}"), to_end_by_http),
            "signal": (lambda: handle.signal("add", 1), lambda: wire.call("POST", f"{by_id}/signal/add", {"args": [1]})),
            "query": (lambda: handle.query("value"), lambda: wire.call("GET", f"{by_id}/query/value")),
            "describe": (handle.describe, lambda: wire.call("GET", by_id)),
        }
        found: dict[str, Any] = {}
        for name, (python, http) in pairs.items():
            for _ in range(200):
                await python()
                await http()
            ours, theirs = [], []
            for _ in range(100 * rounds):
                ours.append(await timed(python))
                theirs.append(await timed(http))
            p50 = statistics.median(ours), statistics.median(theirs)
            found[name] = {"python_ms": p50[0], "http_ms": p50[1], "overhead_ms": p50[1] - p50[0]}
        return found


async def listed(rounds: int) -> dict[str, Any]:
    async with fleet_of(1) as (hub, _, client), served(hub.dsn) as (host, port):
        connection = await asyncpg.connect(hub.dsn)
        await connection.execute(FILL, timeout=600)
        await connection.execute("vacuum analyze", timeout=600)
        await connection.close()
        wire = Wire(host, port, (await client.tokens.create("bench", scopes=TOKEN_SCOPES)).secret)
        await wire.open()
        found = {}
        for query in (
            "type=type-3&state=COMPLETED",
            "type=type-3&state=FAILED",
            "state=FAILED",
            "state=RUNNING",
            "type=type-5",
            "prefix=w-99",
        ):
            times, cursor = [], ""
            for _ in range(30 * rounds):
                path = f"/api/workflows?limit=100&{query}{cursor}"
                began = time.perf_counter()
                page = await wire.call("GET", path)
                times.append((time.perf_counter() - began) * 1e3)
                cursor = f"&cursor={page['next']}" if page["next"] else ""
            found[query] = {"p50_ms": statistics.median(times), "max_ms": max(times)}
        return found


async def viewers(rounds: int) -> dict[str, Any]:
    """What pages cost: the statements that the hub gets in a while, from whoever is not a worker, with so many looking."""
    async with fleet_of(1) as (hub, _, client), served(hub.dsn) as (host, port):
        connection = await asyncpg.connect(hub.dsn)
        secret = (await client.tokens.create("bench", scopes=TOKEN_SCOPES)).secret
        found: dict[str, Any] = {}
        await asyncio.sleep(12)  # the plans and caches of a fleet that has just begun
        for busy in (False, True):
            for looking in (0, 1, 50):
                async with httpx.AsyncClient(
                    base_url=f"http://{host}:{port}", headers={"Authorization": f"Bearer {secret}"}
                ) as http:
                    pages = [asyncio.create_task(page_of(http)) for _ in range(looking)]
                    load = asyncio.create_task(trickle(client)) if busy else None
                    await asyncio.sleep(3)
                    before = await counted(connection)
                    await asyncio.sleep(10 * rounds / 3)
                    after = await counted(connection)
                    for task in [*pages, *([load] if load else [])]:
                        task.cancel()
                    name = f"{looking} pages, {'20 starts/s' if busy else 'idle fleet'}"
                    found[name] = {
                        "transactions_per_s": (after[0] - before[0]) / (10 * rounds / 3),
                        "connections": float(after[1]),
                    }
        await connection.close()
        return found


async def counted(connection: Any) -> tuple[int, int]:
    """(transactions so far, connections)."""
    await connection.execute("select pg_stat_clear_snapshot()")
    done = await connection.fetchval("select xact_commit from pg_stat_database where datname = current_database()")
    connections = await connection.fetchval(
        "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    )
    return done, connections


async def page_of(http: httpx.AsyncClient) -> None:
    """The page of runs, as a browser keeps it: one stream, and the page again when runs have moved."""
    await http.get("/")
    async with http.stream("GET", "/api/changes", timeout=None) as stream:
        async for line in stream.aiter_lines():
            if line.startswith("event: runs"):
                await http.get("/")
                await asyncio.sleep(0.5)


async def trickle(client: Client) -> None:
    n = 0
    while True:
        n += 1
        await client.start(steps, 1, "local", id=f"trickle-{time.time_ns()}-{n}")
        await asyncio.sleep(0.05)


RUNS: dict[str, Callable[[int], Awaitable[dict[str, Any]]]] = {"overhead": overhead, "list": listed, "viewers": viewers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="*", choices=[*RUNS, []], help="which of them (default: all)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    console, report = Console(), {}
    for name in options.which or RUNS:
        report[name] = asyncio.run(RUNS[name](options.rounds))
        for what, figures in report[name].items():
            console.print(f"{name:9} {what:30} " + "  ".join(f"{k} {v:.2f}" for k, v in figures.items()), highlight=False)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
