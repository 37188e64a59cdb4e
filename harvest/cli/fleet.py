"""`harvest owner …`, `harvest sticky …`, `harvest fleet` and `harvest doctor`: the operator's view."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

import typer
from rich.markup import escape
from rich.text import Text

from harvest.cli import output
from harvest.cli.loop import run_async
from harvest.cli.runs import Execution, Id, Json, Url, hubs, opened, parse_execution, say
from harvest.client import Client
from harvest.errors import ConfigError
from harvest.ids import PARTITIONS
from harvest.operations.doctor import Finding
from harvest.operations.fleet import OwnerStatus, PoolStatus, StickyReport, WorkerStatus

owner = typer.Typer(help="Who owns what, and the switch between owner mode and sticky mode.", no_args_is_help=True)
sticky = typer.Typer(help="Sticky execution: where decisions ran, and how well memory served.", no_args_is_help=True)

COLOURS = (
    *("cyan", "magenta", "green", "yellow", "blue", "red"),
    *("bright_cyan", "bright_magenta", "bright_green", "bright_yellow"),
)
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
PER_LINE = 64
Queue = Annotated[str | None, typer.Option(help="Only this task queue.")]


def with_client(url: str, work: Callable[[Client], Awaitable[Any]]) -> Any:
    several = hubs(url)
    if len(several) > 1:
        raise ConfigError(
            "database-url", f"there are {len(several)} hubs; this command is about one", hint="--database-url URL"
        )

    async def run() -> Any:
        async with opened(url) as client:
            return await work(client)

    return run_async(run())


# --- owner


@owner.command()
def status(queue: Queue = None, url: Url = "", json: Json = False) -> None:
    """Show who owns which partition, as a map, with shares, epochs and last scans."""
    found: OwnerStatus = with_client(url, lambda client: client.owner_status(queue))
    if json:
        output.print_json(found)
        return
    output.print_text(f"{found.mode} mode since {found.since:%Y-%m-%d %H:%M:%S} UTC")
    marks = {worker.worker_id: mark(number) for number, worker in enumerate(found.workers)}
    shown = [pool for pool in found.pools if queue is not None or worth_showing(pool, found)]
    if not found.pools and not found.workers and queue is not None:
        output.print_text(f"nothing is known of queue {queue!r}: no worker has served it")
    if len(shown) < len(found.pools):
        output.print_text(f"{len(found.pools) - len(shown)} pools without owners and workers are left out: --queue shows one")
    for pool in shown:
        output.console.print()
        output.console.print(f"[bold]{escape(pool.pool)}[/]  {summary(pool)}", highlight=False)
        for line in partition_map(pool, marks):
            output.console.print(line)
    output.console.print()
    print_workers(found.workers, marks)


def worth_showing(pool: PoolStatus, status: OwnerStatus) -> bool:
    """Who claims owns nothing, and a queue that nobody serves has nothing to draw."""
    served = any(pool.pool in worker.pools for worker in status.workers)
    return pool.free < PARTITIONS or (served and status.mode == "owner")


def mark(number: int) -> tuple[str, str]:
    """(letter, colour) of the n-th worker."""
    return LETTERS[number % len(LETTERS)], COLOURS[number % len(COLOURS)]


def summary(pool: PoolStatus) -> str:
    owners = len({owner for owner in pool.owners if owner is not None})
    held = f"{PARTITIONS - pool.free} of {PARTITIONS} partitions owned by {owners} worker{'' if owners == 1 else 's'}"
    text = f"{held}, epochs up to {max(pool.epochs, default=0)}"
    return text if not pool.free else f"{text}; [red]{pool.free} have no owner[/]"


def partition_map(pool: PoolStatus, marks: dict[UUID, tuple[str, str]]) -> list[Text]:
    """A letter per partition in the colour of its owner; `.` has none, `?` is of a worker that is not alive."""
    lines = []
    for start in range(0, len(pool.owners), PER_LINE):
        line = Text(f"{start:>4} ", style="dim")
        for owner_id in pool.owners[start : start + PER_LINE]:
            letter, colour = (".", "dim") if owner_id is None else marks.get(owner_id, ("?", "red"))
            line.append(letter, style=colour)
        lines.append(line)
    return lines


def print_workers(workers: list[WorkerStatus], marks: dict[UUID, tuple[str, str]]) -> None:
    now = datetime.now(UTC)
    rows = []
    for worker in workers:
        scan = "" if worker.scanned_at is None else f"{max(0.0, (now - worker.scanned_at).total_seconds()):.1f} s ago"
        shares = ", ".join(f"{pool} {count}" for pool, count in sorted(worker.partitions.items()))
        rows.append(
            [
                marks[worker.worker_id][0],
                str(worker.worker_id)[-12:],
                f"{worker.host}:{worker.pid}",
                worker.queue,
                worker.build_id,
                worker.state,
                shares or "-",
                f"{worker.figures.get('size', 0)}/{worker.cache_capacity}",
                scan,
            ]
        )
    output.print_table(["", "worker", "host:pid", "queue", "build", "state", "partitions", "in memory", "last scan"], rows)
    for worker in workers:
        for pool, why in worker.refusals.items():
            output.console.print(
                f"[yellow]refused[/] {str(worker.worker_id)[-12:]} may not own {escape(pool)}: {escape(why)}",
                highlight=False,
                soft_wrap=True,
            )


@owner.command()
def enable(url: Url = "", json: Json = False) -> None:
    """Give each run one owner. Refused, with the reasons, while the fleet is not fit for it."""
    done = with_client(url, lambda client: client.enable_owner_mode())
    say(json, {"mode": done.mode, "changed": done.changed}, "owner mode is on" if done.changed else "owner mode was on already")


@owner.command()
def disable(url: Url = "", json: Json = False) -> None:
    """Put the hub on the sticky claim loop."""
    done = with_client(url, lambda client: client.disable_owner_mode())
    say(
        json,
        {"mode": done.mode, "changed": done.changed},
        "sticky mode is on" if done.changed else "sticky mode was on already",
    )


# --- sticky


@sticky.command()
def report(id: Id, execution_id: Execution = None, url: Url = "", json: Json = False) -> None:
    """Show where each decision of a run was scheduled, who took it, how it began, and which windows timed out."""
    found: StickyReport = with_client(url, lambda client: client.sticky_report(id, parse_execution(execution_id)))
    if json:
        output.print_json(found)
        return
    output.print_text(f"{found.workflow_id} ({found.execution_id}) is {found.state}; {found.workers} workers decided it")
    output.print_table(
        ["decision", "at", "scheduled", "began", "events", "worker", "host:pid", "build"],
        [
            [
                d.decision,
                d.at,
                "window timed out, normal" if d.scheduled == "expired" else d.scheduled,
                d.replay_mode,
                d.events,
                str(d.worker_id)[-12:],
                f"{d.host or '?'}:{d.pid or '?'}",
                d.build_id,
            ]
            for d in found.decisions
        ],
    )
    if found.task is not None:
        facts = [f"{name}: {output.moment(value)}" for name, value in found.task.items() if value not in (None, False)]
        output.print_text(f"next: {', '.join(facts)}")


@sticky.command()
def figures(url: Url = "", json: Json = False) -> None:
    """Show the sticky figures of the whole hub: pins, claims, hit rate of the last minute, pressure."""
    found: dict[str, float] = with_client(url, lambda client: client.sticky_figures())
    if json:
        output.print_json(found)
    else:
        output.print_table(["figure", "value"], [[name, f"{value:g}"] for name, value in found.items()])


# --- the whole


def fleet(queue: Queue = None, url: Url = "", json: Json = False) -> None:
    """List the living workers: what they serve, own, and keep in memory."""
    found: OwnerStatus = with_client(url, lambda client: client.owner_status(queue))
    if json:
        output.print_json(found.workers)
    else:
        print_workers(found.workers, {worker.worker_id: mark(n) for n, worker in enumerate(found.workers)})


def doctor(url: Url = "", json: Json = False) -> None:
    """Say what is wrong with this hub or its fleet, and the command that mends it. Exit code 1 when something is."""
    findings: list[Finding] = with_client(url, lambda client: client.examine())
    if json:
        output.print_json(findings)
    else:
        for finding in findings:
            colour = {"error": "bold red", "warning": "yellow", "ok": "green"}[finding.level]
            line = f"[{colour}]{finding.level:>7}[/]  {escape(finding.what)}"
            output.console.print(line, highlight=False, soft_wrap=True)
            if finding.remedy:
                output.console.print(f"         [dim]mend it:[/] {escape(finding.remedy)}", highlight=False, soft_wrap=True)
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(1)
