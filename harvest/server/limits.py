"""How much a caller may send. (FastAPI's own limit answers in plain text; ours is a problem like any other.)"""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from harvest.server import problems


class BodyLimit:
    """Refuses bodies over `most` bytes, whether or not they say how long they are."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self.app, self.most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        too_large = HTTPException(
            413, f"a request has at most {self.most:,} bytes (HARVEST_SERVER_MAX_BODY)", {"Connection": "close"}
        )
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > self.most:
            await problems.of_http(too_large)(scope, receive, send)
            return
        came = 0

        async def take() -> Message:
            nonlocal came
            message = await receive()
            came += len(message.get("body", b""))
            if came > self.most:
                raise too_large  # within a route, which answers with it
            return message

        await self.app(scope, take, send)
