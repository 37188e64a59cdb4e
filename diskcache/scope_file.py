"""One SQLite file. It is disposable, so it is written without journal and without syncing; any trouble ends it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import aiosqlite

_PRAGMAS = ("locking_mode=EXCLUSIVE", "journal_mode=OFF", "synchronous=OFF", "temp_store=MEMORY", "cell_size_check=ON")
_TABLE = (
    "create table if not exists chunks (name blob, first integer, last integer, sealed blob, primary key (name, first))"
    " without rowid"
)


class StoredChunk(NamedTuple):
    first: int
    last: int
    sealed: bytes


class ScopeFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._db: aiosqlite.Connection | None = None
        self._inode = 0

    async def open(self) -> None:
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0), 0o600)
        self._inode = os.fstat(fd).st_ino
        os.close(fd)
        db = self._db = await aiosqlite.connect(self.path, isolation_level=None, timeout=0)
        for pragma in _PRAGMAS:
            await db.execute(f"pragma {pragma}")
        await db.execute(_TABLE)

    @property
    def in_place(self) -> bool:
        """False once the file was deleted or replaced under us: it is still readable then, and nobody knows it."""
        try:
            return self.path.stat().st_ino == self._inode
        except OSError:
            return False

    async def add(self, name: bytes, first: int, last: int, sealed: bytes) -> None:
        await self._live().execute("insert or replace into chunks values (?, ?, ?, ?)", (name, first, last, sealed))

    async def read(self, name: bytes) -> list[StoredChunk]:
        rows = await self._live().execute_fetchall(
            "select first, last, sealed from chunks where name = ? order by first", (name,)
        )
        return [StoredChunk(*row) for row in rows]

    async def purge(self, names: list[bytes]) -> None:
        await self._live().executemany("delete from chunks where name = ?", [(name,) for name in names])

    def _live(self) -> aiosqlite.Connection:
        if self._db is None:
            raise OSError("the file is closed")
        return self._db

    async def close(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            await db.close()
