"""Mistakes in plain words with their place in the text; what a query reads. Runs in a child process."""

from __future__ import annotations

import difflib
import re
from typing import Any

from .wire import Reading

FIELDS = ("type", "key", "state", "event_id", "updated_at")


class Trouble(Exception):
    """Becomes a `Failed` frame."""

    def __init__(self, kind: str, message: str, line: int | None = None, column: int | None = None, *, limit: str = "") -> None:
        super().__init__(message)
        self.kind, self.message, self.line, self.column, self.limit = kind, message, line, column, limit


_LITERALS = re.compile(r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/", re.S)


def place_of(sql: str, text: str) -> tuple[int | None, int | None]:
    """Line and column (from 1) where a word first stands, whatever its case."""
    word = text.strip()
    if not word:
        return None, None
    pattern = re.escape(word)
    if word[0].isalnum():
        pattern = rf"\b{pattern}"
    match = re.search(pattern, _LITERALS.sub(lambda found: " " * len(found[0]), sql), re.I) or re.search(pattern, sql, re.I)
    return (None, None) if match is None else at(sql, match.start())


def at(sql: str, offset: int) -> tuple[int, int]:
    before = sql[:offset]
    return before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1


def said(exc: BaseException, sql: str) -> Trouble:
    """SQLite's own message, with the place and, where there is one, the way out."""
    text = str(exc)
    offset = getattr(exc, "error_offset", -1)
    line: int | None = None
    column: int | None = None
    if offset is not None and offset >= 0:
        line, column = at(sql, len(sql.encode()[:offset].decode(errors="ignore")))
    name = re.match(r"no such (column|table|function): (.+)", text)
    if name is None and line is None:
        line, column, text = _parsed(sql, text)
    elif name is not None:
        if line is None:
            line, column = place_of(sql, name[2].rpartition(".")[2])
        text += _way_out(name[1], name[2])
    return Trouble("error", text, line, column)


def _way_out(kind: str, name: str) -> str:
    if kind == "table":
        return "; the one table is entity (type, key, state, event_id, updated_at)"
    if kind == "column":
        name = name.rpartition(".")[2]
        if name.lower() in FIELDS:
            return "; is FROM entity missing?"
        close = difflib.get_close_matches(name.lower(), FIELDS, 1)
        if close:
            return f"; did you mean {close[0]}?"
        return f"; columns are {', '.join(FIELDS)}, and fields of the state are read as state ->> '$.{name}'"
    return ""


def _parsed(sql: str, text: str) -> tuple[int | None, int | None, str]:
    """A second opinion on the place of a mistake that SQLite does not point at."""
    import sqlglot  # noqa: PLC0415  (80 ms that most children never need)

    try:
        sqlglot.parse(sql, read="sqlite")
    except sqlglot.errors.ParseError as exc:
        if exc.errors:
            return exc.errors[0].get("line"), exc.errors[0].get("col"), text
    except Exception:
        return None, None, text
    return None, None, text


def read(sql: str) -> Reading:
    """Which fields of the state a query reads, and a spelling for Postgres that is often right."""
    tree = parse(sql)
    return Reading(sorted(fields_of(tree)), tree.sql(dialect="postgres", pretty=True))


def parse(sql: str) -> Any:
    import sqlglot  # noqa: PLC0415

    try:
        statements = [s for s in sqlglot.parse(sql, read="sqlite") if s is not None]
    except sqlglot.errors.ParseError as exc:
        where = exc.errors[0] if exc.errors else {}
        raise Trouble("error", str(where.get("description") or exc), where.get("line"), where.get("col")) from None
    except sqlglot.errors.SqlglotError as exc:
        raise Trouble("error", str(exc)) from None
    except RecursionError:
        raise Trouble("overrun", "the query is nested too deeply", limit="depth") from None
    if len(statements) != 1:
        raise Trouble("refused", f"one statement at a time, this is {len(statements)}")
    return statements[0]


def fields_of(tree: Any) -> set[str]:
    from sqlglot import exp  # noqa: PLC0415

    found: set[str] = set()
    if next(tree.find_all(exp.Star), None) is not None and not isinstance(
        getattr(next(tree.find_all(exp.Star)), "parent", None), exp.Count
    ):
        found.add("*")
    for column in tree.find_all(exp.Column):
        if column.name.lower() == "state":
            found.add(_path(column, exp))
    return found


def _path(column: Any, exp: Any) -> str:
    parent = column.parent
    path: Any = None
    if isinstance(parent, (exp.JSONExtract, exp.JSONExtractScalar)) and parent.this is column:
        path = parent.expression
    elif isinstance(parent, (exp.Anonymous, exp.Func)) and len(_arguments(parent)) > 1 and _arguments(parent)[0] is column:
        path = _arguments(parent)[1]
    if isinstance(path, exp.JSONPath):
        names = [part.this for part in path.expressions if isinstance(part, exp.JSONPathKey)]
        return ".".join(map(str, names)) or "*"
    if isinstance(path, exp.Literal) and path.is_string:
        return str(path.this).removeprefix("$.") or "*"
    return "*"


def _arguments(call: Any) -> list[Any]:
    given = call.expressions or [call.args.get("this"), call.args.get("expression")]
    return [argument for argument in given if argument is not None]
