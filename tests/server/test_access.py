"""Closed by default: who is let in, what is refused, and what is left behind of it."""

from __future__ import annotations

import asyncio
import logging

import asyncpg
import httpx
import pytest

from harvest import errors
from harvest.config import ServerConfig
from harvest.operations import audit
from harvest.server.access import COOKIE, host_of, loopback
from harvest.server.serve import check_host
from harvest.server.serve import listening as bound
from tests.server import flows
from tests.server.conftest import http_to, listening

START = {"type": "greet", "id": "g", "args": ["hunter2"]}


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


async def test_without_a_token_only_this_machine_is_let_in(door, http):
    assert (await http.get("/api/me")).json()["via"] == "open"
    for host in ("evil.example", "10.0.0.7:8088", "localhost.evil.example"):
        answer = await http.get("/api/workflows", headers={"Host": host})  # a page elsewhere that rebound its name
        assert (answer.status_code, answer.json()["error"]) == (403, "Forbidden")
    assert (await http.get("/api/workflows", headers={"Host": "[::1]:8088"})).status_code == 200
    with pytest.raises(errors.ConfigError, match="harvest token create"):
        await check_host(door, ServerConfig(host="0.0.0.0"))
    assert not await check_host(door, ServerConfig())
    await door.tokens.create("ops", scopes=["admin"])
    assert await check_host(door, ServerConfig(host="0.0.0.0"))
    await door.tokens.revoke("ops")
    assert await check_host(door, ServerConfig(host="0.0.0.0"))  # revoking the last one opens nothing


async def test_a_token_closes_the_door_at_once(door, http):
    assert (await http.get("/api/workflows")).status_code == 200
    made = await door.tokens.create("reader", scopes=["read"])
    async with asyncio.timeout(5):
        while (refused := await http.get("/api/workflows")).status_code == 200:
            await asyncio.sleep(0.01)
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == "Bearer"
    assert (await http.get("/api/workflows", headers=bearer(made.secret))).status_code == 200
    assert (await http.get("/api/workflows", headers=bearer(made.secret + "x"))).status_code == 401
    assert (await http.get("/api/workflows", headers={"Authorization": f"Basic {made.secret}"})).status_code == 401


async def test_only_hashes_are_stored(door, dsn):
    made = await door.tokens.create("t", scopes=["read", "sql"])
    connection = await asyncpg.connect(dsn)
    stored = str(await connection.fetch("select * from harvest.tokens"))
    await connection.close()
    assert made.secret not in stored
    assert made.secret.removeprefix("hv_") not in stored
    assert made.secret not in repr(made)


SCOPED = (
    ("GET", "/api/workflows", "read"),
    ("GET", "/api/workflows/by-id/x", "read"),
    ("GET", "/api/workflows/by-id/x/events", "read"),
    ("POST", "/api/workflows/by-id/x/query/q", "read"),
    ("GET", "/api/changes", "read"),
    ("GET", "/api/workers", "read"),
    ("POST", "/api/workflows", "operate"),
    ("POST", "/api/workflows/bulk", "operate"),
    ("POST", "/api/workflows/by-id/x/signal/s", "operate"),
    ("POST", "/api/workflows/by-id/x/terminate", "operate"),
    ("POST", "/api/entities/Counter/c/call/add", "operate"),
    ("DELETE", "/api/entities/Counter/other", "operate"),
    ("POST", "/api/entities/Counter/c/sql", "sql"),
    ("POST", "/api/entities/Counter/sql", "sql"),
    ("POST", "/api/owner-mode/disable", "admin"),
    ("POST", "/api/workflows/by-id/x/erase-payloads", "admin"),
    ("DELETE", "/api/workflows/by-id/x/legal-hold", "admin"),
    ("GET", "/api/audit", "admin"),
)
INCLUDED = {"read": {"read"}, "operate": {"operate", "read"}, "admin": {"admin", "operate", "read"}, "sql": {"sql"}}


async def test_scopes(door, http):
    secrets = {scope: (await door.tokens.create(scope, scopes=[scope])).secret for scope in INCLUDED}
    for scope, secret in secrets.items():
        for method, path, needed in SCOPED:
            if path == "/api/changes" and scope != "sql":
                continue  # it would stream without end
            body = {"timeout": 0.05} if path.endswith("/call/add") else {}
            answer = await http.request(method, path, headers=bearer(secret), json=body if method == "POST" else None)
            assert (answer.status_code == 403) == (needed not in INCLUDED[scope]), (scope, method, path, answer.text)
            if answer.status_code == 403:
                assert needed in answer.json()["detail"]


async def test_every_route_asks_for_a_token(door, http):
    """Whatever is added later: nothing of the API answers a stranger."""
    await door.tokens.create("t", scopes=["admin"])
    document = (await http.get("/openapi.json")).json()
    for path, methods in document["paths"].items():
        for method in methods:
            filled = path.replace("{execution_id}", "00000000-0000-0000-0000-000000000001").replace("{seq}", "1")
            filled = filled.replace("{worker_id}", "00000000-0000-0000-0000-000000000001")
            filled = filled.replace("{", "").replace("}", "")
            answer = await http.request(method, filled)
            assert answer.status_code == 401, (method, path, answer.text)


async def test_tokens_are_rotated_and_revoked_on_every_server(door, http, client):
    old = await client.tokens.create("t", scopes=["read"])
    await arrives(http, old.secret, 200)
    new = await client.tokens.rotate("t", grace=60)
    await arrives(http, new.secret, 200)
    await arrives(http, old.secret, 200)
    last = await client.tokens.rotate("t")
    await arrives(http, last.secret, 200)
    await arrives(http, new.secret, 401)
    await client.tokens.revoke("t")
    await arrives(http, last.secret, 401)
    with pytest.raises(errors.TokenNotFound):
        await client.tokens.rotate("t")
    with pytest.raises(errors.TokenExists):
        await client.tokens.create("t", scopes=["read"])
    with pytest.raises(errors.ConfigError, match="read, operate, admin, sql"):
        await client.tokens.create("u", scopes=["root"])
    ended = await client.tokens.create("short", scopes=["read"], expires_in=0.05)
    await arrives(http, ended.secret, 401)
    listed = {token.name: token for token in await client.tokens.list()}
    assert listed["t"].revoked_at is not None
    assert listed["t"].used_at is not None


async def arrives(http: httpx.AsyncClient, secret: str, status: int) -> None:
    async with asyncio.timeout(5):
        while (await http.get("/api/workflows", headers=bearer(secret))).status_code != status:
            await asyncio.sleep(0.01)


async def test_who_acts_is_on_record_and_what_was_said_is_not(door, dsn, caplog):
    caplog.set_level(logging.DEBUG)
    made = await door.tokens.create("ann", scopes=["admin"])
    async with http_to(door) as http:
        headers = bearer(made.secret)
        assert (await http.post("/api/workflows", json=START, headers=headers)).status_code == 201
        assert (await http.post("/api/workflows", json=START, headers=headers)).status_code == 409
        signalled = await http.post(
            "/api/workflows/by-id/g/signal/note", json={"args": ["hunter2"], "idempotency_key": "hunter2"}, headers=headers
        )
        assert signalled.status_code == 200
        assert (await http.get("/api/workflows", headers=headers)).status_code == 200
        async with asyncio.timeout(5):
            while any(e.status is None for e in await door.audit()):
                await asyncio.sleep(0.01)
        found = await door.audit()
        assert [(e.actor, e.method, e.route, e.status) for e in reversed(found)] == [
            ("ann", "POST", "/api/workflows", 201),
            ("ann", "POST", "/api/workflows", 409),
            ("ann", "POST", "/api/workflows/by-id/{workflow_id}/signal/{name}", 200),
        ]
        assert found[-1].target == {"id": "g", "type": "greet"}
        assert found[0].target == {"workflow_id": "g", "name": "note"}
        assert found[0].token_id == made.token.token_id
        page = (await http.get("/api/audit", params={"limit": 2}, headers=headers)).json()
        rest = (await http.get("/api/audit", params={"cursor": page["next"]}, headers=headers)).json()
        assert len(page["entries"]) == 2
        assert len(rest["entries"]) == 1
        assert [
            e["target"] for e in (await http.get("/api/audit", params={"workflow_id": "g"}, headers=headers)).json()["entries"]
        ]
    connection = await asyncpg.connect(dsn)
    assert "hunter2" not in str(await connection.fetch("select * from harvest.audit"))
    await connection.close()
    assert "hunter2" not in caplog.text
    assert made.secret not in caplog.text


async def test_too_much_is_refused(door):
    async with http_to(door, max_body=2_000, rate_limit="5/minute") as http:
        big = {**START, "args": ["x" * 5_000]}
        assert (await http.post("/api/workflows", json=big)).json()["error"] == "BodyTooLarge"

        async def endless():
            for _ in range(100):
                yield b"x" * 100

        unsaid = await http.post("/api/workflows", content=endless(), headers={"content-type": "application/json"})
        assert (unsaid.status_code, unsaid.json()["error"]) == (413, "BodyTooLarge")
        statuses = [(await http.get("/api/workflows")).status_code for _ in range(7)]
        assert statuses[:4] == [200] * 4
        assert statuses[-1] == 429
        assert int((await http.get("/api/workflows")).headers["retry-after"]) >= 1


async def test_who_guesses_tokens_is_stopped(door):
    made = await door.tokens.create("t", scopes=["read"])
    async with http_to(door, failure_limit="3/minute") as http:
        statuses = [(await http.get("/api/me", headers=bearer(f"hv_{n}"))).status_code for n in range(5)]
        assert statuses == [401, 401, 401, 429, 429]
        assert (await http.get("/api/me", headers=bearer(made.secret))).status_code == 200  # a good one is not kept out


async def test_another_sites_page_can_do_nothing(door, http):
    """CSRF: a browser says where a request comes from; the dashboard's cookie needs it said."""
    own = {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}
    assert (await http.post("/api/workflows", json=START, headers=own)).status_code == 201
    for foreign in (
        {"Origin": "https://evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "null"},
    ):
        assert (await http.post("/api/workflows", json=START, headers=foreign)).status_code == 403
    made = await door.tokens.create("t", scopes=["operate"])
    http.cookies.set(COOKIE, made.secret)
    async with asyncio.timeout(5):
        while (await http.get("/api/me")).json().get("via") != "cookie":
            await asyncio.sleep(0.01)
    assert (await http.post("/api/workflows", json=START)).status_code == 403  # nothing says where it comes from
    assert (await http.post("/api/workflows", json=START, headers=own)).status_code == 409
    form = await http.post("/api/workflows", data={"type": "greet", "id": "form"}, headers=own)
    assert form.status_code == 422
    text = await http.post(
        "/api/workflows", content='{"type": "greet", "id": "t"}', headers={**own, "content-type": "text/plain"}
    )
    assert text.status_code == 422


@pytest.mark.parametrize(
    ("header", "name", "local"),
    [
        ("localhost:8088", "localhost", True),
        ("127.0.0.1", "127.0.0.1", True),
        ("[::1]:80", "[::1]", True),
        ("app.localhost", "app.localhost", True),
        ("evil.example", "evil.example", False),
        ("0.0.0.0", "0.0.0.0", False),
        ("localhost.evil", "localhost.evil", False),
        ("", "", False),
        ("evil.com//localhost", "", False),
        ("[::1].evil.com", "", False),
        ("localhost:80@evil.com", "", False),
        ("localhost:8088:1", "", False),
    ],
)
def test_names_of_this_machine(header, name, local):
    assert host_of(header) == name
    assert loopback(name) is local


async def test_headers_bind_browsers(http):
    answer = await http.get("/api/workflows")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert "access-control-allow-origin" not in answer.headers


async def test_a_port_that_is_taken_is_named(door):
    async with listening(door) as address:
        port = int(address.rpartition(":")[2])
        with pytest.raises(errors.ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            bound(ServerConfig(port=port))


@pytest.mark.parametrize(
    ("field", "value"), [("port", 70_000), ("rate_limit", "fast"), ("max_body", 1), ("nonsense", 1), ("host", "")]
)
def test_a_bad_setting_is_named(field, value):
    with pytest.raises(errors.ConfigError, match=field):
        ServerConfig(**{field: value})


async def test_who_is_revoked_hears_no_more(door, fleet):
    made = await door.tokens.create("t", scopes=["read"])
    await door.start(flows.Order, 1, id="o")
    async with listening(door) as address, httpx.AsyncClient(base_url=address, headers=bearer(made.secret), timeout=30) as http:
        for path in ("/api/changes", "/api/workflows/by-id/o/events"):
            async with http.stream("GET", path) as stream:
                pieces = stream.aiter_text()
                await anext(pieces)
                if path == "/api/changes":
                    continue
                await door.tokens.revoke("t")
                async for _ in pieces:  # it ends
                    pass
    assert (await door.audit()) == []


async def test_every_act_is_on_record_whatever_it_is_called(door, http):
    secret = (await door.tokens.create("r", scopes=["read"])).secret
    admin = (await door.tokens.create("a", scopes=["admin"])).secret
    json_too = {"content-type": "Application/JSON"}
    await http.post("/api/workflows", content='{"type": "greet", "id": "hidden"}', headers={**bearer(admin), **json_too})
    await http.post("/api/workflows/bulk", json={"verb": "cancel", "filters": {"type": "greet"}}, headers=bearer(admin))
    assert (await http.post("/api/workflows/by-id/hidden/cancel", headers=bearer(secret))).status_code == 403
    found = await door.audit()
    assert [(e.actor, e.target) for e in found] == [
        ("r", {"workflow_id": "hidden"}),
        ("a", {"verb": "cancel", "filter_type": "greet"}),
        ("a", {"type": "greet", "id": "hidden"}),
    ]


async def test_without_a_token_nothing_comes_through_a_proxy(http):
    """To the server whoever is behind one looks like this machine."""
    for name in ("X-Forwarded-For", "Forwarded", "Via", "X-Real-IP"):
        answer = await http.get("/api/workflows", headers={name: "203.0.113.9"})
        assert (answer.status_code, answer.json()["error"]) == (403, "Forbidden")
        assert "harvest token create" in answer.json()["detail"]


async def test_the_audit_is_kept_for_as_long_as_it_says(door, dsn, monkeypatch):
    monkeypatch.setattr(audit, "AT_ONCE", 2)
    async with http_to(door) as http:
        for n in range(7):
            assert (await http.post("/api/workflows", json={**START, "id": f"g{n}"})).status_code == 201
    connection = await asyncpg.connect(dsn)
    await connection.execute("update harvest.audit set at = at - interval '89 days'")
    await connection.execute("update harvest.audit set at = at - interval '2 days' where target ->> 'id' < 'g5'")
    await connection.close()
    async with http_to(door, audit_keep=0):
        assert len(await door.audit()) == 7
    async with http_to(door), asyncio.timeout(20):
        while len(await door.audit()) != 2:
            await asyncio.sleep(0.01)
    assert {e.target["id"] for e in await door.audit()} == {"g5", "g6"}


async def test_pages_offer_what_ones_scopes_allow(door, http, fleet):
    await door.start(flows.Order, 1, id="o")
    await door.entity(flows.Counter, "c").call(flows.Counter.add, 1)
    paths = ("/", "/run?id=o", "/entities?type=Counter", "/entity?type=Counter&key=c")
    offered: dict[str, set[str]] = {}
    for scope in ("read", "operate", "sql"):
        scopes = ["read", "sql"] if scope == "sql" else [scope]
        headers = bearer((await door.tokens.create(scope, scopes=scopes)).secret)
        pages = [await http.get(path, headers=headers) for path in paths]
        assert {page.status_code for page in pages} == {200}
        text = " ".join(page.text for page in pages)
        offered[scope] = {verb for verb in ("/signal/", "/query/", "/call/", "data-bulk", "data-run-sql") if verb in text}
    assert offered["read"] == {"/query/"}
    assert offered["operate"] == {"/signal/", "/query/", "/call/", "data-bulk"}
    assert offered["sql"] == {"/query/", "data-run-sql"}


async def test_a_stream_ends_with_the_secret_that_opened_it(door, fleet):
    old = (await door.tokens.create("viewer", scopes=["read"])).secret
    async with listening(door) as address, httpx.AsyncClient(base_url=address, timeout=30) as http:
        async with http.stream("GET", "/api/changes", headers=bearer(old)) as stream:
            pieces = stream.aiter_text()
            assert "hello" in await anext(pieces)
            new = await door.tokens.rotate("viewer")
            async with asyncio.timeout(20):
                async for _ in pieces:  # it ends
                    pass
        assert (await http.get("/api/me", headers=bearer(new.secret))).status_code == 200


async def test_nothing_is_read_of_whom_nobody_knows(door):
    await door.tokens.create("a", scopes=["admin"])
    async with http_to(door, failure_limit="3/minute") as http:
        json_too = {"content-type": "application/json"}
        for content in (b"{bad", b"[" * 100_000, b"{}"):
            assert (await http.post("/api/workflows", content=content, headers=json_too)).status_code == 401
        guesses = [
            (await http.post("/api/workflows", content=b"{bad", headers={**json_too, **bearer(f"hv_{n}")})).status_code
            for n in range(6)
        ]
        assert guesses == [401] * 3 + [429] * 3


async def test_a_cookie_of_another_server_closes_nothing(door):
    async with http_to(door) as http:
        stale = {"Cookie": f"{COOKIE}=hv_of_another_port"}
        assert (await http.get("/", headers=stale)).status_code == 200
        assert (await http.get("/api/me", headers=stale)).json()["via"] == "open"
        await door.tokens.create("a", scopes=["admin"])
        async with asyncio.timeout(20):
            while (sent := await http.get("/", headers=stale)).status_code == 200:
                await asyncio.sleep(0.01)
        assert (sent.status_code, sent.headers["location"]) == (303, "/login?next=/")
        assert f'{COOKIE}=""' in sent.headers["set-cookie"]


async def test_the_sign_in_goes_nowhere_else(door):
    secret = (await door.tokens.create("a", scopes=["read"])).secret
    async with http_to(door) as http:
        for target in ("//[", "//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)"):
            assert (await http.get("/login", params={"next": target})).status_code == 200
            answer = await http.post("/login", data={"token": secret, "next": target})
            assert (answer.status_code, answer.headers["location"]) == (303, "/")


async def test_a_refused_call_leaves_a_small_row(door, http):
    secret = (await door.tokens.create("r", scopes=["read"])).secret
    await http.post(f"/api/workflows/by-id/{'a' * 60_000}/cancel", headers=bearer(secret))
    (row,) = await door.audit()
    assert len(str(row.target)) < 1_000


async def test_the_audit_of_a_run_has_its_start_and_what_was_done_to_an_execution(door, http, fleet):
    await http.post("/api/workflows", json={"type": "Order", "id": "o", "args": [1]})
    execution = (await door.handle("o").describe()).execution_id
    await http.post(f"/api/workflows/{execution}/signal/approve")
    await http.post("/api/workflows/by-id/o/cancel")
    await http.post("/api/workflows", json={"type": "greet", "id": "another", "args": ["x"]})
    await http.post("/api/entities/Counter/c/call/add", json={"args": [1]})
    assert [e.route.rpartition("/")[2] for e in await door.audit(workflow_id="o")] == ["cancel", "{name}", "workflows"]
    assert [e.target["key"] for e in await door.audit(workflow_id="@Counter:c")] == ["c"]


async def test_a_body_that_does_not_say_that_it_is_json_is_told_so(http):
    answer = await http.post("/api/workflows", content='{"type": "greet", "id": "g", "args": ["x"]}')
    assert (answer.status_code, answer.json()["hint"]) == (422, "send it with Content-Type: application/json")
    assert "by-id" in (await http.get("/api/workflows/order-8")).json()["hint"]
