"""Answers as JSON has them: for the command line and the HTTP API."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

DEEPEST = 150
"""What is nested deeper is not shown: the writers of JSON have their limits."""


def plain(value: Any, depth: int = 0) -> Any:
    """Dataclasses and structs as dicts, times and ids as texts, stored JSON as what it says."""
    if depth > DEEPEST:
        return f"(nested more than {DEEPEST} deep)"
    depth += 1
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, dict):
        return {str(k): plain(v, depth) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v, depth) for v in value]
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name), depth) for field in fields(value)}
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name), depth) for name in value.__struct_fields__}
    if isinstance(value, msgspec.Raw):
        return plain(msgspec.json.decode(bytes(value)), depth)
    return value
