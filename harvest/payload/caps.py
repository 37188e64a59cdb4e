"""Payload caps (R-12), in bytes of JSON."""

from __future__ import annotations

from harvest.errors import PayloadTooLarge

INPUT_CAP = 2 * 1024 * 1024
RESULT_CAP = 2 * 1024 * 1024
SIGNAL_CAP = 256 * 1024
STATE_CAP = 8 * 1024 * 1024


def check_size(where: str, payload: bytes, cap: int) -> bytes:
    """`payload`, or `PayloadTooLarge` naming it, its size and the cap."""
    if len(payload) > cap:
        raise PayloadTooLarge(where, len(payload), cap)
    return payload
