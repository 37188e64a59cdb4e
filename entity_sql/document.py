"""What is asked about."""

from __future__ import annotations

from dataclasses import dataclass

from .wire import Row


@dataclass(frozen=True, slots=True)
class Document:
    """`state` is a JSON text in UTF-8; `updated_at` ISO 8601."""

    type: str
    key: str
    state: bytes
    event_id: int = 0
    updated_at: str = ""

    def row(self) -> Row:
        return Row(self.type, self.key, self.state, self.event_id, self.updated_at)
