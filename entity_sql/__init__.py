"""Read-only, bounded SQL over JSON documents: a document and a SELECT in, rows out.

    async with Pool() as pool:
        result = await pool.query(Document("cart", "cart-7", b'{"items": [...]}'), "SELECT state ->> '$.total' FROM entity")

The SQL may be hostile. It runs in child processes of which nothing is expected: `sandbox` bounds what SQLite does
(an allow list, steps, memory, sizes), the operating system bounds the process (address space, no files), and `process`
kills what overruns. SQL text is only parsed there, too. The parent never waits for a child longer than a deadline.

    limits    every bound, with its default
    pool      four children, a queue before them                 parent
    table     one child with many documents, kept current         parent
    process   one child: start, ask, kill                         parent
    wire      frames between the two                              both
    child     the loop of a child                                 child
    sandbox   one statement over one database                     child
    explain   where in the text a mistake is, what a query reads  child
    split     a query over many tables as partial and final parts child

A library of its own: it knows nothing of the engine that uses it.
"""

from .errors import SqlBusy, SqlClosed, SqlError, SqlOverrun, SqlRefused
from .limits import Limits
from .pool import Pool, check
from .table import Table
from .wire import Document, Plan, Reading, Result, by_name, plain

__all__ = [
    "Document",
    "Limits",
    "Plan",
    "Pool",
    "Reading",
    "Result",
    "SqlBusy",
    "SqlClosed",
    "SqlError",
    "SqlOverrun",
    "SqlRefused",
    "Table",
    "by_name",
    "check",
    "plain",
]
