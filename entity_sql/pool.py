"""A few children and a queue before them. What overruns is killed, and the next query finds a new child."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec

from .errors import SqlBusy, SqlError, SqlOverrun, SqlRefused
from .limits import GRACE, Limits
from .process import Child, Gone, answered
from .table import Document
from .wire import Ask, Limited, Merge, Plan, Read, Reading, Reply, Result, Split, by_name

Params = Sequence[Any] | Mapping[str, Any]


class Pool:
    """`async with Pool() as pool`. Children start with the first query that needs one."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._free: list[Child] = []
        self._busy = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.closed = False
        self.killed = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Kills the children; who waits is told that it is over."""
        self.closed = True
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        free, self._free = self._free, []
        for child in free:
            await child.kill()

    # --- what can be asked --------------------------------------------------------------------------

    async def query(self, document: Document, sql: str, params: Params = ()) -> Result:
        """Rows of one SELECT over one document. Raises `SqlRefused`, `SqlOverrun`, `SqlBusy`, else `SqlError`."""
        check(sql, params, self.limits)
        reply = await self._ask(Ask(document.row(), sql, params_of(params), bounds_of(self.limits, len(document.state))))
        assert isinstance(reply, Result)
        return reply

    async def merge(self, plan: Plan, rows: list[list[Any]], params: Params = ()) -> Result:
        """The final part of a plan over the rows that its partial ones gave."""
        reply = await self._ask(Merge(plan.width, rows, plan.final, by_name(params_of(params)), bounds_of(self.limits, 0)))
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
                self.killed += 1
                raise SqlOverrun(f"its process was stopped: {exc}", limit="seconds") from None
        finally:
            self._busy -= 1
            if child is not None:
                await self._back(child)
            self._next()

    async def _started(self, old: Child | None) -> Child:
        if old is not None:
            await old.kill()
        child = Child(4 * self.limits.memory, self.limits.result_bytes)
        try:
            await child.start()
        except Gone as exc:
            raise SqlBusy(f"no process for the query: {exc}") from None
        return child

    async def _turn(self) -> None:
        """Until one of the children is free; in order of coming."""
        if self.closed:
            raise SqlBusy("the pool is closed")
        if self._busy < self.limits.children and not self._waiting:
            self._busy += 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(self.limits.wait):
                await waiter
        except TimeoutError:
            raise SqlBusy(f"{self.limits.children} queries ran for {self.limits.wait:g} s; try again later") from None
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._next()
            raise
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
        if self.closed:
            raise SqlBusy("the pool is closed")
        self._busy += 1

    def _next(self) -> None:
        while self._waiting and self._busy < self.limits.children:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def _back(self, child: Child) -> None:
        if self.closed:
            await child.kill()
        elif child.alive:
            self._free.append(child)


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
    if "\x00" in sql:
        raise SqlRefused("the query has a NUL character")
    total = 0
    for name, value in params.items() if isinstance(params, Mapping) else enumerate(params, 1):
        if isinstance(value, bool) or value is None or isinstance(value, float):
            continue
        if isinstance(value, int) and -(2**63) <= value < 2**63:
            continue
        if isinstance(value, (str, bytes)):
            total += len(value)
            continue
        raise SqlError(f"parameter {name}: {value!r:.60} is no value of SQL (None, bool, int of 64 bits, float, str, bytes)")
    if total > limits.value_bytes:
        raise SqlOverrun(f"the parameters are {total:,} bytes, the most is {limits.value_bytes:,}", limit="value_bytes")


def params_of(params: Params) -> Any:
    return dict(params) if isinstance(params, Mapping) else list(params)
