"""The HTTP API: one module per noun. Each has `routes(desk)`."""

from __future__ import annotations

from fastapi import APIRouter

from harvest.server.api import collection, entities, fleet, runs
from harvest.server.desk import Desk

PREFIX = "/api"


def api(desk: Desk) -> APIRouter:
    """Every route of the API, below `PREFIX`. Fixed paths come before those that take an id."""
    router = APIRouter()
    for part in (
        collection.routes(desk, PREFIX),
        runs.routes(desk, runs.by_id(desk), f"{PREFIX}/workflows/by-id/{{workflow_id:path}}", "runs by id"),
        runs.routes(desk, runs.by_execution(desk), f"{PREFIX}/workflows/{{execution_id:uuid}}", "executions"),
        entities.routes(desk, PREFIX),
        fleet.routes(desk, PREFIX),
    ):
        router.routes.extend(part.routes)  # one list: a router within a router is searched twice for each request
    return router
