"""What Python callers hold: `connect` → `Client` → `WorkflowHandle`. Thin: the verbs live in `operations`.

With `connect(shards=[…])` a `ShardedClient` stands before several hubs.
"""

from harvest.client.client import Client
from harvest.client.connect import connect
from harvest.client.entity import EntityHandle, EntitySummary
from harvest.client.handle import Description, RunSummary, Snapshot, WorkflowHandle
from harvest.client.shards import Listing, ShardedClient, Unavailable

__all__ = [
    "Client",
    "Description",
    "EntityHandle",
    "EntitySummary",
    "Listing",
    "RunSummary",
    "ShardedClient",
    "Snapshot",
    "Unavailable",
    "WorkflowHandle",
    "connect",
]
