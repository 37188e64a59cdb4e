"""`harvest server`, `harvest token` and `harvest audit`, as processes."""

from __future__ import annotations

import asyncio
import json
import signal

import httpx

from tests.cli.test_commands import harvest, shop, spawn
from tests.cli.test_operator import ask

__all__ = ["shop"]


async def served(shop, dsn, *args: str) -> tuple[asyncio.subprocess.Process, str]:
    process = await spawn(shop, dsn, "server", "--port", "0", *args)
    assert process.stdout is not None
    return process, (await process.stdout.readline()).decode().strip()


async def answering(address: str, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(headers=headers) as http, asyncio.timeout(20):
        while True:
            try:
                return await http.get(f"{address}api/me")
            except httpx.TransportError:
                await asyncio.sleep(0.02)


async def test_a_server_is_open_on_loopback_until_a_token_closes_it(dsn, shop):
    process, address = await served(shop, dsn)
    try:
        assert address.startswith("http://127.0.0.1:")
        said = (await process.stdout.readline()).decode()
        assert "no token exists" in said and "harvest token create" in said
        assert (await answering(address)).json()["via"] == "open"
        made = await ask(shop, dsn, "token", "create", "ann", "--scope", "read", "--scope", "sql")
        assert made["token"]["scopes"] == ["read", "sql"]
        async with asyncio.timeout(10):
            while (await answering(address)).status_code != 401:
                await asyncio.sleep(0.02)
        me = (await answering(address, Authorization=f"Bearer {made['secret']}")).json()
        assert me == {"name": "ann", "scopes": ["read", "sql"], "via": "token"}
        assert (await ask(shop, dsn, "token", "create", "ann", "--scope", "read", code=1))["error"] == "TokenExists"
        assert (await ask(shop, dsn, "token", "create", "bo", "--scope", "root", code=2))["error"] == "ConfigError"
        rotated = await ask(shop, dsn, "token", "rotate", "ann", "--grace-minutes", "1")
        assert (await answering(address, Authorization=f"Bearer {rotated['secret']}")).status_code == 200
        _, table, _ = await harvest(shop, dsn, "token", "list")
        assert "ann" in table and made["secret"] not in table
        await ask(shop, dsn, "token", "revoke", "ann")
        async with asyncio.timeout(10):
            while (await answering(address, Authorization=f"Bearer {rotated['secret']}")).status_code != 401:
                await asyncio.sleep(0.02)
        admin = await ask(shop, dsn, "token", "create", "root", "--scope", "admin")
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {admin['secret']}"}) as http:
            await http.post(f"{address}api/workflows", json={"type": "Talk", "id": "t", "args": [1]})
        found = await ask(shop, dsn, "audit", "--id", "t") or await ask(shop, dsn, "audit", "--actor", "root")
        assert found[0]["route"] == "/api/workflows"
        assert "POST /api/workflows" in (await harvest(shop, dsn, "audit"))[1]
    finally:
        process.send_signal(signal.SIGTERM)
        _, err = await process.communicate()
    assert process.returncode in (0, -signal.SIGTERM), err
    assert b"Traceback" not in err


async def test_an_open_server_is_refused_where_others_could_reach_it(dsn, shop):
    code, _, err = await harvest(shop, dsn, "server", "--host", "0.0.0.0", "--port", "0")
    assert code == 2
    assert "anybody could act" in err and "harvest token create" in err


async def test_a_bad_setting_is_named(dsn, shop, monkeypatch):
    monkeypatch.setenv("HARVEST_SERVER_RATE_LIMIT", "quick")
    code, _, err = await harvest(shop, dsn, "server", "--port", "0")
    assert code == 2
    assert "rate_limit" in err and "HARVEST_SERVER_RATE_LIMIT" in err


async def test_json_of_a_new_token_has_the_secret_once(dsn, shop):
    _, out, err = await harvest(shop, dsn, "token", "create", "x", "--scope", "operate")
    assert out.strip().startswith("hv_")
    assert "only time" in err
    assert json.loads((await harvest(shop, dsn, "token", "list", "--json"))[1])[0]["name"] == "x"
