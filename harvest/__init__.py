"""Harvest: durable workflows and stateful entities on the Postgres you already have.

import harvest
from harvest import activity, workflow

async with harvest.connect("postgresql://…") as client:
    handle = await client.start(checkout, order, id="order-7")
    receipt = await handle.result()
"""

from harvest import activity, entity, errors, workflow
from harvest.client import Client, EntityHandle, ShardedClient, WorkflowHandle, connect
from harvest.config import WorkerConfig
from harvest.definitions.options import RetryPolicy
from harvest.errors import ApplicationError, HarvestError
from harvest.node import ShardedWorker, Worker

__version__ = "0.1.0"
__all__ = [
    "ApplicationError",
    "Client",
    "EntityHandle",
    "HarvestError",
    "RetryPolicy",
    "ShardedClient",
    "ShardedWorker",
    "Worker",
    "WorkerConfig",
    "WorkflowHandle",
    "activity",
    "connect",
    "entity",
    "errors",
    "workflow",
]
