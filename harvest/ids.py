"""Identifiers: time-ordered uuids, and the partition of a workflow id."""

from __future__ import annotations

import os
import time
from hashlib import sha256
from uuid import UUID

PARTITIONS = 512
WORKFLOW_ID_CAP = 512


def new_id() -> UUID:
    """A UUID version 7 (RFC 9562): its order is its age, so that rows of new runs lie together in an index."""
    ms = time.time_ns() // 1_000_000
    tail = int.from_bytes(os.urandom(10), "big")
    bits = (ms & 0xFFFF_FFFF_FFFF) << 80 | 7 << 76 | (tail >> 68 & 0xFFF) << 64 | 0b10 << 62 | tail & (1 << 62) - 1
    return UUID(int=bits)


def partition_of(workflow_id: str) -> int:
    """0..511; the top nine bits of SHA-256 of the id. The SQL twin is `partition_of(text)`."""
    digest = sha256(workflow_id.encode("utf-8", "surrogatepass")).digest()
    return digest[0] << 1 | digest[1] >> 7
