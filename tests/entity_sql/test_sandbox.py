"""E-5, E-6: whatever is asked, the answer comes in time and the next query works."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import time
from pathlib import Path

import pytest
from harvest.entity_sql import Document, Limits, Pool, Result, SqlBusy, SqlError, SqlOverrun, SqlRefused
from harvest.entity_sql.wire import plain

from tests.entity_sql.corpus import ERRORS, FINE, OVERRUN, REFUSED

STATE = {"items": [{"sku": f"s{n}", "n": n} for n in range(40)], "total": 12.5}
CART = Document("Cart", "c7", json.dumps(STATE).encode(), 7, "2026-11-30T12:00:00Z")
FAST = Limits(seconds=2.0)


@pytest.fixture
async def pool():
    async with Pool(FAST) as opened:
        yield opened


def test_the_corpus_is_large_enough():
    assert len(REFUSED) + len(OVERRUN) + len(ERRORS) >= 100


async def outcome(pool: Pool, sql: str, params=()) -> tuple[str, str, object]:
    try:
        return "rows", "", await pool.query(CART, sql, params)
    except SqlOverrun as exc:
        return "overrun", exc.limit, exc
    except SqlRefused as exc:
        return "refused", "", exc
    except SqlError as exc:
        return "error", "", exc


async def test_what_only_reads_is_the_only_thing_answered(pool):
    for sql in REFUSED:
        kind, _, exc = await outcome(pool, sql)
        # A function or table that this SQLite does not even have is an error of its own.
        assert kind == "refused" or (kind == "error" and "no such" in exc.message), (sql, kind, exc)
    assert (await pool.query(CART, "SELECT count(*) FROM entity")).rows == [[1]]
    assert pool.killed == 0


@pytest.mark.parametrize("number", range(len(OVERRUN)))
async def test_every_bound_holds(pool, number):
    sql, limit = OVERRUN[number]
    started = time.monotonic()
    kind, which, exc = await outcome(pool, sql)
    if kind == "rows":  # it may also be quick enough: what counts is that it was bounded
        assert limit == "" and len(json.dumps([[plain(v) for v in row] for row in exc.rows])) < 17_000_000, sql
    else:
        assert kind in ("overrun", "error") and (not limit or which == limit), (sql, kind, which, exc)
    assert time.monotonic() - started < 60  # (far beyond what it is allowed: a hang is told from a slow machine)
    assert (await pool.query(CART, "SELECT key FROM entity")).rows == [["c7"]]


async def test_mistakes_are_named(pool):
    for sql in ERRORS:
        kind, _, exc = await outcome(pool, sql)
        assert kind in ("error", "refused"), (sql, kind, exc)
    assert pool.killed == 0


async def test_what_is_harmless_works(pool):
    for case in FINE:
        kind, _, result = await outcome(pool, case.sql, case.params)
        if isinstance(case.outcome, str):
            assert kind == case.outcome, (case.sql, kind, result)
        else:
            assert kind == "rows" and result.rows == case.outcome, (case.sql, result)


@pytest.mark.parametrize(
    ("sql", "line", "column", "said"),
    [
        ("SELECT pric FROM entity", 1, 8, r"state ->> '\$\.pric'"),
        ("SELECT kei FROM entity", 1, 8, "did you mean key"),
        ("SELECT key\nFROM entity\nWHERE ü = 'ä' AND nope = 1", 3, 7, "no such column: ü"),
        ("SELECT key FROM carts", 1, 17, "the one table is entity"),
        ("SELECT key,\n  load_extension('x') FROM entity", 2, 3, "not available"),
        ("SELECT 1;\n SELECT 2", 2, 2, "second one"),
        ("SELECT key FROM entity GRUOP BY key", 1, 30, "syntax error"),
    ],
)
async def test_errors_point_at_the_place(pool, sql, line, column, said):
    with pytest.raises(SqlError, match=said) as caught:
        await pool.query(CART, sql)
    assert (caught.value.line, caught.value.column) == (line, column)


@pytest.mark.parametrize(
    ("sql", "params", "said"),
    [
        ("", (), "empty"),
        ("  \n", (), "empty"),
        (None, (), "empty"),
        ("SELECT '\x00'", (), "NUL"),
        ("SELECT '\ud800'", (), "UTF-8"),
        ("SELECT 1 -- " + "x" * 70_000, (), "65,536"),
        ("SELECT ?", (2**64,), "no value of SQL"),
        ("SELECT ?", ([1],), "no value of SQL"),
        ("SELECT ?", ("x" * 17_000_000,), "parameters"),
    ],
)
async def test_what_is_refused_before_it_is_sent(pool, sql, params, said):
    with pytest.raises(SqlError, match=said):
        await pool.query(CART, sql, params)
    assert not pool._free  # no process was started for it


async def test_the_caller_is_never_held_up_and_memory_stays(pool):
    """While four queries run wild, the loop turns, and this process does not grow."""
    wild = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM t) SELECT count(*) FROM t a, t b"
    await asyncio.gather(*(pool.query(CART, "SELECT 1") for _ in range(4)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    work = [asyncio.create_task(outcome(pool, sql)) for sql in [wild] * 4 + [sql for sql, _ in OVERRUN[5:15]]]
    longest, last = 0.0, time.monotonic()
    while not all(task.done() for task in work):
        await asyncio.sleep(0.005)
        now = time.monotonic()
        longest, last = max(longest, now - last), now
    assert {kind for kind, _, _ in [task.result() for task in work]} <= {"overrun", "error"}
    assert longest < 4.0  # one of them is stopped after five
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


async def test_a_query_that_cannot_be_interrupted_is_killed():
    async with Pool(Limits(seconds=0.3)) as pool:
        held = (
            "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM t LIMIT 99)"
            " SELECT max(instr(printf('%.*c', 1000000, 'a'), printf('%.*c', 400000, 'a') || 'b')) FROM t"
        )
        with pytest.raises(SqlOverrun) as caught:
            await pool.query(CART, held)
        assert caught.value.limit == "seconds"
        assert (await pool.query(CART, "SELECT 1")).rows == [[1]]


async def test_a_child_that_is_killed_from_outside_is_replaced(pool):
    await pool.query(CART, "SELECT 1")
    os.kill(pool._free[0].process.pid, 9)
    pool._free[0].process.wait()
    assert (await pool.query(CART, "SELECT 2")).rows == [[2]]


async def test_who_waits_is_served_in_turn_or_told():
    slow = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM t) SELECT max(n) FROM t"
    limits = Limits(steps=10**12, seconds=0.5, wait=5, children=2)
    async with Pool(limits) as pool:
        kinds = [kind for kind, _, _ in await asyncio.gather(*(outcome(pool, slow) for _ in range(6)))]
        assert kinds == ["overrun"] * 6 and len(pool._free) <= 2
    async with Pool(Limits(steps=10**12, seconds=1.0, wait=0.1, children=1)) as pool:
        first = asyncio.create_task(outcome(pool, slow))
        await asyncio.sleep(0)
        with pytest.raises(SqlBusy):
            await pool.query(CART, "SELECT 1")
        await first
    with pytest.raises(SqlBusy):
        await pool.query(CART, "SELECT 1")


async def test_a_caller_that_leaves_takes_its_query_along(pool):
    task = asyncio.create_task(
        pool.query(CART, "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM t) SELECT max(n) FROM t")
    )
    while pool._busy == 0:
        await asyncio.sleep(0)
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await pool.query(CART, "SELECT 1")).rows == [[1]]


async def test_a_child_has_no_files_and_no_environment(pool, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "s3cret")
    await pool.query(CART, "SELECT 1")
    pid = pool._free[0].process.pid
    assert b"s3cret" not in Path(f"/proc/{pid}/environ").read_bytes()
    limits = Path(f"/proc/{pid}/limits").read_text()
    assert any(line.startswith("Max file size") and line.split()[3] == "0" for line in limits.splitlines())
    names = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    assert all(name.startswith("socket:") or name == "/dev/null" for name in names)


def test_rows_by_name_and_as_json():
    result = Result(["a", "a", "b"], [[1, 2, b"\x00"]])
    assert result.dicts() == [{"a": 1, "a:2": 2, "b": b"\x00"}]
    assert [plain(v) for v in (None, 2**60, float("inf"), float("-inf"), b"\x00", "x")] == [
        None, 2**60, "Infinity", "-Infinity", {"base64": "AA=="}, "x",
    ]  # fmt: skip


async def test_what_a_query_reads(pool):
    reading = await pool.read("SELECT state ->> '$.a.b', json_extract(state, '$.c') FROM entity, json_each(state, '$.items')")
    assert reading.fields == ["a.b", "c", "items"] and "JSON_EXTRACT_PATH_TEXT" in reading.postgres
    assert (await pool.read("SELECT state FROM entity")).fields == ["*"]
    assert (await pool.read("SELECT count(*) FROM entity")).fields == []
    with pytest.raises(SqlError):
        await pool.read("SELECT FROM WHERE")
