"""A few children and a queue before them. What overruns is killed, and the next query finds a new child."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec

from .errors import SqlBusy, SqlClosed, SqlError, SqlOverrun, SqlRefused
from .limits import GRACE, Limits
from .process import Child, Gone, answered
from .wire import Ask, Document, Limited, Merge, Plan, Read, Reading, Reply, Result, Split, by_name, size_of

Params = Sequence[Any] | Mapping[str, Any]


class Pool:
    """`async with Pool() as pool`. Children start with the first query that needs one."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._free: list[Child] = []
        self._busy = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._children: set[Child] = set()
        self.closed = False
        self.killed = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Kills the children; who waits is told that it is over."""
        self.closed = True
        while self._waiting:
            self._busy += 1
            self._waiting.popleft().set_result(None)
        self._free = []
        for child in list(self._children):
            await child.kill()

    # --- what can be asked --------------------------------------------------------------------------

    async def query(self, document: Document, sql: str, params: Params = ()) -> Result:
        """Rows of one SELECT over one document. Raises `SqlRefused`, `SqlOverrun`, `SqlBusy`, else `SqlError`."""
        check(sql, params, self.limits)
        if len(document.state) > self.limits.value_bytes:
            raise SqlOverrun(
                f"the document is {len(document.state):,} bytes, the most is {self.limits.value_bytes:,}", limit="value_bytes"
            )
        reply = await self._ask(Ask(document, sql, params_of(params), bounds_of(self.limits, len(document.state))))
        assert isinstance(reply, Result)
        return reply

    async def merge(self, plan: Plan, rows: list[list[Any]], params: Params = ()) -> Result:
        """The final part of a plan over the rows that its partial ones gave. Raises `SqlOverrun` where they are too many."""
        most = 2 * self.limits.result_bytes
        if sum(size_of(row) for row in rows) > most:
            raise SqlOverrun(f"the parts of the answer are over {most:,} bytes: ask for less", limit="result_bytes")
        request = Merge(
            plan.width, rows, plan.final, by_name(params_of(params)), bounds_of(self.limits, self.limits.value_bytes)
        )
        reply = await self._ask(request)
        assert isinstance(reply, Result)
        return Result(plan.columns or reply.columns, reply.rows)

    async def split(self, sql: str) -> Plan:
        """How to ask a statement where its documents lie in several places. Raises `SqlRefused` for what cannot be."""
        check(sql, (), self.limits)
        reply = await self._ask(Split(sql))
        assert isinstance(reply, Plan)
        return reply

    async def read(self, sql: str) -> Reading:
        """Which fields of the state a query reads, and how Postgres would spell it."""
        check(sql, (), self.limits)
        reply = await self._ask(Read(sql))
        assert isinstance(reply, Reading)
        return reply

    # --- children -----------------------------------------------------------------------------------

    async def _ask(self, request: msgspec.Struct) -> Reply:
        await self._turn()
        child: Child | None = None
        try:
            child = self._free.pop() if self._free else None
            if child is None or not child.alive:
                child = await self._started(child)
            try:
                return answered(await child.ask(request, self.limits.seconds + GRACE))
            except Gone as exc:
                if self.closed:
                    raise SqlClosed("the pool was closed while the query ran") from None
                self.killed += 1
                raise SqlOverrun(f"its process was stopped: {exc}", limit="seconds") from None
        finally:
            if child is not None:
                self._back(child)
            self._leave()

    async def _started(self, old: Child | None) -> Child:
        if old is not None:
            self._children.discard(old)
            await old.kill()
        child = Child(4 * self.limits.memory, self.limits.result_bytes)
        try:
            await child.start()
        except Gone as exc:
            raise SqlBusy(f"no process for the query: {exc}") from None
        self._children.add(child)
        if self.closed:
            await child.kill()
        return child

    async def _turn(self) -> None:
        """Until one of the children is ours; in order of coming. Whoever is let in has been counted already."""
        if self.closed:
            raise SqlClosed("the pool is closed")
        if self._busy < self.limits.children and not self._waiting:
            self._busy += 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await asyncio.wait({waiter}, timeout=self.limits.wait)
        except asyncio.CancelledError:
            if waiter.done():
                self._leave()
            raise
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
        if not waiter.done():
            raise SqlBusy(f"{self.limits.children} queries ran for {self.limits.wait:g} s; try again later")
        if self.closed:
            self._leave()
            raise SqlClosed("the pool is closed")

    def _leave(self) -> None:
        """A child is free: the first who waits has it."""
        self._busy -= 1
        while self._waiting and self._busy < self.limits.children:
            self._busy += 1
            self._waiting.popleft().set_result(None)

    def _back(self, child: Child) -> None:
        if child.alive and not self.closed:
            self._free.append(child)
        else:
            self._children.discard(child)
            if child.process is not None:
                child.process.kill()


def bounds_of(limits: Limits, document: int) -> Limited:
    return Limited(
        limits.steps,
        limits.seconds,
        limits.memory,
        limits.rows,
        limits.cells,
        limits.result_bytes,
        limits.largest_value(document),
    )


def check(sql: str, params: Params, limits: Limits) -> None:
    """What can be said of a query without parsing it."""
    if not isinstance(sql, str) or not sql.strip():
        raise SqlRefused("the query is empty")
    try:
        size = len(sql.encode())
    except UnicodeEncodeError:
        raise SqlRefused("the query has characters that are not UTF-8") from None
    if size > limits.sql_bytes:
        raise SqlOverrun(f"the query is {size:,} bytes, the most is {limits.sql_bytes:,}", limit="sql_bytes")
    if isinstance(params, (str, bytes)) or not isinstance(params, (Mapping, Sequence)):
        raise SqlError(f"params: expected a list or a dict of values, got {params!r:.60}")
    if "\x00" in sql:
        raise SqlRefused("the query has a NUL character")
    total = 0
    for name, value in params.items() if isinstance(params, Mapping) else enumerate(params, 1):
        if not _is_text(str(name)):
            raise SqlError(f"parameter {name!r}: its name has characters that are not UTF-8")
        if isinstance(value, bool) or value is None or isinstance(value, float):
            continue
        if isinstance(value, int) and -(2**63) <= value < 2**63:
            continue
        if isinstance(value, (str, bytes)) and (isinstance(value, bytes) or _is_text(value)):
            total += len(value)
            continue
        raise SqlError(f"parameter {name!r}: {value!r:.60} is no value of SQL (None, bool, int of 64 bits, float, str, bytes)")
    if total > limits.value_bytes:
        raise SqlOverrun(f"the parameters are {total:,} bytes, the most is {limits.value_bytes:,}", limit="value_bytes")


def _is_text(text: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" for c in text)


_BASES = (bool, int, float, str, bytes)


def params_of(params: Params) -> Any:
    """Parameters as they travel: of the very types that SQL has."""
    if isinstance(params, Mapping):
        return {str(name): _base(value) for name, value in params.items()}
    return [_base(value) for value in params]


def _base(value: Any) -> Any:
    for kind in _BASES:
        if isinstance(value, kind):
            return kind(value)  # type: ignore[arg-type]
    return None
