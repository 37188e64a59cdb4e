"""The API against its own OpenAPI document: what schemathesis makes up does not break it."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.server import flows
from tests.server.conftest import listening

ROOT = Path(__file__).parents[2]
STREAMS = "/events$|/changes$"  # they do not end
EXAMPLES = os.environ.get("HARVEST_FUZZ", "")
PHASES = "examples,coverage,fuzzing" if EXAMPLES else "examples,fuzzing"
"""A taste of it here; `make fuzz` has all of it."""


@pytest.mark.timeout(3600 if EXAMPLES else 120)
async def test_schemathesis_finds_nothing(door, fleet):
    for n in range(3):
        await door.start(flows.Order, 1, id=f"o{n}")
    await door.entity(flows.Counter, "c").call("add", 1)
    secret = (await door.tokens.create("st", scopes=["admin", "sql"])).secret
    many = "1000000/second"
    async with listening(door, rate_limit=many, failure_limit=many, max_wait=0.1) as address:
        process = await asyncio.create_subprocess_exec(
            *(str(Path(sys.executable).with_name("schemathesis")), "run", f"{address}/openapi.json"),
            *("--header", f"Authorization: Bearer {secret}", "--exclude-path-regex", STREAMS, "--generation-deterministic"),
            *("--phases", PHASES, "--max-examples", EXAMPLES or "2", "--no-color"),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()[-20_000:]


async def test_the_document_is_whole(http):
    document = (await http.get("/openapi.json")).json()
    operations = [op for methods in document["paths"].values() for op in methods.values()]
    ids = [op["operationId"] for op in operations]
    assert len(ids) == len(set(ids))
    assert all("application/problem+json" in op["responses"]["default"]["content"] for op in operations)
    assert all(op.get("security") for op in operations)
