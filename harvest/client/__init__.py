"""What Python callers hold: `connect` → `Client` → `WorkflowHandle`. Thin: the verbs live in `operations`.

With `connect(shards=[…])` a `ShardedClient` stands before several hubs.
"""

from harvest.client.client import Client
from harvest.client.connect import connect
from harvest.client.entity import EntityHandle, EntitySummary
from harvest.client.handle import ChainLink, Description, RunSummary, Signalled, Snapshot, WorkflowHandle
from harvest.client.shards import Listing, ShardedClient, Unavailable
from harvest.core.standing import Awaitable, TaskStack
from harvest.operations.bulk import BulkReport
from harvest.operations.care import Note
from harvest.operations.dead_letters import Cause, DeadLetter
from harvest.operations.diagnose import Diagnosis
from harvest.operations.timeline import Span

__all__ = [
    "Awaitable",
    "BulkReport",
    "Cause",
    "ChainLink",
    "Client",
    "DeadLetter",
    "Description",
    "Diagnosis",
    "EntityHandle",
    "EntitySummary",
    "Listing",
    "Note",
    "RunSummary",
    "ShardedClient",
    "Signalled",
    "Snapshot",
    "Span",
    "TaskStack",
    "Unavailable",
    "WorkflowHandle",
    "connect",
]
