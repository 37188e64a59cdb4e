"""The way in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from harvest.client.client import Client
from harvest.client.shards import ShardedClient
from harvest.config import HubSettings
from harvest.definitions.options import Span, seconds
from harvest.errors import ConfigError
from harvest.hub.database import Database


@overload
def connect(
    dsn: str | None = None, *, shards: None = None, schema: str | None = None, pool_size: int = 8, patience: Span = 10.0
) -> Client: ...
@overload
def connect(
    *, shards: Sequence[str], schema: str | None = None, pool_size: int = 8, patience: Span = 10.0
) -> ShardedClient: ...
def connect(
    dsn: str | None = None,
    *,
    shards: Sequence[str] | None = None,
    schema: str | None = None,
    pool_size: int = 8,
    patience: Span = 10.0,
) -> Client | ShardedClient:
    """A client for the hub at `dsn` (default `HARVEST_DATABASE_URL`), or for several hubs; use it with `async with`.

    `patience` is how long a call waits for a database that is away before it raises `HubUnreachable`.
    Opening raises `HubUnreachable`, `HubNotMigrated`, `HubNewer` or `ConfigError`; of several hubs one has to be up.
    """
    settings = HubSettings()

    def client(address: str) -> Client:
        db = Database(
            address,
            schema=schema or settings.db_schema,
            size=pool_size,
            patience=seconds("patience", patience) or 10.0,
        )
        return Client(db)

    if shards is None:
        return client(dsn or settings.database_url)
    if dsn is not None:
        raise ConfigError("shards", "give either one database URL or shards, not both")
    if isinstance(shards, str) or len(set(shards)) < len(shards):
        raise ConfigError("shards", f"must be a list of different database URLs, got {shards!r:.200}", hint="[url, url, …]")
    return ShardedClient([client(address) for address in shards])
