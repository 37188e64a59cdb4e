"""Runs the application under uvicorn, closed by default: without a token on loopback only."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from harvest.client import Client
from harvest.config import ServerConfig
from harvest.errors import ConfigError
from harvest.operations import tokens
from harvest.server.access import loopback
from harvest.server.app import create_app

log = logging.getLogger("harvest.server")
GRACE = 3
"""Seconds that requests (and streams) under way get at the end."""


async def check_host(client: Client, config: ServerConfig) -> bool:
    """True when tokens are needed. Raises `ConfigError` for an address that others reach while no token exists."""
    closed = await tokens.configured(client.site)
    if not closed and not loopback(config.host):
        raise ConfigError(
            "host",
            f"{config.host!r} can be reached from elsewhere, and no token exists: anybody could act on every run",
            hint="make one first: harvest token create NAME --scope admin; or serve on 127.0.0.1",
        )
    return closed


def listening(config: ServerConfig) -> socket.socket:
    """Raises `ConfigError` for an address that cannot be had."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((config.host.strip("[]"), config.port))
    except OSError as exc:
        found.close()
        raise ConfigError(
            "port",
            f"cannot listen on {config.host}:{config.port}: {exc.strerror or exc}",
            hint="choose another with --port or HARVEST_SERVER_PORT; 0 takes a free one",
        ) from None
    return found


class Server(uvicorn.Server):
    """Ends the streams first, for which a stop would wait. Signals are for whoever has `stopping`, where somebody has."""

    handles_signals = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if not self.handles_signals:
            yield
            return
        with super().capture_signals():
            yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.config.app.state.harvest_desk.watch.finish()  # type: ignore[union-attr]
        await super().shutdown(sockets)


async def serve(
    client: Client,
    config: ServerConfig,
    *,
    say: Callable[[str], None] = lambda _: None,
    stopping: asyncio.Event | None = None,
) -> None:
    """Serves until SIGTERM, SIGINT or `stopping`. `say` gets a line about where, and who is let in."""
    closed = await check_host(client, config)
    with listening(config) as door:
        shown = f"[{config.host}]" if ":" in config.host else config.host
        say(f"http://{shown}:{door.getsockname()[1]}/")
        if not closed:
            say("no token exists: anybody on this machine is let in, and nobody else (harvest token create NAME closes it)")
        server = Server(
            uvicorn.Config(
                create_app(client, config),
                lifespan="on",
                loop="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=GRACE,
            )
        )
        if stopping is None:
            await server.serve(sockets=[door])
            return
        server.handles_signals = False
        serving = asyncio.create_task(server.serve(sockets=[door]))
        waiting = asyncio.create_task(stopping.wait())
        await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        server.should_exit = True
        await serving
