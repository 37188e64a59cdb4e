"""Loads the `.sql` files: `-- name: x` starts a query, `-- section: x` a part of the commit statement.

`:name` becomes `$n`; the order of first use is the order of the arguments.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Any

_HEAD = re.compile(r"^-- (?:name|section): (\w+)[^\n]*\n", re.M)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)\b")
FILES = (
    "executions",
    "history",
    "workflow_tasks",
    "activity_tasks",
    "messages",
    "workers",
    "partitions",
    "settings",
    "entities",
    "answers",
    "dead_letters",
    "care",
    "diagnosis",
    "tokens",
    "audit",
    "figures",
    "notify",
)


class Query:
    """One statement, ready for asyncpg. `args(**named)` puts the arguments in order."""

    __slots__ = ("name", "names", "sql")

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        names: list[str] = []

        def place(match: re.Match[str]) -> str:
            if match[1] not in names:
                names.append(match[1])
            return f"${names.index(match[1]) + 1}"

        self.sql = _PARAMETER.sub(place, text.strip().rstrip(";"))
        self.names = tuple(names)

    def args(self, **named: Any) -> list[Any]:
        return [named[name] for name in self.names]


def blocks(file: str) -> dict[str, str]:
    """The named blocks of one `.sql` file, comments removed."""
    text = (files("harvest.hub") / "sql" / f"{file}.sql").read_text()
    pieces = _HEAD.split(text)[1:]
    return {name: re.sub(r"--[^\n]*\n", "\n", body) for name, body in zip(pieces[::2], pieces[1::2], strict=True)}


@cache
def queries(file: str) -> dict[str, Query]:
    """All named queries of a file."""
    return {name: Query(f"{file}.{name}", body) for name, body in blocks(file).items()}


def all_queries() -> list[Query]:
    return [q for file in FILES for q in queries(file).values()]
