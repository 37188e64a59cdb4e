"""Middlewares of the server's own application: how much a caller may send, and what browsers are told."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from harvest.server.problems import problem, problem_response

HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
)
DOCS = (b"/docs", b"/redoc")


class BodyTooLarge(Exception):
    """More came than may be sent."""


class Guard:
    """Refuses bodies over `most` bytes, whether or not they say how long they are, and adds headers that bind browsers."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self.app, self.most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        declared = headers.get(b"content-length", b"0")
        started = False

        async def reply(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                known = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(h for h in HEADERS if h[0] not in known)]
            await send(message)

        came = 0

        async def take() -> Message:
            nonlocal came
            message = await receive()
            came += len(message.get("body", b""))
            if came > self.most:
                raise BodyTooLarge
            return message

        try:
            if declared.isdigit() and int(declared) > self.most:
                raise BodyTooLarge
            await self.app(scope, take, reply)
        except BodyTooLarge:
            if started:
                raise
            too_large = problem(
                413, "BodyTooLarge", f"a request has at most {self.most:,} bytes", hint="HARVEST_SERVER_MAX_BODY"
            )
            await problem_response(too_large, {"Connection": "close"})(scope, receive, reply)
