"""How many partitions a worker should own, and what it does about it: pure (O-3)."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from harvest.ids import PARTITIONS


def target(live: int) -> int:
    """The share of each of `live` owners, rounded up, so that the shares cover all partitions."""
    return -(-PARTITIONS // max(1, live))


class Plan(NamedTuple):
    """`acquire` is how many free partitions to take, `surplus` which ones to stop taking work in."""

    acquire: int
    surplus: list[int]


def plan(held: Collection[int], live: int, free: int) -> Plan:
    """What an owner of `held` does when `live` owners (with itself) scan and `free` partitions have none.

    One above its share is tolerated, so that a fleet whose size does not divide 512 comes to rest.
    """
    share = target(live)
    if len(held) > share + 1:
        return Plan(0, sorted(held)[share:])
    return Plan(max(0, min(free, share - len(held))), [])


def difference(mine: dict[str, Sequence[str]], theirs: dict[str, Sequence[str]]) -> str:
    """How two sets of registered types differ, in words; empty when they do not. Keys: workflows, activities."""
    parts = []
    for kind in ("workflows", "activities"):
        ours, other = set(mine.get(kind, ())), set(theirs.get(kind, ()))
        if ours - other:
            parts.append(f"it lacks the {kind} {', '.join(sorted(ours - other))}")
        if other - ours:
            parts.append(f"this worker lacks the {kind} {', '.join(sorted(other - ours))}")
    return "; ".join(parts)


def refusal(pool: str, mine: dict[str, Sequence[str]], build_id: str, owners: Sequence[Any]) -> str | None:
    """Why a worker may not own in `pool`, or None. `owners` are rows of living workers with definitions (JSON) and build_id.

    Every owner must be able to run each task of its partitions, so all owners of a pool know the same types;
    those of a pinned pool run the same build, on the same Python.
    """
    for owner in owners:
        if pool not in owner["grants"]:
            continue
        who = f"worker {owner['worker_id']} ({owner['host']}, pid {owner['pid']}, build {owner['build_id']})"
        differs = difference(mine, json.loads(owner["definitions"]))
        if differs:
            return f"{who} owns partitions of {pool!r} and registers other types: {differs}"
        if "@" in pool and owner["build_id"] != build_id:
            return f"{who} owns partitions of {pool!r} and runs another build than {build_id}"
    return None
