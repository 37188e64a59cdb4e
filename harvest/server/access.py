"""Who may do what: tokens, the session of the dashboard, and an open door on loopback while no token exists.

A request is let in as a `Principal`. `Access.principal` is the dependency of the server's own application; whoever mounts the
router elsewhere brings a dependency that returns one.
"""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated
from uuid import UUID

from fastapi import HTTPException, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from limits import RateLimitItem, parse
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter
from starlette.requests import HTTPConnection

from harvest.client import Client
from harvest.config import ServerConfig
from harvest.operations import tokens
from harvest.operations.tokens import SCOPES, Bearer, granted
from harvest.server.standing import Standing
from harvest.wakes.topics import TOKENS

COOKIE = "harvest_token"
KEEP = 30.0
"""Seconds that a verified token is believed; a NOTIFY of a change ends it at once."""
LOOK_UPS = parse("20/second")
"""Unknown tokens that are looked up all the same while an address is over its limit of failures."""
FOUND = "harvest.principal"
"""Where a request has who makes it."""
SAFE = ("GET", "HEAD", "OPTIONS")
FORWARDED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
"""What proxies add: behind one every caller seems to be on this machine."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who makes a request. `scopes` are some of read, operate, admin, sql; `operate` includes read, and `admin` both.

    `via`: token, cookie, open (nobody was asked) or app (the application that mounted the router says so).
    """

    name: str
    scopes: Collection[str] = ("read",)
    token_id: UUID | None = None
    via: str = "app"
    digest: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.scopes, str) or not set(self.scopes) <= set(SCOPES):
            raise ValueError(f"scopes: some of {', '.join(SCOPES)}, as a list, got {self.scopes!r}")

    def may(self, scope: str) -> bool:
        return scope in granted(list(self.scopes))


def loopback(host: str) -> bool:
    """True for a name or address that only this machine can reach."""
    name = host.strip("[]").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def host_of(header: str) -> str:
    """The name in a Host header, without its port; empty where it is none (RFC 9110, 7.2)."""
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?", header)
    return "" if found is None else found[1]


_bearer = HTTPBearer(auto_error=False, description="A token made with `harvest token create`.")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]


class Access:
    """The server's own door. Safe to share; `forget` is called when tokens changed."""

    def __init__(self, client: Client, config: ServerConfig) -> None:
        self.client, self.config = client, config
        self._known: dict[bytes, tuple[float, Bearer]] = {}
        self._bad: dict[bytes, float] = {}
        self._configured = False
        self._generation = 0
        self._standing = Standing(client.site)
        self.on_change: Callable[[], None] = lambda: None
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._rate: RateLimitItem = parse(config.rate_limit)
        self._failures: RateLimitItem = parse(config.failure_limit)

    async def open(self) -> None:
        """Before the first request: from now on changes of tokens are heard of."""
        await self.client.site.listener.add([TOKENS])
        self.client.site.router.subscribe(TOKENS, self.forget)
        self.client.site.listener.on_connect.append(self._reconnected)

    async def _reconnected(self, _: object) -> None:
        self.forget()

    def forget(self, _: object = None) -> None:
        self._known.clear()
        self._bad.clear()
        self._generation += 1
        self._standing.forget()
        self.on_change()

    async def still(self, who: Principal) -> bool:
        """True while somebody who was let in before still would be: streams ask when tokens have changed, and now and then."""
        return await self._standing.holds(who.digest)

    async def configured(self) -> bool:
        """True once any token was made: from then on nobody gets in without one."""
        if not self._configured:
            self._configured = await tokens.configured(self.client.site)
        return self._configured

    async def first(self, request: Request) -> Principal:
        """Asked before what is sent is read; the dependency of the route finds the same answer."""
        return await self.principal(request, await _bearer(request))

    async def principal(self, request: HTTPConnection, credentials: Credentials = None) -> Principal:
        """The dependency: whoever makes this request, else 401, 403 or 429."""
        known: Principal | None = request.scope.get(FOUND)
        if known is None:
            known = request.scope[FOUND] = await self._let_in(request, credentials)
        return known

    async def _let_in(self, request: HTTPConnection, credentials: HTTPAuthorizationCredentials | None) -> Principal:
        address = request.client.host if request.client else "?"
        secret, via = self._presented(request, credentials)
        if via == "cookie" and not await self.configured():  # of another server on this machine: cookies know no ports
            secret, via = None, "open"
        if secret is None:
            if not self._configured:
                self._check_open(request)  # first: whom it refuses costs the hub nothing
            if await self.configured():
                raise HTTPException(401, "a token is needed: Authorization: Bearer …", {"WWW-Authenticate": "Bearer"})
            who = Principal("anybody on this machine", SCOPES, via="open")
        else:
            bearer = await self._verified(secret, address)  # first: a good one is not kept out by others' bad ones
            if bearer is None:
                self._hit(self._failures, "failures", address)
                raise HTTPException(401, "this token is not valid", {"WWW-Authenticate": 'Bearer error="invalid_token"'})
            who = Principal(bearer.name, bearer.scopes, bearer.token_id, via, tokens.digest(secret))
        if via == "cookie" or who.via == "open":
            check_same_origin(request, strict=via == "cookie")
        self._hit(self._rate, "requests", f"{who.name}/{address if who.via == 'open' else ''}")
        return who

    def _presented(self, request: HTTPConnection, credentials: HTTPAuthorizationCredentials | None) -> tuple[str | None, str]:
        if credentials is not None:
            return credentials.credentials, "token"
        if request.headers.get("authorization"):
            raise HTTPException(401, "Authorization must be a Bearer token", {"WWW-Authenticate": "Bearer"})
        cookie = request.cookies.get(COOKIE)
        return cookie, "open" if cookie is None else "cookie"

    async def _verified(self, secret: str, address: str) -> Bearer | None:
        key, now = tokens.digest(secret), time.monotonic()
        known = self._known.get(key)
        if known is not None and now - known[0] < KEEP:
            bearer: Bearer | None = known[1]
        else:
            if now < self._bad.get(key, 0.0):
                return None
            if not self._limiter.test(self._failures, "failures", address):
                self._hit(LOOK_UPS, "look-ups")  # beyond it guesses cost the hub little, and a good token still gets in
            generation = self._generation
            bearer = await tokens.verify(self.client.site, secret)
            if bearer is None:
                if len(self._bad) > 10_000:
                    self._bad.clear()
                self._bad[key] = now + KEEP
                return None
            if len(self._known) > 10_000:
                self._known.clear()
            if generation == self._generation:  # else it may have been revoked meanwhile
                self._known[key] = (now, bearer)
        if bearer is not None and bearer.until is not None and bearer.until <= datetime.now(UTC):
            return None
        return bearer

    def _check_open(self, request: HTTPConnection) -> None:
        """Without tokens: from this machine, and by a name of this machine, which no page from elsewhere can forge."""
        host, peer = request.headers.get("host", ""), request.client.host if request.client else ""
        if passed := next((name for name in FORWARDED if name in request.headers), None):
            raise HTTPException(
                403, f"a proxy sent this ({passed}), for whoever: behind one a token is needed; make one: harvest token create"
            )
        if (
            len(request.headers.getlist("host")) > 1
            or not loopback(host_of(host))
            or not (loopback(peer) or peer in ("", "testclient"))
        ):
            raise HTTPException(403, "without a token this server answers on loopback only; make one: harvest token create")

    def _hit(self, item: RateLimitItem, *identifiers: str) -> None:
        if not self._limiter.hit(item, *identifiers):
            reset = self._limiter.get_window_stats(item, *identifiers).reset_time
            wait = max(1, round(reset - time.time()))
            raise HTTPException(429, f"more than {item} of {identifiers[0]}", {"Retry-After": str(wait)})


def check_same_origin(request: HTTPConnection, *, strict: bool) -> None:
    """A browser must not be made to act by another site's page. `strict`: it has to say where the request comes from."""
    if request.scope.get("method", "GET") in SAFE:
        return
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is None and origin is None:
        if strict:
            raise HTTPException(403, "a request with the dashboard's cookie must come from its own pages (no Origin was sent)")
        return
    own = site in ("same-origin", "none") if site is not None else _own(origin or "", request)
    if not own:
        raise HTTPException(403, "this request comes from another site's page")


def _own(origin: str, request: HTTPConnection) -> bool:
    return origin in (f"{scheme}://{request.headers.get('host', '')}" for scheme in ("http", "https"))
