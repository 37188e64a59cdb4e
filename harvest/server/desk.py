"""What every route stands on: the client, who is let in, and what is shared between requests."""

import base64
import json
from collections.abc import Awaitable, Callable
from datetime import datetime
from math import inf
from typing import Annotated, Any
from uuid import UUID

from fastapi import Depends, HTTPException, Request
from fastapi.params import Depends as Dependency

from harvest.client import Client
from harvest.ids import WORKFLOW_ID_CAP, check_name
from harvest.operations.audit import Auditor
from harvest.operations.watch import Watch
from harvest.server.access import Principal, check_same_origin
from harvest.server.metrics import ServerMetrics
from harvest.server.problems import MEDIA_TYPE, Problem
from harvest.server.routing import audited, counting
from harvest.server.shared import Shared

PROBLEMS: dict[int | str, dict[str, Any]] = {
    "default": {"description": "What went wrong (RFC 9457)", "content": {MEDIA_TYPE: {"schema": Problem.model_json_schema()}}}
}
"""Every route answers with a problem document where it cannot do what it was asked."""


async def always(_: Principal) -> bool:
    return True


class Desk:
    """`auth` is a FastAPI dependency that returns a `Principal`, or raises; `still(who)` is asked while a stream goes on, which
    ends after `longest_stream` seconds for its reader to be let in anew. `first(request)` raises for whom nothing is read."""

    def __init__(
        self,
        client: Client,
        auth: Callable[..., Any],
        *,
        max_wait: float = 60.0,
        still: Callable[[Principal], Awaitable[bool]] = always,
        longest_stream: float = inf,
        first: Callable[[Request], Awaitable[object]] | None = None,
    ) -> None:
        self.client, self.auth, self.max_wait, self.still = client, auth, max_wait, still
        self.longest_stream = longest_stream
        self.auditor = Auditor(client.db)
        self.watch = Watch(client.site)
        self.shared = Shared()
        self.watch.on_news = self.shared.forget
        self.metrics = ServerMetrics(client, self.shared, self.watch)
        self.route = counting(self.metrics, first)

    def patience(self, seconds: float) -> float:
        """How long a request waits that asks for so many seconds."""
        return min(seconds, self.max_wait)

    def needs(self, scope: str, *, mutates: bool = False) -> Dependency:
        """Lets in who has the scope; a call that mutates leaves an audit row first."""

        async def let_in(request: Request, who: Annotated[Principal, Depends(self.auth)]) -> Principal:
            if not isinstance(who, Principal):
                raise TypeError(
                    f"the auth dependency of harvest.server.router returns a Principal or raises HTTPException, not {who!r:.80}"
                )
            request.state.harvest_who = who
            if who.via == "app":  # whatever its sign-in rests on, a page of another site must not use it
                check_same_origin(request, strict=False)
            if mutates:  # also what is refused: somebody tried
                await audited(request, who, self.auditor)
            if not who.may(scope):
                raise HTTPException(403, f"this needs the scope {scope!r}, and {who.name!r} has {', '.join(who.scopes)}")
            return who

        let_in.scope = scope  # type: ignore[attr-defined]  # for the page of the reference
        found: Dependency = Depends(let_in)
        return found

    def changed(self, workflow_id: str) -> None:
        """A run was acted on here: who watches it looks again."""
        self.watch.touched(workflow_id)


def cursor_text(*parts: Any) -> str:
    """An opaque place in a listing."""
    texts = [part.isoformat() if isinstance(part, datetime) else str(part) for part in parts]
    return base64.urlsafe_b64encode(json.dumps(texts).encode()).decode().rstrip("=")


def _parts(cursor: str, count: int) -> list[str]:
    try:
        found = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if isinstance(found, list) and len(found) == count and all(isinstance(part, str) for part in found):
            return found
    except (ValueError, RecursionError):
        pass
    raise HTTPException(400, "cursor: not one that a listing has given")


def cursor_place(cursor: str | None) -> tuple[datetime, UUID] | None:
    """(time, id) of the last row seen. Raises 400."""
    if cursor is None:
        return None
    at, last = _parts(cursor, 2)
    try:
        place = datetime.fromisoformat(at), UUID(last)
    except ValueError:
        raise HTTPException(400, "cursor: not one that a listing has given") from None
    if place[0].tzinfo is None or not 1900 < place[0].year < 9000:
        raise HTTPException(400, "cursor: not one that a listing has given")
    return place


def cursor_key(cursor: str | None) -> str:
    """The last key seen. Raises 400."""
    return "" if cursor is None else check_name("cursor", _parts(cursor, 1)[0], WORKFLOW_ID_CAP)
