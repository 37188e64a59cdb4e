"""How a decider works."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeciderOptions:
    """`lanes` commit connections, numbered from `first_lane`; at most `batch` decisions in one statement; at most `attempts`
    of a logical run."""

    lanes: int = 2
    first_lane: int = 0
    batch: int = 256
    resident_entries: int = 1000
    resident_bytes: int = 256 * 1024 * 1024
    attempts: int = 256
