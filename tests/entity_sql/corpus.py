"""Queries written to break the bounds, or that only look dangerous, each with what must become of it.

An outcome is `refused`, `error`, `overrun` (with a limit, where one is sure to be first), or the rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Case(NamedTuple):
    sql: str
    outcome: str | list[list[Any]]
    params: Any = ()


REFUSED = [
    # writes
    "INSERT INTO entity VALUES ('a','b','{}',1,'t')",
    "REPLACE INTO entity VALUES ('a','b','{}',1,'t')",
    "UPDATE entity SET state = '{}'",
    "DELETE FROM entity",
    "DELETE FROM entity RETURNING key",
    "UPDATE entity SET key = 'x' RETURNING key",
    "INSERT INTO entity SELECT * FROM entity RETURNING *",
    "WITH x AS (SELECT 1) INSERT INTO entity SELECT 'a','b','c',1,'t' FROM x",
    "WITH x AS (SELECT 1) DELETE FROM entity WHERE 1 IN (SELECT * FROM x)",
    "INSERT INTO entity DEFAULT VALUES ON CONFLICT DO NOTHING",
    # schema
    "CREATE TABLE t (a)",
    "CREATE TEMP TABLE t AS SELECT * FROM entity",
    "CREATE VIEW v AS SELECT 1",
    "CREATE TEMP VIEW v AS SELECT 1",
    "CREATE INDEX i ON entity (key)",
    "CREATE TRIGGER tr AFTER INSERT ON entity BEGIN SELECT 1; END",
    "CREATE VIRTUAL TABLE f USING fts5(a)",
    "CREATE VIRTUAL TABLE r USING rtree(id, a, b)",
    "CREATE VIRTUAL TABLE d USING dbstat(main)",
    "DROP TABLE entity",
    "ALTER TABLE entity RENAME TO other",
    "ALTER TABLE entity ADD COLUMN x",
    "REINDEX",
    "ANALYZE",
    "VACUUM",
    "VACUUM INTO '/tmp/stolen.db'",
    # other databases, files, code
    "ATTACH ':memory:' AS x",
    "ATTACH '/etc/passwd' AS x",
    "ATTACH DATABASE 'file:/tmp/x?mode=rwc' AS x",
    "DETACH main",
    "SELECT load_extension('/tmp/evil.so')",
    "SELECT load_extension('/tmp/evil.so', 'init')",
    "SELECT readfile('/etc/passwd')",
    "SELECT writefile('/tmp/x', 'y')",
    "SELECT edit('x')",
    "SELECT fts3_tokenizer('simple')",
    "SELECT fts3_tokenizer('simple', x'0000000000000000')",
    "SELECT zipfile('a', 'b')",
    "SELECT * FROM fsdir('/')",
    "SELECT * FROM pragma_table_info('entity')",
    "SELECT * FROM pragma_function_list",
    "SELECT * FROM pragma_database_list",
    "SELECT * FROM pragma_compile_options",
    "SELECT * FROM dbstat",
    "SELECT * FROM sqlite_dbpage",
    "SELECT * FROM bytecode('SELECT 1')",
    "SELECT * FROM sqlite_stmt",
    "SELECT * FROM sqlite_master",
    "SELECT * FROM sqlite_schema",
    "SELECT * FROM sqlite_temp_master",
    "SELECT * FROM main.sqlite_schema",
    "SELECT (SELECT sql FROM sqlite_master)",
    "SELECT key FROM entity WHERE EXISTS (SELECT 1 FROM sqlite_schema)",
    "SELECT sqlite_compileoption_get(1)",
    "SELECT sqlite_source_id()",
    "SELECT sqlite_log(1, 'x')",
    "SELECT randomblob(100)",
    "SELECT zeroblob(100)",
    "SELECT last_insert_rowid(), changes(), total_changes()",
    "SELECT rtreecheck('entity')",
    "SELECT geopoly_area('x')",
    "SELECT bm25(entity) FROM entity",
    # pragmas and transactions
    "PRAGMA hard_heap_limit = 0",
    "PRAGMA hard_heap_limit",
    "PRAGMA temp_store_directory = '/tmp'",
    "PRAGMA journal_mode = WAL",
    "PRAGMA writable_schema = ON",
    "PRAGMA table_info(entity)",
    "PRAGMA max_page_count = 1000000000",
    "BEGIN",
    "BEGIN IMMEDIATE",
    "COMMIT",
    "ROLLBACK",
    "SAVEPOINT s",
    "RELEASE s",
    "EXPLAIN SELECT 1",
    "EXPLAIN QUERY PLAN SELECT key FROM entity",
    "EXPLAIN DELETE FROM entity",
    # more than one
    "SELECT 1; SELECT 2",
    "SELECT key FROM entity; DROP TABLE entity",
    "SELECT 1; /* ; */ PRAGMA hard_heap_limit = 0",
    "SELECT 1;;; VACUUM",
    "SELECT ';' ; DELETE FROM entity",
]

_DEEP = "(" * 90 + "1" + ")" * 90
OVERRUN = [
    # steps
    ("WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT max(n) FROM t", "steps"),
    ("WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t LIMIT 100000000) SELECT count(*) FROM t", "steps"),
    ("WITH RECURSIVE a(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM a LIMIT 9999) SELECT count(*) FROM a x, a y, a z", ""),
    ("SELECT count(*) FROM json_each(state,'$.items') a, json_each(state,'$.items') b, json_each(state,'$.items') c,"
     " json_each(state,'$.items') d, json_each(state,'$.items') e, entity", ""),
    ("WITH RECURSIVE t(n) AS (VALUES(1) UNION ALL SELECT n+1 FROM t) SELECT n FROM t WHERE n < 0", "steps"),
    # huge values
    ("SELECT printf('%.*c', 1000000000, 'x')", "value_bytes"),
    ("SELECT printf('%1000000000d', 1)", "value_bytes"),
    ("SELECT replace(printf('%.*c', 900000, 'x'), 'x', 'yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy')", "value_bytes"),
    ("SELECT hex(hex(hex(hex(printf('%.*c', 500000, 'x')))))", "value_bytes"),
    ("SELECT quote(quote(quote(printf('%.*c', 700000, ''''))))", "value_bytes"),
    ("WITH RECURSIVE t(s) AS (SELECT 'x' UNION ALL SELECT s || s FROM t) SELECT length(s) FROM t", "value_bytes"),
    ("WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM t LIMIT 200000) SELECT group_concat(printf('%100d', n)) FROM t",
     "value_bytes"),
    ("WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM t LIMIT 2000000) SELECT json_group_array(n) FROM t", ""),
    ("WITH RECURSIVE t(j) AS (SELECT '[1]' UNION ALL SELECT json_array(json(j), json(j)) FROM t) SELECT length(j) FROM t", ""),
    ("WITH RECURSIVE t(j) AS (SELECT '{}' UNION ALL SELECT json_insert(j, '$.a', json(j)) FROM t) SELECT max(length(j)) FROM t", ""),
    ("SELECT concat(printf('%.*c', 900000, 'a'), printf('%.*c', 900000, 'b'))", "value_bytes"),
    # memory
    ("WITH RECURSIVE t(n, s) AS (SELECT 1, printf('%.*c', 500000, 'x') UNION ALL SELECT n+1, s || n FROM t LIMIT 1000)"
     " SELECT count(DISTINCT s) FROM t", ""),
    ("WITH RECURSIVE t(n, s) AS (SELECT 1, printf('%.*c', 100000, 'x') UNION SELECT n+1, s || n FROM t) SELECT n FROM t", ""),
    ("WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM t LIMIT 5000)"
     " SELECT n, printf('%.*c', 50000, 'x') || n AS s FROM t ORDER BY s DESC", ""),
    ("WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM t LIMIT 3000)"
     " SELECT sum(length(w)) FROM (SELECT group_concat(printf('%5000d', n)) OVER (ORDER BY n) AS w FROM t)", ""),
    ("WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM t LIMIT 3000)"
     " SELECT json_group_array(printf('%9000d', n)) FROM t", ""),
    # answers that are too large
    ("WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM t) SELECT n FROM t", "rows"),
    ("WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM t) SELECT printf('%.*c', 900000, 'x') FROM t", "result_bytes"),
    ("WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM t) SELECT " + ",".join(["n"] * 200) + " FROM t", "cells"),
    # time inside one opcode
    ("SELECT instr(printf('%.*c', 1000000, 'a'), printf('%.*c', 500000, 'a') || 'b')", ""),
    ("WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM t LIMIT 1000)"
     " SELECT count(replace(printf('%.*c', 1000000, 'a'), printf('%.*c', 400000, 'a') || n, '')) FROM t", ""),
    ("WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM t LIMIT 100000)"
     " SELECT count(trim(printf('%.*c', 500000, 'ab') || n, printf('%.*c', 2000, 'abcdefghij') )) FROM t", ""),
    ("WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM t LIMIT 100000)"
     " SELECT count(*) FROM t WHERE printf('%.*c', 1000000, 'a') || n LIKE '%a%a%a%a%a%a%a%a%a%b'", ""),
    ("WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM t LIMIT 100000)"
     " SELECT count(*) FROM t WHERE printf('%.*c', 1000000, 'a') || n GLOB '*a*a*a*a*a*a*a*a*a*a*b'", ""),
    # preparing
    ("WITH " + ", ".join(["c0 AS (SELECT key FROM entity)"] + [f"c{n} AS (SELECT a.key FROM c{n-1} a, c{n-1} b)" for n in range(1, 40)])
     + " SELECT count(*) FROM c39", ""),
]  # fmt: skip

ERRORS = [
    "SELECT",
    "SELECT FROM entity",
    "SELEC key FROM entity",
    "SELECT key FROM entity WHERE",
    "SELECT pric FROM entity",
    "SELECT key FROM nowhere",
    "SELECT nope(1)",
    "SELECT abs()",
    "SELECT key FROM entity ORDER BY 7",
    "SELECT json_extract(state, 'not a path') FROM entity",
    "SELECT json('{broken')",
    "SELECT " + "+".join(["1"] * 500),
    " UNION ALL ".join(["SELECT 1"] * 200),
    "SELECT " + ",".join(["1"] * 300),
    "SELECT key FROM entity WHERE key LIKE '" + "%a" * 60 + "'",
    "SELECT 1 FROM " + ",".join(["entity"] * 70),
    "SELECT CAST(x'ff' AS TEXT)",
    "SELECT ?101",
    "SELECT key FROM entity WHERE key = 'unterminated",
    "SELECT key FROM temp.entity",
]

FINE: list[Case] = [
    Case("SELECT key FROM entity", [["c7"]]),
    Case("SELECT key FROM entity;", [["c7"]]),
    Case("SELECT key FROM entity -- a comment\n", [["c7"]]),
    Case("SELECT key FROM entity; -- a comment\n /* and more */ ;", [["c7"]]),
    Case("/* ; DROP TABLE entity */ SELECT 1", [[1]]),
    Case("SELECT 'DROP TABLE entity; --'", [["DROP TABLE entity; --"]]),
    Case("VALUES (1, 'a'), (2, 'b')", [[1, "a"], [2, "b"]]),
    Case("SELECT state ->> '$.total', state ->> 'total' FROM entity", [[12.5, 12.5]]),
    Case(
        "SELECT value ->> 'sku' AS sku FROM entity, json_each(state, '$.items') ORDER BY sku DESC LIMIT 2",
        [["s9"], ["s8"]],
    ),
    Case("SELECT sum(value ->> 'n') FROM entity, json_each(entity.state, '$.items')", [[780]]),
    Case("WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t LIMIT 1000) SELECT sum(n) FROM t", [[500500]]),
    Case(
        "SELECT value ->> 'sku', row_number() OVER (ORDER BY key) FROM entity, json_each(state, '$.items') LIMIT 1",
        "error",  # key is ambiguous: entity has one, json_each has one
    ),
    Case(
        "SELECT j.value ->> 'sku', sum(j.value ->> 'n') OVER (ORDER BY j.key) FROM entity, json_each(state, '$.items') j LIMIT 3",
        [["s0", 0], ["s1", 1], ["s2", 3]],
    ),
    Case("SELECT count(*) FROM entity, json_tree(state) t WHERE t.type = 'integer'", [[40]]),
    Case("SELECT ?, ?2, :name", "error", (1, 2)),
    Case("SELECT ?, ?", [[1, "b"]], (1, "b")),
    Case("SELECT :a || @b || $c", [["xyz"]], {"a": "x", "b": "y", "c": "z"}),
    Case("SELECT :a, :b", "error", {"a": 1}),
    Case("SELECT ?", [["' OR 1=1; DROP TABLE entity --"]], ("' OR 1=1; DROP TABLE entity --",)),
    Case("SELECT 9223372036854775807, -9223372036854775808, 1e999, -1e999", [[2**63 - 1, -(2**63), float("inf"), float("-inf")]]),
    Case("SELECT 9223372036854775807 + 1", [[9.223372036854776e18]]),
    Case("SELECT x'00ff', char(0) || 'a', 'ü€😀'", [[b"\x00\xff", "\x00a", "ü€😀"]]),
    Case("SELECT 1 AS a, 2 AS a", [[1, 2]]),
    Case("SELECT 0.0 / 0.0, 1 / 0, NULL", [[None, None, None]]),
    Case("SELECT " + _DEEP, [[1]]),
    Case("SELECT " + "(" * 2000 + "1" + ")" * 2000, [[1]]),
    Case("SELECT key FROM entity WHERE 0", []),
    Case("SELECT DISTINCT type FROM entity UNION ALL SELECT 'x' ORDER BY 1", [["Cart"], ["x"]]),
    Case("SELECT CASE WHEN event_id > 6 THEN 'new' ELSE 'old' END FROM entity", [["new"]]),
    Case("SELECT strftime('%Y', updated_at) FROM entity", [["2026"]]),
    Case("SELECT json_group_object(value ->> 'sku', value ->> 'n') FROM (SELECT value FROM entity, json_each(state, '$.items') LIMIT 2)",
         [['{"s0":0,"s1":1}']]),
    Case("SELECT length(printf('%.*c', 1000000, 'x'))", [[1_000_000]]),
    Case("SELECT median(value ->> 'n') FROM entity, json_each(state, '$.items')", [[19.5]]),
]  # fmt: skip
