"""The API does what the Python client does, with the same errors."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import quote

import httpx

from harvest.ids import new_id
from tests.server import flows
from tests.server.conftest import listening

BY_ID = "/api/workflows/by-id"


async def start(http: httpx.AsyncClient, type: str, id: str, *args: object, **options: object) -> str:
    answer = await http.post("/api/workflows", json={"type": type, "id": id, "args": args, **options})
    assert answer.status_code == 201, answer.text
    return answer.json()["execution_id"]


def problem(answer: httpx.Response, status: int, error: str) -> dict:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert (body["status"], body["error"], body["type"]) == (status, error, f"urn:harvest:error:{error}"), body
    return body


async def test_a_run_from_start_to_end(http, fleet):
    execution = await start(http, "Order", "order/7", 42)
    base = f"{BY_ID}/{quote('order/7', safe='')}"
    assert (await http.get(f"{base}/result")).status_code == 204
    assert (await http.get(f"{base}/result", params={"wait": "50ms"})).headers["retry-after"] == "1"
    assert (await http.get(f"{base}/query/status")).json() == {"result": "0 items"}
    added = await http.post(f"{base}/update/add", json={"args": ["apple"], "update_id": "u1"})
    assert added.json() == {"update_id": "u1", "state": "completed", "result": 1}
    again = await http.post(f"{base}/update/add", json={"args": ["apple"], "update_id": "u1"})
    assert again.json()["result"] == 1
    verbose = await http.get(f"{base}/query/status", params={"arg": "true"})
    assert verbose.json() == {"result": "1 items (all is well)"}
    posted = await http.post(f"{base}/query/status", json={"args": [True]})
    assert posted.json() == verbose.json()
    assert (await http.post(f"{base}/signal/approve")).json() == {"workflow_id": "order/7"}
    done = await http.get(f"{base}/result", params={"wait": "10s"})
    assert done.json() == {"state": "COMPLETED", "result": "paid 42", "failure": None}
    by_execution = f"/api/workflows/{execution}"
    described = (await http.get(by_execution)).json()
    assert (described["workflow_id"], described["state"], described["input"]) == ("order/7", "COMPLETED", [42])
    assert (await http.get(base)).json() == described
    page = (await http.get(f"{by_execution}/history", params={"limit": 2})).json()
    rest = (await http.get(f"{by_execution}/history", params={"after": page["next"]})).json()
    assert [e["event_id"] for e in page["events"] + rest["events"]] == list(range(1, described["events"] + 1))
    assert rest["next"] is None
    exported = (await http.get(f"{by_execution}/history/export")).json()
    assert exported
    spans = (await http.get(f"{base}/timeline")).json()
    assert {"run", "activity", "update", "signal", "decision"} <= {span["kind"] for span in spans}
    assert (await http.get(f"{base}/stack")).json() == []
    assert (await http.get(f"{base}/diagnose")).json()["code"] == "closed"
    assert [link["execution_id"] for link in (await http.get(f"{base}/run-chain")).json()] == [execution]
    report = (await http.get(f"{base}/sticky-report")).json()
    assert report["decisions"] and report["workers"] == 1


async def test_an_update_is_admitted_and_its_result_read_later(http, fleet):
    await start(http, "Order", "o", 1)
    admitted = await http.post(f"{BY_ID}/o/update/add", json={"args": ["pear"], "wait": "admitted"})
    assert admitted.status_code == 202
    assert admitted.json()["state"] == "admitted"
    later = await http.get(f"{BY_ID}/o/update/{admitted.json()['update_id']}/result", params={"wait": "10s"})
    assert later.json()["result"] == 1
    problem(await http.get(f"{BY_ID}/o/update/nobody/result"), 404, "UpdateNotFound")


async def test_an_update_without_a_worker_is_durable_and_answered_when_one_comes(http, worker):
    from tests.server import flows

    await start(http, "Order", "o", 1)
    waiting = await http.post(f"{BY_ID}/o/update/add", json={"args": ["x"], "timeout": 0.1, "update_id": "u"})
    assert (waiting.status_code, waiting.json()["state"]) == (202, "admitted")
    assert (await http.get(f"{BY_ID}/o/update/u/result")).status_code == 204
    stopped = await http.post(f"{BY_ID}/o/pause", json={"timeout": 0.1})
    assert (stopped.status_code, stopped.json()["done"]) == (202, False)
    assert (await http.post(f"{BY_ID}/o/resume")).status_code == 200
    async with worker(*flows.ALL):
        assert (await http.get(f"{BY_ID}/o/update/u/result", params={"wait": "20s"})).json()["result"] == 1


async def test_errors_are_problems_with_the_names_of_python(http, fleet):
    await start(http, "Order", "o", 1)
    taken = problem(await http.post("/api/workflows", json={"type": "Order", "id": "o"}), 409, "WorkflowAlreadyStarted")
    assert taken["workflow_id"] == "o"
    assert "conflict=" in taken["hint"]
    problem(await http.get(f"{BY_ID}/nobody"), 404, "WorkflowNotFound")
    problem(await http.post(f"{BY_ID}/nobody/signal/x"), 404, "WorkflowNotFound")
    problem(await http.get("/api/workflows/00000000-0000-0000-0000-000000000001/history"), 404, "WorkflowNotFound")
    problem(await http.get("/api/workflows/not-a-uuid"), 404, "NotFound")
    unknown = problem(await http.post("/api/workflows", json={"type": "Nope", "id": "x"}), 409, "UnknownWorkflowError")
    assert "greet" in unknown["known"]
    rejected = problem(await http.post(f"{BY_ID}/o/update/add", json={"args": [""]}), 409, "UpdateRejected")
    assert rejected["failure"]["type"] == "ValueError"
    failed = problem(await http.post(f"{BY_ID}/o/update/add", json={"args": ["poison"]}), 409, "UpdateFailed")
    assert failed["failure"] == {"type": "Poison", "message": "not this"}
    problem(await http.get(f"{BY_ID}/o/query/nothing"), 409, "QueryFailed")
    problem(await http.get("/nowhere"), 404, "NotFound")
    wrong = await http.delete("/api/workflows")
    problem(wrong, 405, "MethodNotAllowed")
    assert wrong.headers["allow"] == "GET, POST"
    problem(
        await http.post("/api/workflows", content=b"{", headers={"content-type": "application/json"}), 422, "RequestInvalid"
    )
    hidden = await http.post("/api/workflows", json={"type": "greet", "id": "x", "hunter2": "secret"})
    assert "secret" not in problem(hidden, 422, "RequestInvalid")["detail"]
    problem(await http.get("/api/workflows", params={"cursor": "bad"}), 400, "RequestInvalid")


BAD_STARTS = (
    ("id", ""),
    ("id", "@Counter:x"),
    ("id", "a\x00b"),
    ("id", "x" * 513),
    ("type", ""),
    ("queue", "a@b"),
    ("priority", 1001),
    ("priority", True),
    ("timeout", -1),
    ("timeout", "soon"),
    ("conflict", "maybe"),
    ("reuse", "never"),
    ("retry", {"max_attempts": -1}),
    ("retry", {"nonsense": 1}),
    ("args", "not a list"),
    ("search_attributes", [1]),
    ("surprise", 1),
)


async def test_a_start_that_cannot_be_names_the_field_and_stores_nothing(http):
    for field, value in BAD_STARTS:
        answer = await http.post("/api/workflows", json={"type": "greet", "id": "x", "args": ["a"], field: value})
        assert field in problem(answer, 422, "RequestInvalid")["errors"][0]["where"]
    assert (await http.get("/api/workflows")).json() == {"runs": [], "next": None}


async def test_acts_reach_the_live_attempt_and_say_where(http, fleet):
    first = await start(http, "bank", "b", 1, retry={"max_attempts": 3, "initial": 0.01}, timeout=None)
    broken = await start(http, "broken", "f", "boom", retry={"max_attempts": 2, "initial": 0.01})
    done = await http.get(f"/api/workflows/{broken}/result", params={"wait": "10s"})
    assert done.json()["state"] == "FAILED"
    assert done.json()["failure"]["type"] == "Broken"
    chain = (await http.get(f"/api/workflows/{broken}/run-chain")).json()
    assert [link["link"] for link in chain] == ["start", "retry"]
    closed = problem(await http.post(f"/api/workflows/{broken}/signal/x"), 409, "WorkflowClosed")
    assert closed["execution_id"] == chain[1]["execution_id"]
    # Looking is about the execution that was addressed, acting about the live one.
    assert (await http.get(f"/api/workflows/{broken}")).json()["retried_as"] == chain[1]["execution_id"]
    problem(await http.post(f"/api/workflows/{broken}/rerun"), 409, "RerunRefused")
    rerun = await http.post(f"{BY_ID}/f/rerun", json={"id": "f2"})
    assert rerun.status_code == 201
    cancelled = await http.post(f"/api/workflows/{first}/terminate", json={"reason": "enough"})
    assert cancelled.json() == {"workflow_id": "b", "execution_id": first, "done": True}


async def test_a_signal_tells_where_it_went_only_if_elsewhere(http, fleet):
    """L-8."""
    execution = await start(http, "Order", "o", 5)
    assert (await http.post(f"/api/workflows/{execution}/signal/approve")).json() == {"workflow_id": "o"}
    first = await start(http, "Second", "w", retry={"max_attempts": 2, "initial": 0.01})
    async with asyncio.timeout(20):
        while len(chain := (await http.get(f"/api/workflows/{first}/run-chain")).json()) < 2:
            await asyncio.sleep(0.02)
    routed = (await http.post(f"/api/workflows/{first}/signal/go")).json()
    assert routed == {"workflow_id": "w", "routed_execution_id": chain[1]["execution_id"]}
    done = await http.get(f"/api/workflows/{first}/result", params={"wait": "10s"})
    assert done.json()["result"] == "attempt 2"


async def test_pause_resume_reset_and_activities(http, fleet):
    execution = await start(http, "bank", "b", 1)
    async with asyncio.timeout(20):
        while True:
            described = (await http.get(f"{BY_ID}/b")).json()
            if described["activities"] and described["activities"][0]["attempt"] > 1:
                break
            await asyncio.sleep(0.02)
    seq = described["activities"][0]["seq"]
    assert (await http.get(f"{BY_ID}/b/awaitables")).json()[0]["kind"] == "activity"
    assert (await http.get(f"{BY_ID}/b/stack")).json()[0]["frames"]
    paused = await http.post(f"{BY_ID}/b/pause")
    assert paused.json() == {"workflow_id": "b", "execution_id": execution, "done": True}
    assert (await http.get("/api/workflows", params={"state": "PAUSED"})).json()["runs"][0]["workflow_id"] == "b"
    assert (await http.post(f"{BY_ID}/b/resume")).json()["execution_id"] == execution
    assert (await http.post(f"{BY_ID}/b/activities/{seq}/retry-now")).status_code in (204, 409)
    failed = await http.post(f"{BY_ID}/b/activities/{seq}/fail-now", json={"reason": "give up"})
    assert failed.status_code == 204
    done = (await http.get(f"{BY_ID}/b/result", params={"wait": "10s"})).json()
    assert done["state"] == "FAILED"
    problem(await http.post(f"{BY_ID}/b/activities/{seq}/fail-now"), 404, "ActivityNotFound")
    fork = await http.post(f"{BY_ID}/b/reset", json={"decision": 1})
    assert fork.status_code == 201
    assert fork.json()["execution_id"] != execution


async def test_records_of_a_run(http, fleet):
    await start(http, "greet", "g", "ann")
    await http.get(f"{BY_ID}/g/result", params={"wait": "10s"})
    assert (await http.put(f"{BY_ID}/g/legal-hold", json={"reason": "court"})).status_code == 204
    problem(await http.post(f"{BY_ID}/g/erase-payloads"), 409, "EraseRefused")
    assert (await http.delete(f"{BY_ID}/g/legal-hold")).status_code == 204
    assert (await http.post(f"{BY_ID}/g/triage", json={"note": "looked at it"})).status_code == 204
    note = (await http.get(f"{BY_ID}/g/triage")).json()[0]
    assert (note["note"], note["author"]) == ("looked at it", "anybody on this machine")
    assert (await http.post(f"{BY_ID}/g/erase-payloads")).json()["decisions"] > 0
    assert (await http.get(f"{BY_ID}/g")).json()["erased_at"]


async def test_lists_by_pages_and_counts(http, fleet):
    for n in range(7):
        await start(http, "greet", f"g{n}", "x", search_attributes={"n": n, "kind": "test"})
    await start(http, "Order", "open", 1)
    for n in range(7):
        await http.get(f"{BY_ID}/g{n}/result", params={"wait": "10s"})
    seen, cursor = [], None
    while True:
        page = (
            await http.get("/api/workflows", params={"limit": 3, "type": "greet", **({"cursor": cursor} if cursor else {})})
        ).json()
        seen += [run["workflow_id"] for run in page["runs"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == [f"g{n}" for n in reversed(range(7))]
    assert (await http.get("/api/workflows/counts")).json() == {"COMPLETED": 7, "RUNNING": 1}
    found = (await http.get("/api/workflows", params={"attribute": ["n=3", "kind=test"]})).json()["runs"]
    assert [run["workflow_id"] for run in found] == ["g3"]
    assert (await http.get("/api/workflows", params={"state": "RUNNING"})).json()["runs"][0]["workflow_id"] == "open"
    assert (await http.get("/api/workflows", params={"prefix": "op"})).json()["runs"][0]["workflow_id"] == "open"


async def test_bulk_is_a_dry_run_first(http, fleet):
    for n in range(4):
        await start(http, "Order", f"o{n}", 1)
    problem(await http.post("/api/workflows/bulk", json={"verb": "terminate"}), 400, "ConfigError")
    body = {"verb": "terminate", "filters": {"type": "Order"}}
    dry = (await http.post("/api/workflows/bulk", json=body)).json()
    assert (dry["matched"], dry["done"], dry["dry_run"], len(dry["sample"])) == (4, 0, True, 4)
    wet = (await http.post("/api/workflows/bulk", json={**body, "dry_run": False})).json()
    assert (wet["matched"], wet["done"], wet["failed"]) == (4, 4, [])
    assert (await http.get("/api/workflows/counts")).json().get("TERMINATED") == 4


async def test_entities(http, fleet):
    base = f"/api/entities/Counter/{quote('a/b', safe='')}"
    problem(await http.get(base), 404, "EntityNotFound")
    assert (await http.post(f"{base}/call/add", json={"args": [3], "idempotency_key": "k"})).json() == {
        "state": "completed",
        "result": 3,
    }
    assert (await http.post(f"{base}/call/add", json={"args": [3], "idempotency_key": "k"})).json() == {
        "state": "completed",
        "result": 3,
    }
    down = problem(await http.post(f"{base}/call/add", json={"args": [-1]}), 409, "OperationFailed")
    assert down["failure"]["type"] == "Down"
    problem(await http.post(f"{base}/call/nope"), 409, "OperationRejected")
    assert (await http.post(f"{base}/query/double")).json() == {"result": 6}
    shown = (await http.get(base)).json()
    assert (shown["key"], shown["state"]) == ("a/b", {"n": 3, "tags": []})
    assert (await http.get("/api/entities")).json() == {"Counter": 1}
    await http.post("/api/entities/Counter/c/call/add", json={"args": [1]})
    page = (await http.get("/api/entities/Counter", params={"limit": 1})).json()
    rest = (await http.get("/api/entities/Counter", params={"limit": 5, "cursor": page["next"]})).json()
    assert [e["key"] for e in page["entities"] + rest["entities"]] == ["a/b", "c"]
    rows = (await http.post(f"{base}/sql", json={"sql": "SELECT state ->> '$.n' AS n FROM entity"})).json()
    assert (rows["columns"], rows["rows"], rows["source"]) == (["n"], [[3]], "resident")
    token = (await http.get(f"{base}/token")).json()
    total = await http.post(
        "/api/entities/Counter/sql", json={"sql": "SELECT sum(state ->> '$.n') AS n FROM entity", "after": [token]}
    )
    assert total.json()["rows"] == [[4]]
    assert total.json()["complete"]
    refused = problem(await http.post(f"{base}/sql", json={"sql": "DROP TABLE entity"}), 400, "SqlRefused")
    assert refused["detail"]
    wrong = problem(await http.post(f"{base}/sql", json={"sql": "SELECT nope FROM entity"}), 400, "SqlError")
    assert "nope" in wrong["detail"]
    assert (await http.delete(base)).status_code == 200
    problem(await http.get(base), 404, "EntityNotFound")


async def test_the_fleet(http, fleet):
    found = (await http.get("/api/workers")).json()
    assert [w["queue"] for w in found] == ["default"]
    assert found[0]["config"]["owner_entity_sql"] is True
    assert (await http.get(f"/api/workers/{found[0]['worker_id']}")).json()["pid"] == found[0]["pid"]
    problem(await http.get("/api/workers/00000000-0000-0000-0000-000000000001"), 404, "WorkerNotFound")
    owned = (await http.get("/api/partitions")).json()
    assert set(owned["pools"][0]["owners"]) == {found[0]["worker_id"]}
    assert len(owned["pools"][0]["owners"]) == 512
    assert "active_sticky_runs" in (await http.get("/api/sticky-figures")).json()
    assert {"ok"} <= {f["level"] for f in (await http.get("/api/doctor")).json()}


async def test_the_owner_switch(http):
    assert (await http.post("/api/owner-mode/disable")).json() == {"mode": "sticky", "changed": True}
    assert (await http.post("/api/owner-mode/disable")).json() == {"mode": "sticky", "changed": False}
    refused = problem(await http.post("/api/owner-mode/enable"), 409, "OwnerModeRefused")
    assert refused["reasons"]


async def test_dead_letters(http, worker, monkeypatch):
    from harvest import workflow

    @workflow.defn(name="stuck")
    async def stuck() -> None:
        await asyncio.get_running_loop().create_connection(lambda: None, "localhost", 1)

    async with worker(stuck):
        execution = await start(http, "stuck", "s")
        async with asyncio.timeout(60):
            while not (found := (await http.get("/api/dead-letters")).json()["letters"]):
                await asyncio.sleep(0.05)
        assert found[0]["execution_id"] == execution
        assert (await http.get(f"/api/dead-letters/{execution}")).json()["workflow_id"] == "s"
        assert (await http.get("/api/dead-letters/causes")).json()[0]["count"] == 1
        assert (await http.post(f"/api/dead-letters/{execution}/redrive")).status_code == 204
        async with asyncio.timeout(60):
            while not (await http.get("/api/dead-letters")).json()["letters"]:
                await asyncio.sleep(0.05)
        assert (await http.post(f"/api/dead-letters/{execution}/discard", json={"reason": "x"})).status_code == 204
        problem(await http.get(f"/api/dead-letters/{execution}"), 404, "WorkflowNotFound")


async def test_ids_with_slashes_are_never_mistaken(http, fleet):
    """An id that ends like a route is refused rather than taken for another run's."""
    await start(http, "greet", "a", "x")
    execution = await start(http, "greet", "a/history", "y")
    await http.get(f"/api/workflows/{execution}/result", params={"wait": "10s"})
    await http.get(f"{BY_ID}/a/result", params={"wait": "10s"})
    assert (await http.get(f"{BY_ID}/a/history")).json()["events"][0]["type"] == "RunCompleted"
    assert (await http.get(f"{BY_ID}/a/query/result")).status_code == 409  # a query of that name, not the result of `a/query`
    answer = await http.get(f"{BY_ID}/{quote('a/history', safe='')}")
    assert "execution id" in problem(answer, 404, "NotFound")["detail"]
    assert (await http.get(f"/api/workflows/{execution}")).json()["workflow_id"] == "a/history"
    await start(http, "greet", "50%2Foff", "z")
    assert (await http.get(f"{BY_ID}/{quote('50%2Foff', safe='')}")).json()["workflow_id"] == "50%2Foff"


def events_of(text: str) -> list[tuple[str, str | None, dict]]:
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and not line.startswith(":"))
        if "event" in fields:
            found.append((fields["event"], fields.get("id"), json.loads(fields["data"])))
    return found


async def test_events_of_a_run_are_streamed_and_resumed(door, fleet):
    async with listening(door) as address, httpx.AsyncClient(base_url=address, timeout=30) as http:
        execution = await start(http, "Order", "o", 9)
        seen, approved = [], False
        async with http.stream("GET", f"{BY_ID}/o/events") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            text = ""
            async for piece in stream.aiter_text():
                text += piece
                seen = events_of(text)
                if not approved and seen:
                    approved = True
                    await http.post(f"{BY_ID}/o/signal/approve")
        kinds = [kind for kind, _, _ in seen]
        assert "SignalReceived" in kinds
        assert kinds[-2:] == ["RunCompleted", "end"]
        names = [id for _, id, _ in seen if id]
        ids = [int(id.removeprefix(f"{execution}:")) for id in names]
        assert ids == list(range(1, len(ids) + 1))
        resumed = await http.get(f"/api/workflows/{execution}/events", headers={"Last-Event-ID": names[1]})
        assert [id for _, id, _ in events_of(resumed.text) if id] == names[2:]
        over = await http.get(f"/api/workflows/{execution}/events", headers={"Last-Event-ID": names[-1]})
        assert over.status_code == 204


async def test_changes_reach_every_viewer_over_one_listen(door, fleet, dsn):
    import asyncpg

    async with listening(door) as address, httpx.AsyncClient(base_url=address, timeout=30) as http:

        async def look(watching: asyncio.Event) -> str:
            async with http.stream("GET", "/api/changes") as stream:
                text = ""
                async for piece in stream.aiter_text():
                    watching.set()
                    text += piece
                    for kind, _, data in events_of(text):
                        if kind == "runs" and any(r["workflow_id"] == "g" and r["state"] == "COMPLETED" for r in data["runs"]):
                            return "seen"
            return "ended"

        ready = [asyncio.Event() for _ in range(5)]
        viewers = [asyncio.create_task(look(event)) for event in ready]
        for event in ready:
            await event.wait()
        async with asyncio.timeout(20):
            while True:
                n = 0
                await start(http, "greet", "g", "x", conflict="terminate_existing")
                done, _ = await asyncio.wait(viewers, timeout=1)
                n += 1
                if len(done) == len(viewers):
                    break
        assert [task.result() for task in viewers] == ["seen"] * 5
        connection = await asyncpg.connect(dsn)
        listening_now = await connection.fetchval(
            "select count(*) from pg_stat_activity where datname = current_database() and query ilike 'listen%'"
        )
        await connection.close()
        assert listening_now <= 2  # the server's and the worker's


async def test_what_postgres_cannot_say_is_shown_all_the_same(http, fleet):
    """A NUL in a payload, deep nesting: history, stream and pages hold."""
    await start(http, "greet", "nul", "a\x00b")
    done = await http.get(f"{BY_ID}/nul/result", params={"wait": "10s"})
    assert done.json()["result"] == "hello a\x00b"
    assert (await http.get(f"{BY_ID}/nul/history")).json()["events"][-1]["event"]["result"] == "hello a\x00b"
    streamed = events_of((await http.get(f"{BY_ID}/nul/events")).text)
    assert [kind for kind, _, _ in streamed] == ["RunCompleted", "end"]
    deep: object = "x"
    for _ in range(400):
        deep = [deep]
    await start(http, "greet", "deep", deep)
    await http.get(f"{BY_ID}/deep/result", params={"wait": "10s"})
    for path in (f"{BY_ID}/nul", f"{BY_ID}/deep", f"{BY_ID}/deep/history", "/run?id=nul", "/run?id=deep"):
        assert (await http.get(path)).status_code == 200, path


BAD_QUESTIONS = (
    ("/api/workflows", {"attribute": 'a="\\u0000"'}),
    ("/api/workflows", {"attribute": "a=" + "[" * 5000}),
    ("/api/workflows", {"after": "0001-01-01T00:00:00+14:00"}),
    ("/api/workflows", {"before": "9999-12-31T23:59:59-14:00"}),
    ("/api/workflows", {"cursor": "W1tbW1tbW1tb"}),
    ("/api/entities/Counter", {"cursor": "WyJcdTAwMDAiXQ"}),
    ("/api/workflows/by-id/x/query/@sql", {}),
    ("/", {"type": "\x00"}),
    ("/entities", {"type": "Counter", "prefix": "\x00"}),
    ("/run", {"id": "x", "after": "99999999999999999999"}),
    ("/run", {"id": "x", "after": "x"}),
)


async def test_no_question_breaks_it(http):
    for path, params in BAD_QUESTIONS:
        answer = await http.get(path, params=params)
        assert 400 <= answer.status_code < 500, (path, params, answer.status_code)
        page = not path.startswith("/api")
        assert answer.headers["content-type"].startswith("text/html" if page else "application/problem+json"), path
    for path in ("/api/workflows/by-id/x/resume", "/api/owner-mode/enable"):
        nested = await http.post(path, content=b"[" * 100_000, headers={"content-type": "application/json"})
        assert nested.status_code in (200, 400, 404, 409)


async def test_a_stream_by_id_goes_on_with_the_next_attempt(http, fleet):
    first = await start(http, "Second", "s", retry={"max_attempts": 2, "initial": 0.01})
    async with asyncio.timeout(20):
        while len(chain := (await http.get(f"{BY_ID}/s/run-chain")).json()) < 2:
            await asyncio.sleep(0.02)
    seen = events_of((await http.get(f"/api/workflows/{first}/events")).text)
    await http.post(f"{BY_ID}/s/signal/go")
    await http.get(f"{BY_ID}/s/result", params={"wait": "10s"})
    last = [id for _, id, _ in seen if id][-1]
    then = events_of((await http.get(f"{BY_ID}/s/events", headers={"Last-Event-ID": last})).text)
    assert {id.partition(":")[0] for _, id, _ in then if id} == {chain[1]["execution_id"]}
    assert then[-2][0] == "RunCompleted"
    of_another = await http.get(f"/api/workflows/{chain[1]['execution_id']}/events", headers={"Last-Event-ID": last})
    assert (of_another.status_code, of_another.json()["error"]) == (400, "RequestInvalid")
    gone = f"{new_id()}:3"  # of a run that is no more: the newest one from its beginning
    anew = events_of((await http.get(f"{BY_ID}/s/events", headers={"Last-Event-ID": gone})).text)
    assert anew == then


async def test_a_page_that_was_looked_at_while_no_worker_answered_tells_the_truth_soon(http, door, worker):
    async with worker(flows.Order, flows.charge):
        handle = await door.start(flows.Order, 1, id="o")
        assert await handle.query("status") == "0 items"
    assert "o" in (await http.get("/run", params={"id": "o"})).text  # takes its time: nobody says where it stands
    async with worker(flows.Order, flows.charge):
        await handle.signal("approve")
        assert await handle.result(timeout=20) == "paid 1"
        async with asyncio.timeout(20):
            while "state-completed" not in (await http.get("/run", params={"id": "o"})).text:
                await asyncio.sleep(0.1)


async def test_a_bulk_act_tells_what_no_worker_has_done_yet(http, door):
    for n in range(20):
        await door.start(flows.Order, n, id=f"o{n}")
    body = {"verb": "terminate", "filters": {"prefix": "o"}, "dry_run": False, "timeout": 0.2}
    report = (await http.post("/api/workflows/bulk", json=body)).json()
    assert (report["matched"], report["done"], report["stored"], report["failed"]) == (20, 0, 20, [])
    await door.start(flows.Order, 1, id="o-newer")
    again = {**body, "dry_run": True, "filters": {"prefix": "o", "before": report["before"]}}
    assert (await http.post("/api/workflows/bulk", json=again)).json()["matched"] == 20
    nothing = await http.post("/api/workflows/bulk", json={**body, "filters": {"search_attributes": {}}})
    assert (nothing.status_code, nothing.json()["field"]) == (400, "search_attributes")


async def test_a_misspelt_filter_is_no_filter(http, fleet):
    await start(http, "greet", "g", "x")
    answer = await http.get("/api/workflows", params={"status": "FAILED"})
    assert "known: after, attribute, before" in problem(answer, 422, "RequestInvalid")["hint"]
    problem(await http.post(f"{BY_ID}/g/cancel", params={"now": "1"}), 422, "RequestInvalid")
    assert (await http.get("/api/workflows", params={"state": "failed"})).json()["runs"] == []
