"""What goes wrong with a query, by who can mend it."""

from __future__ import annotations


class SqlError(Exception):
    """The query fails. `line` and `column` count from 1 where the place is known."""

    def __init__(self, message: str, *, line: int | None = None, column: int | None = None) -> None:
        super().__init__(message)
        self.message, self.line, self.column = message, line, column


class SqlRefused(SqlError):
    """The query is not one that may be asked: it writes, reaches out, or is not one statement."""


class SqlOverrun(SqlError):
    """The query ran over a bound, named by `limit`."""

    def __init__(self, message: str, *, limit: str = "", line: int | None = None, column: int | None = None) -> None:
        super().__init__(message, line=line, column=column)
        self.limit = limit


class SqlBusy(SqlError):
    """All children were busy for as long as the caller would wait."""


class SqlClosed(SqlBusy):
    """The pool or table is closed, or was while the query ran: it may be asked again elsewhere."""
