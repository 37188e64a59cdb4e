"""Server-sent events (WHATWG HTML, 9.2)."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from typing import Any

from fastapi.responses import StreamingResponse

from harvest.errors import HubError

log = logging.getLogger("harvest.server")
MEDIA_TYPE = "text/event-stream"
COMMENT = ": \n\n"
"""Keeps proxies from closing a quiet stream."""
STREAM: dict[str, Any] = {"description": "Server-sent events", "content": {MEDIA_TYPE: {"schema": {"type": "string"}}}}


def event_of(event: str, data: Any, *, id: str | None = None) -> str:
    head = "" if id is None else f"id: {id}\n"
    return f"{head}event: {event}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"


async def _while_there_is_a_hub(events: AsyncIterator[str]) -> AsyncIterator[str]:
    """Ends where the hub is away: whoever listens comes again by itself, and goes on from its last event."""
    try:
        async for event in events:
            yield event
    except HubError as exc:
        log.warning("a stream ends: %s", exc.message)


def stream_response(events: AsyncIterator[str]) -> StreamingResponse:
    events = _while_there_is_a_hub(events)
    return StreamingResponse(events, media_type=MEDIA_TYPE, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
