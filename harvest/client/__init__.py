"""What Python callers hold: `connect` → `Client` → `WorkflowHandle`. Thin: the verbs live in `operations`."""

from harvest.client.client import Client, connect
from harvest.client.handle import Description, RunSummary, Snapshot, WorkflowHandle

__all__ = ["Client", "Description", "RunSummary", "Snapshot", "WorkflowHandle", "connect"]
