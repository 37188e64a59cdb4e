"""The HTTP API: one module per noun. Each has `routes(desk)`."""

from __future__ import annotations

from fastapi import APIRouter

from harvest.server.api import collection, entities, fleet, runs
from harvest.server.desk import Desk


def api(desk: Desk) -> APIRouter:
    """Every route of the API. Fixed paths come before those that take an id."""
    router = APIRouter()
    router.include_router(collection.routes(desk))
    router.include_router(runs.routes(desk, runs.by_id(desk), "/workflows/by-id/{workflow_id:path}", "runs by id"))
    router.include_router(runs.routes(desk, runs.by_execution(desk), "/workflows/{execution_id:uuid}", "executions"))
    router.include_router(entities.routes(desk))
    router.include_router(fleet.routes(desk))
    return router
