"""`client.tokens`: who may use the HTTP API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harvest.client.operated import somebody
from harvest.definitions.options import Span, seconds
from harvest.operations import tokens
from harvest.operations.site import Site
from harvest.operations.tokens import NewToken, Token


class Tokens:
    """Of one hub. Scopes: read, operate (includes read), admin (includes both), and sql on its own."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def create(
        self, name: str, *, scopes: Sequence[str], expires_in: Span = None, created_by: str | None = None
    ) -> NewToken:
        """The secret is in what this returns, and nowhere else. Raises `TokenExists`, `ConfigError`."""
        lifetime = seconds("expires_in", expires_in)
        return await tokens.create(self._site, name, scopes, somebody(created_by), lifetime)

    async def rotate(self, name: str, *, grace: Span = 0.0, expires_in: Span = None) -> NewToken:
        """A new secret under the same name; the old one holds for `grace`. Raises `TokenNotFound`."""
        lifetime = seconds("expires_in", expires_in)
        return await tokens.rotate(self._site, name, seconds("grace", grace, zero=True) or 0.0, lifetime)

    async def revoke(self, name: str) -> Token:
        """Ends it at once, on every server. Raises `TokenNotFound`."""
        return await tokens.revoke(self._site, name)

    async def list(self) -> Sequence[Token]:
        """All that were ever made, by name."""
        return await tokens.listing(self._site)

    async def verify(self, secret: Any) -> tokens.Bearer | None:
        """Whose secret this is; None for one that is not valid now."""
        return await tokens.verify(self._site, secret) if isinstance(secret, str) and secret else None
