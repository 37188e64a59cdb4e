"""What a child does with each request."""

from __future__ import annotations

import apsw

from . import sandbox
from .explain import Trouble, read
from .wire import Ask, AskTable, Done, Merge, Put, Read, Reply, Request, Result, Split


class Server:
    """Holds the tables of a child that has any."""

    def __init__(self) -> None:
        self.tables: dict[str, tuple[apsw.Connection, int]] = {}

    def serve(self, request: Request) -> Reply:
        if isinstance(request, Ask):
            return sandbox.over_one(request.row, request.sql, request.params, request.bounds)
        if isinstance(request, AskTable):
            return self.ask(request)
        if isinstance(request, Put):
            return self.put(request)
        if isinstance(request, Merge):
            return sandbox.over_parts(request.width, request.rows, request.sql, request.params, request.bounds)
        if isinstance(request, Split):
            from .split import split  # noqa: PLC0415  (the parser takes a while to import)

            return split(request.sql)
        assert isinstance(request, Read)
        return read(request.sql)

    def put(self, request: Put) -> Done:
        known = self.tables.get(request.type)
        connection, largest = known if known is not None else (sandbox.fresh(request.indexes), 0)
        with connection:
            connection.executemany(
                # A state that SQLite cannot read (nested too deeply) is kept as text: whoever reads its fields hears of it.
                "insert or replace into entity values (?, ?, iif(json_valid(?3), jsonb(?3), ?3), ?, ?)",
                ((row.type, row.key, row.state.decode(), row.event_id, row.updated_at) for row in request.rows),
            )
            connection.executemany("delete from entity where key = ?", ((key,) for key in request.gone))
        largest = max([largest, *(len(row.state) for row in request.rows)])
        self.tables[request.type] = connection, largest
        return Done(apsw.memory_used())

    def ask(self, request: AskTable) -> Result:
        known = self.tables.get(request.type)
        if known is None:
            raise Trouble("error", f"no documents of type {request.type!r} are here")
        connection, largest = known
        return sandbox.run(connection, request.sql, request.params, request.bounds, largest=largest)
