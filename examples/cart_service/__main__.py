"""Runs the service on an embedded Postgres, or on HARVEST_DATABASE_URL."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import uvicorn

from examples.cart_service.app import create_app
from harvest.hub.database import Database
from harvest.hub.embedded import EmbeddedPostgres
from harvest.hub.migrate import migrate


async def prepare(url: str) -> None:
    async with Database(url) as db:
        await migrate(db)


def main() -> None:
    given = os.environ.get("HARVEST_DATABASE_URL")
    postgres = None if given else EmbeddedPostgres(Path(".harvest") / "carts")
    url = given or postgres.start()  # type: ignore[union-attr]
    try:
        asyncio.run(prepare(url))
        uvicorn.run(create_app(url), host="127.0.0.1", port=int(os.environ.get("PORT", "8000")))
    finally:
        if postgres is not None:
            postgres.stop()


if __name__ == "__main__":
    main()
