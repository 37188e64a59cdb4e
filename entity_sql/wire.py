"""Frames between parent and child: four bytes of length, then MessagePack."""

from __future__ import annotations

import base64
import math
from typing import Any, Union

import msgspec

Value = Any
"""None, int, float, str or bytes."""
HEAD = 4


class Limited(msgspec.Struct, array_like=True):
    """The bounds of a query as a child keeps them."""

    steps: int
    seconds: float
    memory: int
    rows: int
    cells: int
    result_bytes: int
    value_bytes: int


class Document(msgspec.Struct, array_like=True, frozen=True):
    """What is asked about. `state` is a JSON text in UTF-8, `updated_at` ISO 8601."""

    type: str
    key: str
    state: bytes
    event_id: int = 0
    updated_at: str = ""


class Ask(msgspec.Struct, tag=True, tag_field="_"):
    """One statement over one document."""

    row: Document
    sql: str
    params: Any
    bounds: Limited


class Put(msgspec.Struct, tag=True, tag_field="_"):
    """Documents that are new or have changed, and keys that are gone. `indexes` are paths of the state."""

    type: str
    rows: list[Document] = []
    gone: list[str] = []
    indexes: list[str] = []


class AskTable(msgspec.Struct, tag=True, tag_field="_"):
    """One statement over all documents of a type."""

    type: str
    sql: str
    params: Any
    bounds: Limited


class Merge(msgspec.Struct, tag=True, tag_field="_"):
    """The final statement over the rows that the partial ones gave, in a table `part` with columns c0, c1, …"""

    width: int
    rows: list[list[Value]]
    sql: str
    params: Any
    bounds: Limited


class Split(msgspec.Struct, tag=True, tag_field="_"):
    """How a statement over a type that lies in several places is asked."""

    sql: str


class Read(msgspec.Struct, tag=True, tag_field="_"):
    """What a statement reads, and how Postgres would spell it."""

    sql: str


Request = Union[Ask, Put, AskTable, Merge, Split, Read]


class Result(msgspec.Struct, tag=True, tag_field="_"):
    """Rows as SQLite gave them: None, int, float (also infinite), str or bytes."""

    columns: list[str]
    rows: list[list[Value]]

    def dicts(self) -> list[dict[str, Value]]:
        """Rows by column name; the second of two equal names is `name:2`."""
        names: list[str] = []
        for name in self.columns:
            label, count = name, 1
            while label in names:
                count += 1
                label = f"{name}:{count}"
            names.append(label)
        return [dict(zip(names, row, strict=True)) for row in self.rows]


class Plan(msgspec.Struct, tag=True, tag_field="_"):
    """`partial` is asked in each place; `final` over all their rows (`width` columns). `rows_alone` is true where an
    answer is just the rows of all places, in no order: they need no final part."""

    partial: str
    final: str
    width: int
    columns: list[str]
    rows_alone: bool


class Reading(msgspec.Struct, tag=True, tag_field="_"):
    """`fields` are the paths of the state that a query reads, `*` for all of it."""

    fields: list[str]
    postgres: str


class Done(msgspec.Struct, tag=True, tag_field="_"):
    """Bytes that SQLite holds now."""

    memory: int


class Failed(msgspec.Struct, tag=True, tag_field="_"):
    """`kind`: error, refused or overrun."""

    kind: str
    message: str
    limit: str = ""
    line: int | None = None
    column: int | None = None


Reply = Union[Result, Plan, Reading, Done, Failed]

_encoder = msgspec.msgpack.Encoder()
_requests = msgspec.msgpack.Decoder(Request)
_replies = msgspec.msgpack.Decoder(Reply)


def frame(message: msgspec.Struct) -> bytes:
    body = _encoder.encode(message)
    return len(body).to_bytes(HEAD, "big") + body


def request_of(body: bytes) -> Request:
    return _requests.decode(body)


def reply_of(body: bytes) -> Reply:
    return _replies.decode(body)


def size_of(row: list[Value]) -> int:
    """Bytes that a row takes in an answer."""
    return sum(
        8 if not isinstance(v, (str, bytes)) else len(v) if isinstance(v, bytes) or v.isascii() else len(v.encode())
        for v in row
    )


def by_name(params: Any) -> Any:
    """Parameters as the parts of a plan take them: the first of a list is `:p1`."""
    return params if isinstance(params, dict) else {f"p{n}": value for n, value in enumerate(params, 1)}


def plain(value: Value) -> Any:
    """A value as JSON has it: infinities become the texts "Infinity" and "-Infinity", bytes {"base64": …}."""
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    return value
