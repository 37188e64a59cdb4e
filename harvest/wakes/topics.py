"""Channels, and payloads that fit Postgres' 8,000 bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

DECIDE = "decide"
"""`[pool, [[execution_id, partition], ...]]`: these runs have something to do."""
QUEUE = "queue"
"""`[queue, ...]`: activity tasks wait."""
CLOSED = "closed"
"""`[execution_id, ...]`: these runs ended."""
REPLY = "reply"
"""`[reply_key, ...]`: these updates were answered."""
OWNERS = "owners"
"""`[pool, ...]`: ownership there changed, or a worker came or went."""
SWITCH = "switch"
"""The hub's new mode."""
ASK = "ask"
"""A query for the owner of a run; see `operations.query`."""
ANSWER = "answer"
"""`[query id, "result" or "failure", JSON]`."""
WATCH = "watch"
"""Seconds for which somebody watches: workers tell what changes meanwhile."""
CHANGED = "changed"
"""`[[execution_id, workflow_id, type, state, last event], ...]`: where these runs have got to. Only while somebody watches."""
TOKENS = "tokens"
"""Tokens of the HTTP API were made, rotated or revoked."""

CAP = 7_600


def reply_key(workflow_id: str, update_id: str) -> str:
    """The same over all runs of a workflow id, and short whatever the ids are."""
    return sha256(f"{workflow_id}/{update_id}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def channel(schema: str, topic: str) -> str:
    return f"{schema}_{topic}"


def dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def chunks(items: Iterable[Any], *, cap: int = CAP) -> Iterable[list[Any]]:
    """Splits items so that each chunk's JSON stays under the cap."""
    chunk: list[Any] = []
    size = 2
    for item in items:
        length = len(dump(item).encode()) + 1
        if chunk and size + length > cap:
            yield chunk
            chunk, size = [], 2
        chunk.append(item)
        size += length
    if chunk:
        yield chunk
