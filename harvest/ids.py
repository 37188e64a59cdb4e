"""Identifiers: time-ordered uuids, and the partition of a workflow id."""

from __future__ import annotations

import os
import time
from hashlib import sha256
from uuid import UUID

from harvest.errors import ConfigError, PayloadError

PARTITIONS = 512
NAME_CAP = 200
WORKFLOW_ID_CAP = 512


def check_name(what: str, value: object, cap: int = NAME_CAP) -> str:
    """A non-empty text that Postgres can hold, of at most `cap` characters; else `PayloadError` naming it."""
    if not isinstance(value, str) or not value:
        raise PayloadError(what, f"must be a non-empty text, got {value!r:.100}")
    if len(value) > cap:
        raise PayloadError(what, f"has at most {cap} characters, got {len(value):,}: {value[:40]!r}...")
    if "\x00" in value or any("\ud800" <= c <= "\udfff" for c in value):
        raise PayloadError(what, f"must not contain NUL or lone surrogates, got {value[:100]!r}")
    return value


def check_queue(what: str, value: object) -> str:
    """The name of a task queue: `@` is kept for the pools of pinned builds."""
    name = check_name(what, value)
    if "@" in name:
        raise PayloadError(what, f"must not contain '@', got {name!r}", hint="pin a run to a build with build_id=")
    return name


def shard_of(workflow_id: str, shards: int) -> int:
    """The shard of a run: that of its root, the part of the id before the first `/`. Children whose ids begin with their
    parent's (the default) are where their parent is."""
    root = workflow_id.partition("/")[0].removeprefix(ENTITY)
    digest = sha256(b"shard:" + root.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % shards


ENTITY = "@"
"""The workflow ids of entities begin with this; those of other runs must not."""


def entity_id(type: str, key: str) -> str:
    """The workflow id of an entity. Raises `PayloadError` for a key that cannot be."""
    return f"{ENTITY}{type}:{check_name('key', key, WORKFLOW_ID_CAP - len(type) - 2)}"


def is_entity(workflow_id: str) -> bool:
    return workflow_id.startswith(ENTITY)


def key_of(workflow_id: str) -> str:
    """The key of an entity, from its workflow id."""
    return workflow_id.partition(":")[2]


def check_build(what: str, value: object) -> str:
    """The name of a build that runs can be pinned to."""
    name = check_name(what, value)
    if name == "default":
        raise PayloadError(what, "'default' is what builds without a name are called", hint="start workers with a build_id")
    if "@" in name or any(c.isspace() for c in name):
        raise PayloadError(what, f"must not contain '@' or spaces, got {name!r}")
    return name


def pool_of(queue: str, build_id: str | None) -> str:
    """The pool of a run: its queue, or for a pinned one its queue and build."""
    return queue if build_id is None else f"{queue}@{build_id}"


def queue_of(pool: str) -> str:
    return pool.partition("@")[0]


def check_priority(what: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -1000 <= value <= 1000:
        raise PayloadError(what, f"must be a whole number from -1000 to 1000, got {value!r}")
    return value


def as_uuid(name: str, value: UUID | str) -> UUID:
    """An execution id as people have it. Raises `ConfigError` for what is none."""
    try:
        return value if isinstance(value, UUID) else UUID(value)
    except (ValueError, TypeError, AttributeError):
        raise ConfigError(name, f"must be a UUID, got {value!r}") from None


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
