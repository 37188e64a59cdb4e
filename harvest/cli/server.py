"""`harvest server`, `harvest token …` and `harvest audit`: the HTTP door and who may use it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer

import harvest
from harvest.cli import output
from harvest.cli.fleet import with_client
from harvest.cli.loop import run_async
from harvest.cli.runs import Json, Url, hubs, say
from harvest.client import Client
from harvest.config import ServerConfig
from harvest.errors import ConfigError
from harvest.operations.tokens import SCOPES, NewToken, Token

token = typer.Typer(help="Tokens of the HTTP API: only hashes of them are stored.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="What the token is called.")]
Days = Annotated[float | None, typer.Option("--expires-in-days", min=0.0001, help="It ends by itself after so many days.")]


def server(
    host: Annotated[str | None, typer.Option(help="Where to listen; another than loopback needs a token.")] = None,
    port: Annotated[int | None, typer.Option(help="0 takes a free one.")] = None,
    url: Url = "",
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error")] = "info",
) -> None:
    """Serve the HTTP API and the dashboard until SIGTERM. Settings come from HARVEST_SERVER_… variables."""
    output.set_up_logging(log_level)
    serve = _serve()
    given = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    config = ServerConfig(**given)
    several = hubs(url)
    if len(several) > 1:
        raise ConfigError("shards", f"there are {len(several)} hubs; a server is about one", hint="--database-url URL")

    async def work() -> None:
        async with harvest.connect(several[0] if several else url, pool_size=16) as client:
            await serve(client, config, say=output.print_text)

    run_async(work())


def _serve() -> Any:
    try:
        from harvest.server.serve import serve  # noqa: PLC0415  an optional dependency
    except ImportError as exc:
        raise ConfigError("server", f"{exc.name} is not installed", hint="pip install 'harvest-engine[server]'") from None
    return serve


# --- tokens


@token.command()
def create(
    name: Name,
    scope: Annotated[list[str], typer.Option("--scope", help=f"One or several of {', '.join(SCOPES)}.")],
    expires_in_days: Days = None,
    url: Url = "",
    json: Json = False,
) -> None:
    """Make a token and print it: it is shown this once. `sql` lets it ask entities in SQL, whatever else it may do."""

    async def work(client: Client) -> NewToken:
        return await client.tokens.create(name, scopes=scope, expires_in=_seconds(expires_in_days))

    show_new(with_client(url, work), json)


@token.command()
def rotate(
    name: Name,
    grace: Annotated[float, typer.Option("--grace-minutes", min=0, help="How long the old secret still holds.")] = 0,
    expires_in_days: Days = None,
    url: Url = "",
    json: Json = False,
) -> None:
    """Give a token a new secret and print it."""

    async def work(client: Client) -> NewToken:
        return await client.tokens.rotate(name, grace=grace * 60, expires_in=_seconds(expires_in_days))

    show_new(with_client(url, work), json)


@token.command()
def revoke(name: Name, url: Url = "", json: Json = False) -> None:
    """End a token at once, on every server."""
    revoked: Token = with_client(url, lambda client: client.tokens.revoke(name))
    say(json, revoked, f"revoked {name}")


@token.command("list")
def list_tokens(url: Url = "", json: Json = False) -> None:
    """Show all tokens that were ever made."""
    found: list[Token] = with_client(url, lambda client: client.tokens.list())
    if json:
        output.print_json(found)
        return
    rows = [[t.name, ", ".join(t.scopes), state_of(t), t.created_at, t.created_by, t.used_at] for t in found]
    output.print_table(["name", "scopes", "state", "created", "by", "last used"], rows)


def state_of(found: Token) -> str:
    now = datetime.now(found.created_at.tzinfo)
    if found.revoked_at is not None:
        return f"revoked {output.moment(found.revoked_at)}"
    if found.expires_at is not None:
        return f"{'ended' if found.expires_at <= now else 'ends'} {output.moment(found.expires_at)}"
    if found.previous_until is not None and found.previous_until > now:
        return f"valid; its old secret until {output.moment(found.previous_until)}"
    return "valid"


def show_new(new: NewToken, json: bool) -> None:
    if json:
        output.print_json({"token": new.token, "secret": new.secret})
        return
    output.print_text(new.secret)
    output.errors.print("This is the only time it is shown. Send it as: Authorization: Bearer …", highlight=False)


def _seconds(days: float | None) -> float | None:
    return None if days is None else days * 86_400


# --- audit


def audit(
    actor: Annotated[str | None, typer.Option(help="Only calls of this token.")] = None,
    id: Annotated[str | None, typer.Option("--id", help="Only calls about this workflow id.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many.")] = 50,
    url: Url = "",
    json: Json = False,
) -> None:
    """Show who did what over HTTP, newest first."""
    found = with_client(url, lambda client: client.audit(actor=actor, workflow_id=id, limit=limit))
    if json:
        output.print_json(found)
        return
    rows = [
        [e.at, e.actor, e.address, f"{e.method} {e.route}", " ".join(f"{k}={v}" for k, v in e.target.items()), e.status or "?"]
        for e in found
    ]
    output.print_table(["at", "who", "from", "call", "target", "status"], rows)
