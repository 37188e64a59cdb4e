"""One read-only statement over one in-memory database, bounded. Runs in a child process."""

from __future__ import annotations

import re
import threading
from typing import Any

import apsw

from . import limits as bound
from .explain import Trouble, at, place_of, said
from .wire import Document, Limited, Result, size_of

LENGTH = 1_000_000_000
_TABLES = {"entity", "part", "json_each", "json_tree", None}
_NAMES = """
-> ->> abs acos acosh asin asinh atan atan2 atanh avg ceil ceiling char coalesce concat concat_ws cos cosh count
cume_dist current_date current_time current_timestamp date datetime degrees dense_rank exp first_value floor format glob
group_concat hex if ifnull iif instr json json_array json_array_insert json_array_length json_error_position
json_extract json_group_array json_group_object json_insert json_object json_patch json_pretty json_quote json_remove
json_replace json_set json_type json_valid jsonb jsonb_array jsonb_array_insert jsonb_extract jsonb_group_array
jsonb_group_object jsonb_insert jsonb_object jsonb_patch jsonb_remove jsonb_replace jsonb_set julianday lag last_value
lead length like likelihood likely ln log log10 log2 lower ltrim max median min mod nth_value ntile nullif octet_length
percent_rank percentile percentile_cont percentile_disc pi pow power printf quote radians random rank replace round
row_number rtrim sign sin sinh sqrt strftime string_agg substr substring subtype sum tan tanh time timediff total trim
trunc typeof unhex unicode unistr unixepoch unlikely upper
"""
_FUNCTIONS = frozenset(_NAMES.split())
_ACTIONS = {
    apsw.SQLITE_INSERT: "INSERT",
    apsw.SQLITE_UPDATE: "UPDATE",
    apsw.SQLITE_DELETE: "DELETE",
    apsw.SQLITE_PRAGMA: "PRAGMA",
    apsw.SQLITE_ATTACH: "ATTACH",
    apsw.SQLITE_DETACH: "DETACH",
    apsw.SQLITE_TRANSACTION: "BEGIN",
    apsw.SQLITE_SAVEPOINT: "SAVEPOINT",
    apsw.SQLITE_ALTER_TABLE: "ALTER",
    apsw.SQLITE_REINDEX: "REINDEX",
    apsw.SQLITE_ANALYZE: "ANALYZE",
}
_REST = re.compile(r"(?:[\s;]|--[^\n]*(?:\n|\Z)|/\*.*?(?:\*/|\Z))*", re.S)


class Watch:
    """A thread of its own that interrupts a statement when its time is up."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._connection: apsw.Connection | None = None
        self._seconds = 0.0
        self.fired = False
        threading.Thread(target=self._run, daemon=True).start()

    def begin(self, connection: apsw.Connection, seconds: float) -> None:
        with self._condition:
            self._connection, self._seconds, self.fired = connection, seconds, False
            self._condition.notify()

    def end(self) -> None:
        with self._condition:
            self._connection = None
            self._condition.notify()

    def _run(self) -> None:
        with self._condition:
            while True:
                watched = self._connection
                if watched is None:
                    self._condition.wait()
                elif not self._condition.wait(self._seconds) and self._connection is watched:
                    self.fired = True
                    watched.interrupt()
                    self._connection = None


_watch: Watch | None = None


def watch() -> Watch:
    global _watch
    if _watch is None:
        _watch = Watch()
    return _watch


def fresh(indexes: list[str] | None = None) -> apsw.Connection:
    """A database with an empty table `entity`."""
    connection = apsw.Connection(":memory:")
    for pragma in ("journal_mode=OFF", "temp_store=MEMORY", "trusted_schema=OFF", "cell_size_check=ON"):
        connection.execute(f"pragma {pragma}")
    connection.execute(
        "create table entity (type text, key text primary key, state, event_id integer, updated_at text) without rowid"
        if indexes is not None
        else "create table entity (type text, key text, state text, event_id integer, updated_at text)"
    )
    for number, path in enumerate(indexes or ()):
        spelled = "$." + path.replace("'", "''")
        connection.execute(f"create index field_{number} on entity (state ->> '{spelled}')")
    return connection


def over_one(row: Document, sql: str, params: Any, bounds: Limited) -> Result:
    connection = fresh()
    try:
        connection.execute(
            "insert into entity values (?, ?, ?, ?, ?)", (row.type, row.key, row.state.decode(), row.event_id, row.updated_at)
        )
        return run(connection, sql, params, bounds, largest=max(len(row.state), len(row.key)))
    finally:
        close(connection)


def over_parts(width: int, rows: list[list[Any]], sql: str, params: Any, bounds: Limited) -> Result:
    connection = apsw.Connection(":memory:")
    try:
        connection.execute("pragma temp_store=MEMORY")
        connection.execute(f"create table part ({', '.join(f'c{n}' for n in range(width))})")
        apsw.hard_heap_limit(apsw.memory_used() + 3 * bounds.memory)
        with connection:
            connection.executemany(f"insert into part values ({', '.join('?' * width)})", rows)  # noqa: S608  (a number)
        return run(connection, sql, params, bounds)
    except (MemoryError, apsw.Error) as exc:
        raise Trouble(
            "overrun", f"the parts of the answer do not fit into memory ({exc}): ask for less", limit="memory"
        ) from None
    finally:
        apsw.hard_heap_limit(0)
        close(connection)


def close(connection: apsw.Connection) -> None:
    connection.set_progress_handler(None)
    connection.close(True)


def _readable(table: str | None, column: str | None) -> bool:
    """Our tables, and what a statement names itself (with no column, or no table)."""
    if table is None:
        return True
    name = table.lower()
    return name in _TABLES or (column == "" and not name.startswith(("sqlite_", "pragma_")))


class _Guard:
    """What is allowed while a statement is prepared, and what was asked for that is not."""

    def __init__(self, sql: str, connection: apsw.Connection) -> None:
        self.sql, self.connection = sql, connection
        self.denied: Trouble | None = None
        self.spent = self.seen = False
        self.columns: list[str] = []

    def authorize(self, action: int, first: str | None, second: str | None, database: str | None, source: str | None) -> int:
        if action in (apsw.SQLITE_SELECT, apsw.SQLITE_RECURSIVE):
            return apsw.SQLITE_OK
        if action == apsw.SQLITE_READ and _readable(first, second):
            return apsw.SQLITE_OK
        if action == apsw.SQLITE_FUNCTION and second is not None and second.lower() in _FUNCTIONS:
            return apsw.SQLITE_OK
        if self.denied is None:
            self.denied = self._why(action, first, second)
        return apsw.SQLITE_DENY

    def _why(self, action: int, first: str | None, second: str | None) -> Trouble:
        if action == apsw.SQLITE_FUNCTION:
            return Trouble("refused", f"function {second}() is not available here", *place_of(self.sql, second or ""))
        if action == apsw.SQLITE_READ:
            return Trouble(
                "refused", f"there is no table {first} here; the one table is entity", *place_of(self.sql, first or "")
            )
        word = re.match(r"\s*(\w+)", self.sql)
        name = word[1].upper() if word and word[1].upper() not in ("SELECT", "WITH", "VALUES") else _ACTIONS.get(action, "this")
        return Trouble("refused", f"{name} is refused: a query only reads", *place_of(self.sql, name))

    def traced(self, cursor: apsw.Cursor, sql: str, bindings: Any) -> bool:
        """Before the first step of each statement."""
        if self.seen and _REST.fullmatch(sql):
            return True  # what is left is comments
        self.seen = True
        rest = _REST.sub("", self.sql[len(sql) :], count=1) if self.sql.startswith(sql) else ""
        if rest:
            place = at(self.sql, len(self.sql) - len(rest))
            self.denied = Trouble("refused", "one statement at a time: here begins a second one", *place)
        elif cursor.is_explain:
            self.denied = Trouble("refused", "EXPLAIN is refused", *place_of(self.sql, "explain"))
        elif not cursor.is_readonly or not cursor.get_description():
            self.denied = Trouble("refused", "only SELECT, WITH … SELECT and VALUES are answered", 1, 1)
        else:  # with no row in the answer this is the last moment to learn its columns
            self.columns = [str(column[0]) for column in cursor.get_description()]
        return self.denied is None

    def out_of_steps(self) -> bool:
        self.spent = True
        return True


def run(connection: apsw.Connection, sql: str, params: Any, bounds: Limited, *, largest: int = 0) -> Result:
    """Raises `Trouble`, whatever the SQL does (unless the process ends first)."""
    guard = _Guard(sql, connection)
    _restrict(connection, bounds, largest)
    apsw.hard_heap_limit(apsw.memory_used() + bounds.memory)
    connection.set_authorizer(guard.authorize)
    connection.set_exec_trace(guard.traced)
    connection.set_progress_handler(guard.out_of_steps, min(bounds.steps, 2**31 - 1))
    timer = watch()
    timer.begin(connection, bounds.seconds)
    try:
        return _fetch(connection, guard, sql, _bindings(params), bounds)
    except Trouble:
        raise
    except (Exception, MemoryError) as exc:
        raise _told(exc, guard, timer, bounds) from None
    finally:
        timer.end()
        connection.set_exec_trace(None)
        connection.set_authorizer(None)
        connection.set_progress_handler(None)
        connection.limit(apsw.SQLITE_LIMIT_LENGTH, LENGTH)
        apsw.hard_heap_limit(0)


def prepared(sql: str) -> list[str]:
    """The names of a statement's columns, as SQLite gives them, without running it. Raises `Trouble`."""
    connection = fresh()
    guard = _Guard(sql, connection)
    bounds = Limited(1, 1.0, 64 << 20, 1, 1, 1, 1 << 20)
    _restrict(connection, bounds, 0)
    apsw.hard_heap_limit(apsw.memory_used() + bounds.memory)
    connection.set_authorizer(guard.authorize)
    connection.set_exec_trace(lambda cursor, text, given: guard.traced(cursor, text, given) and False)
    try:
        connection.execute(sql, apsw._null_bindings, can_cache=False)  # type: ignore[attr-defined]
    except apsw.ExecTraceAbort:
        if guard.denied is not None:
            raise guard.denied from None
    except (Exception, MemoryError) as exc:
        raise _told(exc, guard, watch(), bounds) from None
    finally:
        apsw.hard_heap_limit(0)
        close(connection)
    return guard.columns


def _restrict(connection: apsw.Connection, bounds: Limited, largest: int) -> None:
    connection.limit(apsw.SQLITE_LIMIT_LENGTH, max(bounds.value_bytes, largest + 1024))
    connection.limit(apsw.SQLITE_LIMIT_EXPR_DEPTH, bound.EXPRESSION_DEPTH)
    connection.limit(apsw.SQLITE_LIMIT_COMPOUND_SELECT, bound.COMPOUND_SELECTS)
    connection.limit(apsw.SQLITE_LIMIT_VDBE_OP, bound.PROGRAM_OPS)
    connection.limit(apsw.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, bound.LIKE_PATTERN)
    connection.limit(apsw.SQLITE_LIMIT_COLUMN, bound.COLUMNS)
    connection.limit(apsw.SQLITE_LIMIT_VARIABLE_NUMBER, bound.PARAMETERS)
    connection.limit(apsw.SQLITE_LIMIT_ATTACHED, 0)
    connection.limit(apsw.SQLITE_LIMIT_TRIGGER_DEPTH, 0)
    connection.limit(apsw.SQLITE_LIMIT_WORKER_THREADS, 0)


def _bindings(params: Any) -> Any:
    if isinstance(params, dict):
        return {str(name).lstrip(":@$"): value for name, value in params.items()}
    return tuple(params or ())


def _fetch(connection: apsw.Connection, guard: _Guard, sql: str, bindings: Any, bounds: Limited) -> Result:
    cursor = connection.cursor()
    rows: list[list[Any]] = []
    cells = size = 0
    for row in cursor.execute(sql, bindings, can_cache=False):
        rows.append(list(row))
        cells += len(row)
        size += size_of(rows[-1])
        if len(rows) > bounds.rows:
            raise Trouble("overrun", f"more than {bounds.rows:,} rows: add a LIMIT or a WHERE", limit="rows")
        if cells > bounds.cells:
            raise Trouble("overrun", f"more than {bounds.cells:,} values: ask for fewer columns or rows", limit="cells")
        if size > bounds.result_bytes:
            raise Trouble("overrun", f"more than {bounds.result_bytes:,} bytes of answer: ask for less", limit="result_bytes")
    return Result(guard.columns, rows)


def _told(exc: BaseException, guard: _Guard, timer: Watch, bounds: Limited) -> Trouble:
    if guard.denied is not None:
        return guard.denied
    if guard.spent:
        return Trouble("overrun", f"more than {bounds.steps:,} steps: the query does too much", limit="steps")
    if timer.fired or isinstance(exc, apsw.InterruptError):
        return Trouble("overrun", f"it ran for {bounds.seconds:g} s and was stopped", limit="seconds")
    if isinstance(exc, (MemoryError, apsw.NoMemError)):
        return Trouble("overrun", f"it needs more than {bounds.memory:,} bytes of memory", limit="memory")
    if isinstance(exc, apsw.TooBigError):
        return Trouble("overrun", "it builds a text or blob that is too big", limit="value_bytes")
    if isinstance(exc, apsw.BindingsError):
        counts = re.search(r"uses (\d+) and there are (-?\d+)", str(exc))
        needs = f"it takes {counts[1]}" if counts else "they do not fit the query"
        return Trouble("error", f"wrong number of parameters: {needs}")
    if isinstance(exc, KeyError):
        return Trouble("error", f"parameter {exc} has no value")
    if isinstance(exc, UnicodeDecodeError):
        return Trouble("error", "a text in the answer is not UTF-8: read it with hex(...)")
    return said(exc, guard.sql)
