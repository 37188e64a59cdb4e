"""A sealed, disposable cache on disk: ordered chunks of bytes per entry, a file per scope and epoch.

    async with Cache("/var/cache/app") as cache:
        await cache.append(Scope("orders/17", epoch=4), entry=run_id, kind="history", first=1, last=120, data=b"…")
        found = await cache.read(Scope("orders/17", epoch=4), entry=run_id, kind="history")

Nothing here is the truth. The keys live in this process alone, so what it wrote ends with it: the files are deleted when
a cache opens and when it closes, and whatever cannot be read, sealed or stored is a miss, never an error.

    store           the cache: scopes, entries, bounds, what becomes of trouble
    scope_file      one SQLite file through aiosqlite
    seal            AES-256-GCM, a sub-key per scope and epoch
    directory_lock  one process per directory

A library of its own: it knows nothing of the engine that uses it.
"""

from .directory_lock import DirectoryBusy
from .store import Cache, Found, Scope

__all__ = ["Cache", "DirectoryBusy", "Found", "Scope"]
