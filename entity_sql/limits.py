"""The bounds of one query. They hold against SQL that was written to break them."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """`steps` of SQLite's virtual machine; `memory` in bytes that it may take beyond the documents; `rows`, `cells` and
    `result_bytes` of an answer; `sql_bytes` of the query; `seconds` it may run and `wait` seconds for a free child.

    A value that a query builds may be twice the document, at least 1 MiB and at most `value_bytes`.
    """

    steps: int = 50_000_000
    seconds: float = 5.0
    memory: int = 64 * MIB
    rows: int = 10_000
    cells: int = 1_000_000
    result_bytes: int = 16 * MIB
    sql_bytes: int = 64 * 1024
    value_bytes: int = 16 * MIB
    wait: float = 5.0
    children: int = 4

    def largest_value(self, document: int) -> int:
        return min(self.value_bytes, max(MIB, 2 * document))


GRACE = 0.75
"""Seconds after its time in which a child may stop by itself, before it is killed."""
EXPRESSION_DEPTH = 100
COMPOUND_SELECTS = 50
PROGRAM_OPS = 100_000
LIKE_PATTERN = 50
COLUMNS = 256
PARAMETERS = 100
