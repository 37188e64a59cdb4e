"""Many documents in one child, kept current and asked as a whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from .errors import SqlBusy, SqlClosed, SqlOverrun
from .limits import GRACE, Limits
from .pool import check, params_of
from .process import Child, Gone, answered
from .wire import AskTable, Document, Limited, Put, Result

AT_ONCE = 1_000
FEED = 30.0
"""Seconds for one portion of documents."""


class Table:
    """The documents of one type. What the parent keeps is the truth; a child that was killed is fed again.

    `put` and `drop` only note what changed; it goes to the child with the next question. Over `max_bytes` of JSON the
    table gives up, and `ask` says so until it is cleared.
    """

    def __init__(self, type: str, *, indexes: Sequence[str] = (), max_bytes: int, limits: Limits | None = None) -> None:
        self.type, self.indexes, self.max_bytes = type, list(indexes), max_bytes
        self.limits = limits or Limits()
        self.documents: dict[str, Document] = {}
        self.bytes = 0
        self._changed: dict[str, Document | None] = {}
        self._child: Child | None = None
        self._lock = asyncio.Lock()
        self.closed = False

    def __len__(self) -> int:
        return len(self.documents)

    def put(self, document: Document) -> None:
        old = self.documents.get(document.key)
        self.bytes += _size(document) - (_size(old) if old is not None else 0)
        self.documents[document.key] = self._changed[document.key] = document

    def drop(self, key: str) -> None:
        old = self.documents.pop(key, None)
        if old is not None:
            self.bytes -= _size(old)
            self._changed[key] = None

    @property
    def too_large(self) -> bool:
        return self.bytes > self.max_bytes

    async def close(self) -> None:
        """For good: who waits for it is told so."""
        self.closed = True
        await self._end()

    async def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.kill()

    async def ask(
        self,
        sql: str,
        params: Any,
        bounds: Limited,
        *,
        before: Callable[[], None] = lambda: None,
        when_fed: Callable[[], None] = lambda: None,
    ) -> Result:
        """Rows over all documents as they are now. Raises what `Pool.query` raises.

        `before()` is called when it is this question's turn, `when_fed()` at the moment whose documents it will see; what they
        raise is raised.
        """
        check(sql, params, self.limits)
        if self.too_large:
            raise SqlOverrun(
                f"the {self.type} documents here take {self.bytes:,} bytes, the most is {self.max_bytes:,}", limit="table_bytes"
            )
        try:
            async with asyncio.timeout(self.limits.wait + self.limits.seconds):
                await self._lock.acquire()
        except TimeoutError:
            raise SqlBusy("the table was busy; try again later") from None
        try:
            before()
            child = await self._fed()
            when_fed()
            reply = answered(await child.ask(AskTable(self.type, sql, params_of(params), bounds), self.limits.seconds + GRACE))
            assert isinstance(reply, Result)
            return reply
        except Gone as exc:
            if self.closed:
                raise SqlClosed("the table was closed while the query ran") from None
            raise SqlOverrun(f"its process was stopped: {exc}", limit="seconds") from None
        finally:
            self._lock.release()

    async def _fed(self) -> Child:
        """The child, with all that changed."""
        if self.closed:
            raise SqlClosed("the table is closed")
        child = self._child
        if child is None or not child.alive:
            await self._end()
            child = Child(4 * self.limits.memory + 6 * self.max_bytes, self.limits.result_bytes)
            await child.start()
            if self.closed:
                await child.kill()
                raise SqlClosed("the table is closed")
            self._child = child
            self._changed = dict(self.documents)
            answered(await child.ask(Put(self.type, indexes=self.indexes), FEED))
        try:
            while self._changed:
                some = {key: self._changed.pop(key) for key in list(self._changed)[:AT_ONCE]}
                rows = [document for document in some.values() if document is not None]
                gone = [key for key, document in some.items() if document is None]
                answered(await child.ask(Put(self.type, rows, gone, self.indexes), FEED))
        except BaseException:  # it has some of them: the next one gets all
            await self._end()
            raise
        return child


def _size(document: Document) -> int:
    return len(document.state) + 2 * len(document.key) + 100
