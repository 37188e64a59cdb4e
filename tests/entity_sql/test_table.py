"""Many documents as one table, and a query over several tables as parts (the merged answer is the answer over all)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random

import pytest
from harvest.entity_sql import Document, Limits, Pool, SqlBusy, SqlError, SqlOverrun, SqlRefused, Table, by_name
from harvest.entity_sql.pool import bounds_of

LIMITS = Limits()


def plane(n: int) -> Document:
    state = {
        "carrier": "AB"[n % 2] + str(n % 5),
        "miles": n * 10,
        "late": None if n % 7 == 0 else n % 11,
        "legs": list(range(n % 4)),
    }
    return Document("Plane", f"N{n:03}", json.dumps(state).encode(), n, f"2026-01-{n % 28 + 1:02}")


async def over_parts(pool: Pool, tables: list[Table], sql: str, params=()) -> list[list[object]]:
    plan = await pool.split(sql)
    rows = []
    for table in tables:
        rows += (await table.ask(plan.partial, params, bounds_of(LIMITS, 0))).rows
    return rows if plan.rows_alone else (await pool.merge(plan, rows)).rows


@pytest.fixture
async def fleet():
    """The same documents in three tables, and all of them in one."""
    tables = [Table("Plane", indexes=["carrier"], max_bytes=10**7) for _ in range(3)]
    whole = Table("Plane", max_bytes=10**7)
    dice = random.Random(3)
    for n in range(200):
        dice.choice(tables).put(plane(n))
        whole.put(plane(n))
    async with Pool() as pool:
        yield pool, tables, whole
        for table in [*tables, whole]:
            await table.close()


QUERIES = [
    ("SELECT key FROM entity", False),
    ("SELECT key, state ->> '$.miles' AS miles FROM entity WHERE state ->> '$.carrier' = 'A0'", False),
    ("SELECT key FROM entity ORDER BY key LIMIT 7", True),
    ("SELECT key FROM entity ORDER BY state ->> '$.miles' DESC LIMIT 5 OFFSET 3", True),
    ("SELECT key AS k, state ->> '$.miles' AS m FROM entity ORDER BY m DESC, k LIMIT 5", True),
    ("SELECT DISTINCT state ->> '$.carrier' AS c FROM entity ORDER BY c", True),
    ("SELECT DISTINCT state ->> '$.late' FROM entity", False),
    ("SELECT count(*) FROM entity", True),
    ("SELECT count(*), count(state ->> '$.late'), sum(state ->> '$.miles'), avg(state ->> '$.late') FROM entity", True),
    ("SELECT min(key), max(state ->> '$.miles'), total(state ->> '$.late') FROM entity", True),
    ("SELECT count(*) FROM entity WHERE 0", True),
    ("SELECT sum(state ->> '$.miles') FROM entity WHERE key = 'none'", True),
    ("SELECT state ->> '$.carrier' AS c, count(*) AS n FROM entity GROUP BY c ORDER BY c", True),
    ("SELECT state ->> '$.carrier', avg(state ->> '$.late') FROM entity GROUP BY 1 ORDER BY 1", True),
    ("SELECT state ->> '$.carrier' AS c, count(*) AS n FROM entity GROUP BY c HAVING n > 19 AND max(key) > 'N100' ORDER BY n DESC, c",
     True),
    ("SELECT state ->> '$.carrier' AS c, sum(state ->> '$.miles') / count(*) + 1 FROM entity GROUP BY c ORDER BY c DESC LIMIT 3", True),
    ("SELECT state ->> '$.carrier' || '!' AS c, count(*) FROM entity GROUP BY state ->> '$.carrier' ORDER BY 1", True),
    ("SELECT count(DISTINCT state ->> '$.carrier'), count(*) FROM entity", True),
    ("SELECT state ->> '$.carrier' AS c, count(DISTINCT state ->> '$.late') FROM entity GROUP BY c ORDER BY c", True),
    ("SELECT median(state ->> '$.miles'), sum(DISTINCT state ->> '$.late') FROM entity", True),
    ("SELECT count(*) FILTER (WHERE state ->> '$.late' > 5) FROM entity", True),
    ("SELECT value, count(*) FROM entity, json_each(state, '$.legs') GROUP BY value ORDER BY value", True),
    ("SELECT key, value FROM entity, json_each(state, '$.legs') WHERE value = 2 ORDER BY entity.key LIMIT 4", True),
    ("SELECT max(min(state ->> '$.miles', 500)) FROM entity", True),
    ("SELECT state ->> '$.carrier' FROM entity GROUP BY 1 ORDER BY count(*) DESC, 1", True),
    ("SELECT key, CASE WHEN state ->> '$.late' > 5 THEN 'late' ELSE 'fine' END AS v FROM entity ORDER BY v, key LIMIT 9", True),
    ("SELECT CASE WHEN state ->> '$.late' > 5 THEN 'late' ELSE 'fine' END AS v, count(*) FROM entity GROUP BY v ORDER BY v", True),
    # aliases: a real column of the name comes first, but for a whole term of ORDER BY
    ("SELECT substr(key, 1, 1) AS key, count(*) AS n FROM entity GROUP BY key ORDER BY n LIMIT 3", True),
    ("SELECT state ->> '$.carrier' AS type, count(*) FROM entity GROUP BY type", True),
    ("SELECT count(*) AS key FROM entity GROUP BY type HAVING key > 100", True),
    ("SELECT key AS k FROM entity WHERE k = 'N003'", True),
    ("SELECT key AS k FROM entity ORDER BY lower(k) DESC LIMIT 3", True),
    ("SELECT state ->> '$.miles' AS m, count(*) FROM entity GROUP BY m HAVING m = 10", True),
    ("SELECT state ->> '$.late' AS a, count(*) FROM entity GROUP BY a + 1 ORDER BY 2, 1", True),
    # subqueries over what an entity has inside
    ("SELECT (SELECT count(*) FROM json_each('[1,2]')) FROM entity ORDER BY key LIMIT 3", True),
    ("SELECT key, (SELECT max(value) FROM json_each(state, '$.legs')) FROM entity ORDER BY key LIMIT 9", True),
    ("SELECT (SELECT group_concat(value) FROM json_each(state, '$.legs')) AS g, count(*) FROM entity GROUP BY g ORDER BY g", True),
    # limits of every kind
    ("SELECT key FROM entity ORDER BY key LIMIT -1 OFFSET 195", True),
    ("SELECT key FROM entity ORDER BY key LIMIT 5 OFFSET -3", True),
    ("SELECT key FROM entity ORDER BY key LIMIT 2 + 1 OFFSET 1 + 1", True),
    ("SELECT key FROM entity ORDER BY key LIMIT 0", True),
    # JSON stays JSON, fields that look like paths are fields
    ("SELECT json_group_array(state -> '$.legs') FROM entity WHERE key = 'N003'", True),
    ("SELECT json_object('l', state -> '$.legs'), count(*) FROM entity GROUP BY state -> '$.legs' ORDER BY 2", True),
    ("SELECT state ->> 'a.b', state ->> 'legs[0]', state ->> 'miles' FROM entity ORDER BY key LIMIT 3", True),
    ("SELECT avg(event_id + 4611686018427387904) FROM entity", True),
    ("SELECT key FROM entity WHERE key IN (SELECT value FROM json_each('[\"N001\", \"N002\"]')) ORDER BY key", True),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "ordered"), QUERIES, ids=[sql[:60] for sql, _ in QUERIES])
async def test_parts_add_up_to_the_whole(fleet, sql, ordered):
    pool, tables, whole = fleet
    if "key, value" in sql or "IN (SELECT" in sql or "json_each(state, '$.legs')" in sql:
        sql = sql.replace("SELECT key, value", "SELECT entity.key, value").replace("GROUP BY value", "GROUP BY value")
    merged = await over_parts(pool, tables, sql)
    direct = (await whole.ask(sql, (), bounds_of(LIMITS, 0))).rows
    if not ordered:
        merged, direct = sorted(merged, key=repr), sorted(direct, key=repr)
    assert merged == direct


@pytest.mark.parametrize(
    ("sql", "params"),
    [
        ("SELECT state ->> ? AS c, count(*) FROM entity WHERE key < ? GROUP BY 1 HAVING count(*) > ? ORDER BY 1 LIMIT ?",
         ("$.carrier", "N100", 9, 4)),
        ("SELECT key FROM entity WHERE key > ?2 AND key < ?1 ORDER BY key LIMIT ?3", ("N150", "N100", 5)),
        ("SELECT key FROM entity WHERE key > :a AND '?' <> :b ORDER BY key LIMIT :c", {"a": "N100", "b": "x", "c": 3}),
    ],
)  # fmt: skip
async def test_parameters_reach_the_part_that_has_them(fleet, sql, params):
    pool, tables, whole = fleet
    plan = await pool.split(sql)
    rows = []
    for table in tables:
        rows += (await table.ask(plan.partial, by_name(params), bounds_of(LIMITS, 0))).rows
    merged = await pool.merge(plan, rows, params)
    assert merged.rows and merged.rows == (await whole.ask(sql, params, bounds_of(LIMITS, 0))).rows


async def test_a_state_that_is_used_whole_is_text(fleet):
    pool, tables, _ = fleet
    sql = "SELECT count(*) FROM entity WHERE json_valid(state) AND state LIKE '%carrier%' AND length(state) > 10"
    assert await over_parts(pool, tables, sql) == [[200]]


async def test_columns_are_called_what_they_were_called(fleet):
    pool, _, _ = fleet
    assert (await pool.split("SELECT count(*), state->>'a' FROM entity GROUP BY 2")).columns == ["count(*)", "state->>'a'"]


async def test_a_state_that_is_selected_is_json(fleet):
    pool, tables, _ = fleet
    rows = await over_parts(pool, tables, "SELECT * FROM entity ORDER BY key LIMIT 1")
    assert rows[0][:2] == ["Plane", "N000"] and json.loads(rows[0][2]) == json.loads(plane(0).state)


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("WITH x AS (SELECT 1) SELECT * FROM x, entity", "WITH"),
        ("SELECT key FROM entity UNION SELECT key FROM entity", "UNION"),
        ("SELECT rank() OVER (ORDER BY key) FROM entity", "window"),
        ("SELECT (SELECT count(*) FROM entity) FROM entity", "subquery"),
        ("SELECT key FROM entity WHERE key = (SELECT max(key) FROM entity)", "subquery"),
        ("SELECT a.key FROM entity a JOIN entity b ON a.key = b.key", "itself"),
        ("SELECT 1", "FROM entity"),
        ("DELETE FROM entity", "only reads"),
        ("PRAGMA hard_heap_limit", "only reads"),
        ("SELECT key, count(*) FROM entity", "beside an aggregate"),
        ("SELECT 1; SELECT 2", "one statement"),
        ("VALUES (1)", "only SELECT"),
        ("SELECT key FROM entity ORDER BY key COLLATE NOCASE", "COLLATE"),
        ("SELECT count(*) FROM json_each('[1]') j LEFT JOIN entity ON entity.key = j.value", "LEFT JOIN"),
        ("SELECT CAST(updated_at AS DATE) FROM entity", "CAST to DATE"),
        ("SELECT entity.* FROM entity", "name the columns"),
    ],
)
async def test_what_would_mean_something_else_in_parts_is_refused(fleet, sql, said):
    pool, _, _ = fleet
    with pytest.raises(SqlRefused, match=said):
        await pool.split(sql)


async def test_a_table_follows_its_documents_and_survives_its_child():
    table = Table("Plane", indexes=["carrier"], max_bytes=2_000)
    bounds = bounds_of(LIMITS, 0)
    try:
        for n in range(10):
            table.put(plane(n))
        assert (await table.ask("SELECT count(*) FROM entity", (), bounds)).rows == [[10]]
        table.drop("N003")
        table.drop("N003")
        table.put(Document("Plane", "N004", b'{"miles": -1}', 99, ""))
        asked = "SELECT count(*), sum(state ->> '$.miles') FROM entity"
        assert (await table.ask(asked, (), bounds)).rows == [[9, 10 * (45 - 3 - 4) - 1]]
        os.kill(table._child.process.pid, 9)
        table._child.process.wait()
        assert (await table.ask(asked, (), bounds)).rows == [[9, 10 * (45 - 3 - 4) - 1]]
        plan = "SELECT key FROM entity WHERE state ->> '$.carrier' = ?"
        assert (await table.ask(plan, ["A0"], bounds)).rows == [["N000"]]
        with pytest.raises(SqlRefused):
            await table.ask("DROP TABLE entity", (), bounds)
        with pytest.raises(SqlOverrun):
            await table.ask("WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM t) SELECT max(n) FROM t", (), bounds)
        answers = await asyncio.gather(*(table.ask(asked, (), bounds) for _ in range(5)))
        assert {tuple(a.rows[0]) for a in answers} == {(9, 379)}
        for n in range(100):
            table.put(plane(n))
        with pytest.raises(SqlOverrun, match="the most is 2,000"):
            await table.ask(asked, (), bounds)
    finally:
        await table.close()


SLOW = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM t) SELECT max(n) FROM t, entity"


def small_table(**limits) -> Table:
    table = Table("Plane", max_bytes=10**7, limits=Limits(**limits))
    for n in range(5):
        table.put(plane(n))
    return table


async def test_a_table_that_is_closed_while_it_is_asked():
    """Who asks is told, who waits too, nobody else is harmed, and no child is left."""
    table = small_table(steps=2**31 - 1, seconds=5)
    bounds = bounds_of(table.limits, 0)
    async with Pool() as pool:
        asking = [asyncio.create_task(table.ask(SLOW, (), bounds)) for _ in range(2)]
        while table._child is None or not table._child.asked:
            await asyncio.sleep(0.01)
        await table.close()
        assert (await pool.query(plane(1), "SELECT 7")).rows == [[7]]
        for task in asking:
            with pytest.raises(SqlError):
                await task
        with pytest.raises(SqlError, match="closed"):
            await table.ask("SELECT 1 FROM entity", (), bounds)
        assert table._child is None


async def test_what_one_question_limits_does_not_limit_what_comes_after():
    table = small_table(steps=20_000)
    bounds = bounds_of(table.limits, 0)
    try:
        for _ in range(3):
            assert (await table.ask("SELECT count(*) > 0 FROM entity", (), bounds)).rows == [[1]]
            for n in range(3_000):
                table.put(plane(n))
            table.put(Document("Plane", "large", json.dumps({"pad": "x" * 2_500_000}).encode()))
        assert (await table.ask("SELECT count(*) FROM entity", (), bounds)).rows == [[3_001]]
    finally:
        await table.close()


async def test_one_odd_document_harms_nobody_else():
    table = small_table()
    for key, state in (
        ("empty", b""),
        ("broken", b"{"),
        ("deep", b'{"a":' + b"[" * 1500 + b"]" * 1500 + b"}"),
        ("list", b"[1]"),
    ):
        table.put(Document("Plane", key, state))
    try:
        assert (await table.ask("SELECT count(*) FROM entity", (), bounds_of(LIMITS, 0))).rows == [[9]]
        some = "SELECT state ->> '$.miles' FROM entity WHERE key = 'N003'"
        assert (await table.ask(some, (), bounds_of(LIMITS, 0))).rows == [[30]]
    finally:
        await table.close()


async def test_a_first_question_that_is_given_up():
    table = small_table()
    try:
        for delay in (0, 0.005, 0.02, 0.04, 0.06):
            asking = asyncio.create_task(table.ask("SELECT 1 FROM entity", (), bounds_of(LIMITS, 0)))
            await asyncio.sleep(delay)
            asking.cancel()
            await asyncio.wait({asking})
            assert len((await table.ask("SELECT 1 FROM entity", (), bounds_of(LIMITS, 0))).rows) == 5
            await table._end()
    finally:
        await table.close()


async def test_there_are_never_more_children_than_allowed():
    async with Pool(Limits(children=1, seconds=0.2, wait=0.2, steps=2**31 - 1)) as pool:
        most = 0

        async def loop(sql: str) -> None:
            nonlocal most
            for _ in range(15):
                with contextlib.suppress(SqlBusy, SqlOverrun):
                    await pool.query(plane(1), sql)
                most = max(most, pool._busy, len(pool._free))

        await asyncio.gather(loop("SELECT 1"), loop("SELECT 2"), loop(SLOW))
        assert most == 1 and pool._busy == 0
        assert (await pool.query(plane(1), "SELECT 3")).rows == [[3]]  # no turn was lost


async def test_answers_are_bounded_in_bytes_not_characters():
    sql = (
        "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM t LIMIT 60) SELECT replace(hex(zeroes), '0', '😀') FROM t,"
    )
    sql = sql.replace("hex(zeroes)", "printf('%.*c', 100000, '0')") + " entity"
    async with Pool() as pool:
        with pytest.raises(SqlOverrun) as caught:
            await pool.query(plane(1), sql)
        assert caught.value.limit == "result_bytes"
        with pytest.raises(SqlOverrun) as caught:
            await pool.merge(await pool.split("SELECT DISTINCT key FROM entity"), [["x" * 1_000_000]] * 40)
        assert caught.value.limit == "result_bytes"
        with pytest.raises(SqlError, match="no value of SQL"):
            await pool.query(plane(1), "SELECT ?", ["\ud800"])
        assert (await pool.query(plane(1), "SELECT ?", [type("S", (str,), {})("x")])).rows == [["x"]]
