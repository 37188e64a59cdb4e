"""The cache: entries by scope, what is known of them in memory, and what becomes of trouble."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple, Self

from .directory_lock import DirectoryLock
from .scope_file import ScopeFile, StoredChunk
from .seal import Broken, Seal, new_master

log = logging.getLogger("diskcache")
SUFFIX = ".sealed"
OPEN_FILES = 16
"""A file that is open has a thread of its own."""
INLINE = 64 * 1024
"""Bytes up to which a chunk is sealed or opened at once; larger ones go to a thread."""
Outcome = Literal["hit", "miss", "stale", "corrupt"]
Trouble = (sqlite3.Error, OSError, ValueError)


class Scope(NamedTuple):
    """Files of another scope or epoch cannot be read as this one."""

    name: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Found:
    """`chunks` in order, without a gap, up to number `last`; empty unless the outcome is a hit."""

    outcome: Outcome
    chunks: tuple[bytes, ...] = ()
    last: int = 0


@dataclass(slots=True)
class _Entry:
    first: int
    last: int
    chunks: int
    generation: int


@dataclass(slots=True)
class _Kept:
    """A scope that has a file."""

    scope: Scope
    seal: Seal
    file: ScopeFile
    entries: dict[tuple[bytes, str], _Entry] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    open: bool = False


class Cache:
    """`async with Cache(directory)`. Raises `DirectoryBusy` where another process has the directory.

    `generation` is a number that its user raises when what was sealed before must not be read again.
    """

    def __init__(self, directory: str | os.PathLike[str], *, generation: int = 0) -> None:
        self.directory = Path(directory)
        self.generation = generation
        self._lock = DirectoryLock(self.directory)
        self._master = new_master()
        self._scopes: dict[str, _Kept] = {}
        self._open: OrderedDict[str, _Kept] = OrderedDict()
        self.closed = True

    async def open(self) -> None:
        """Makes the directory ours, and empty. Raises `DirectoryBusy`, or `OSError` where it cannot be used."""
        await asyncio.to_thread(self._take)
        self.closed = False

    def _take(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock.acquire()
        try:
            self._sweep()
        except BaseException:
            self._lock.release()
            raise

    def _sweep(self) -> None:
        for path in self.directory.glob(f"*{SUFFIX}*"):
            path.unlink(missing_ok=True)

    async def close(self) -> None:
        """Deletes what was written."""
        if self.closed:
            return
        self.closed = True
        for kept in list(self._scopes.values()):
            await self._drop(kept)
        await asyncio.to_thread(self._sweep)
        self._lock.release()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        await self.close()

    # --- entries --------------------------------------------------------------------------------------

    def knows(self, scope: Scope, entry: bytes, kind: str) -> bool:
        """True when a read may find something: asks the memory alone."""
        kept = self._scopes.get(scope.name)
        return kept is not None and (entry, kind) in kept.entries

    def entries(self) -> dict[Scope, set[bytes]]:
        """All entries by scope."""
        return {kept.scope: {entry for entry, _ in kept.entries} for kept in self._scopes.values()}

    async def read(self, scope: Scope, entry: bytes, kind: str) -> Found:
        """Never raises for what is wrong with the file: that is a miss, and the entry is gone."""
        kept = self._scopes.get(scope.name)
        if kept is None or (entry, kind) not in kept.entries:
            return Found("miss")
        if kept.scope.epoch != scope.epoch:
            await self._drop(kept)
            return Found("stale")
        known = kept.entries[entry, kind]
        if known.generation != self.generation:
            await self.purge(scope, entry)
            return Found("stale")
        try:
            async with self._using(kept):
                if not kept.file.in_place:
                    raise FileNotFoundError
                rows = await kept.file.read(kept.seal.name(entry, kind))
            chunks = await self._opened(kept, entry, kind, known, rows)
        except FileNotFoundError:
            await self._drop(kept)
            return Found("stale")
        except Broken:
            await self.purge(scope, entry)
            return Found("corrupt")
        except Trouble as exc:
            log.warning("a cache file cannot be read and is dropped: %s", exc)
            await self._drop(kept)
            return Found("corrupt")
        return Found("hit", tuple(chunks), known.last)

    async def _opened(self, kept: _Kept, entry: bytes, kind: str, known: _Entry, rows: list[StoredChunk]) -> list[bytes]:
        if not rows or len(rows) != known.chunks or rows[0].first != known.first or rows[-1].last != known.last:
            raise Broken("chunks are missing")
        if any(row.first != before.last + 1 for before, row in pairwise(rows)):
            raise Broken("chunks do not join")

        def work() -> list[bytes]:
            return [kept.seal.open(row.sealed, entry, kind, row.first, row.last, known.generation) for row in rows]

        return work() if sum(len(row.sealed) for row in rows) < INLINE else await asyncio.to_thread(work)

    async def append(
        self, scope: Scope, entry: bytes, kind: str, first: int, last: int, data: bytes, *, begins: bool = True
    ) -> bool:
        """Adds a chunk that follows the last one; a chunk that does not begins the entry anew, if it may. False when it
        was not stored (a full disk, say)."""
        if self.closed or not first <= last:
            return False
        if not begins and not self._follows(scope, entry, kind, first):
            await self.purge(scope, entry, kind)
            return False
        kept = await self._kept(scope)
        if kept is None:
            return False
        known = kept.entries.get((entry, kind))
        if known is None and not begins:
            return False
        if known is not None and (first != known.last + 1 or known.generation != self.generation):
            await self.purge(scope, entry, kind)
            known = None
        generation = self.generation

        def work() -> bytes:
            return kept.seal.close(data, entry, kind, first, last, generation)

        sealed = work() if len(data) < INLINE else await asyncio.to_thread(work)
        try:
            async with self._using(kept):
                await kept.file.add(kept.seal.name(entry, kind), first, last, sealed)
        except Trouble as exc:
            log.warning("a cache file cannot be written and is dropped: %s", exc)
            await self._drop(kept)
            return False
        now = kept.entries.get((entry, kind))
        if now is not known or (known is not None and known.last != first - 1):
            await self.purge(scope, entry, kind)  # it went, or moved on, while the chunk was written
            return False
        if known is None:
            kept.entries[entry, kind] = _Entry(first, last, 1, generation)
        else:
            known.last, known.chunks = last, known.chunks + 1
        return True

    def _follows(self, scope: Scope, entry: bytes, kind: str, first: int) -> bool:
        kept = self._scopes.get(scope.name)
        known = None if kept is None or kept.scope != scope else kept.entries.get((entry, kind))
        return known is not None and known.last == first - 1

    async def purge(self, scope: Scope, entry: bytes, kind: str | None = None) -> None:
        """Removes an entry, or one kind of it."""
        kept = self._scopes.get(scope.name)
        if kept is None:
            return
        gone = [key for key in kept.entries if key[0] == entry and kind in (None, key[1])]
        for key in gone:
            del kept.entries[key]
        if not gone:
            return
        try:
            async with self._using(kept):
                await kept.file.purge([kept.seal.name(*key) for key in gone])
        except Trouble:
            await self._drop(kept)

    async def end(self, names: Iterable[str]) -> None:
        """These scopes are over: their files are deleted."""
        for name in names:
            kept = self._scopes.get(name)
            if kept is not None:
                await self._drop(kept)

    async def expire(self) -> None:
        """Deletes files in which everything is of an older generation."""
        for kept in list(self._scopes.values()):
            if kept.entries and all(entry.generation != self.generation for entry in kept.entries.values()):
                await self._drop(kept)

    # --- files ----------------------------------------------------------------------------------------

    async def _kept(self, scope: Scope) -> _Kept | None:
        kept = self._scopes.get(scope.name)
        if kept is not None and kept.scope.epoch != scope.epoch:
            if kept.scope.epoch > scope.epoch:
                return None  # somebody is late
            await self._drop(kept)
            kept = None
        if kept is None:
            label = blake2b(f"{scope.name}/{scope.epoch}".encode(), key=self._master, digest_size=16).hexdigest()
            file = ScopeFile(self.directory / f"{label}{SUFFIX}")
            kept = self._scopes[scope.name] = _Kept(scope, Seal(self._master, scope.name, scope.epoch), file)
        return kept

    @asynccontextmanager
    async def _using(self, kept: _Kept) -> AsyncIterator[None]:
        """The file, open, for one at a time; the one that was not used for longest is closed for it."""
        async with kept.lock:
            if self._scopes.get(kept.scope.name) is not kept:
                raise FileNotFoundError
            if not kept.open:
                await kept.file.open()
                kept.open = True
            self._open[kept.scope.name] = kept
            self._open.move_to_end(kept.scope.name)
            yield
        while len(self._open) > OPEN_FILES:
            _, oldest = self._open.popitem(last=False)
            async with oldest.lock:
                if oldest.scope.name not in self._open and oldest.open:
                    oldest.open = False
                    await oldest.file.close()

    async def _drop(self, kept: _Kept) -> None:
        """Close, delete, forget."""
        if self._scopes.get(kept.scope.name) is kept:
            del self._scopes[kept.scope.name]
        self._open.pop(kept.scope.name, None)
        async with kept.lock:
            kept.open = False
            try:
                await kept.file.close()
            except Trouble as exc:
                log.debug("closing a cache file: %s", exc)
            try:
                kept.file.path.unlink(missing_ok=True)
            except OSError as exc:
                log.warning("a cache file cannot be deleted: %s", exc)
