"""Server-sent events (WHATWG HTML, 9.2)."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from math import inf
from typing import Any

from fastapi.responses import StreamingResponse

from harvest.errors import HarvestError

log = logging.getLogger("harvest.server")
MEDIA_TYPE = "text/event-stream"
COMMENT = ": \n\n"
"""Keeps proxies from closing a quiet stream."""
STREAM: dict[str, Any] = {"description": "Server-sent events", "content": {MEDIA_TYPE: {"schema": {"type": "string"}}}}


def event_of(event: str, data: Any, *, id: str | None = None) -> str:
    head = "" if id is None else f"id: {id}\n"
    return f"{head}event: {event}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"


async def _for_a_while(events: AsyncIterator[str], longest: float) -> AsyncIterator[str]:
    """Ends where the hub is away, or after `longest` seconds: whoever listens comes again, is let in anew, and goes on
    from its last event."""
    clock = asyncio.get_running_loop().time
    until = clock() + longest
    try:
        async for event in events:
            yield event
            if clock() > until:
                return
    except HarvestError as exc:  # the hub is away, or the run was erased
        log.warning("a stream ends: %s", exc.message)


def stream_response(events: AsyncIterator[str], longest: float = inf) -> StreamingResponse:
    events = _for_a_while(events, longest)
    return StreamingResponse(events, media_type=MEDIA_TYPE, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
