"""Server-sent events (WHATWG HTML, 9.2)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi.responses import StreamingResponse

MEDIA_TYPE = "text/event-stream"
COMMENT = ": \n\n"
"""Keeps proxies from closing a quiet stream."""
STREAM: dict[str, Any] = {"description": "Server-sent events", "content": {MEDIA_TYPE: {"schema": {"type": "string"}}}}


def event_of(event: str, data: Any, *, id: str | None = None) -> str:
    head = "" if id is None else f"id: {id}\n"
    return f"{head}event: {event}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"


def stream_response(events: AsyncIterator[str]) -> StreamingResponse:
    return StreamingResponse(events, media_type=MEDIA_TYPE, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
