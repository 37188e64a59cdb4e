"""What is wrong with a hub or its fleet, and the command that mends it. Each check is pure: rows in, findings out."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harvest.hub import diagnosis
from harvest.ids import queue_of
from harvest.operations.fleet import OwnerStatus, WorkerStatus, owner_status
from harvest.operations.site import Site
from harvest.words import plural

Rows = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Finding:
    """`level` is ok, warning or error; `remedy` is a command or an action, empty where nothing needs to be done."""

    level: str
    what: str
    remedy: str = ""


READS = (
    "open_by_pool",
    "activities_by_queue",
    "dead_letters",
    "lapsed",
    "lost_claims",
    "long_transactions",
    "server",
)


async def examine(site: Site) -> list[Finding]:
    """All findings, worst first. What is in order is reported, too."""
    read = {name: await diagnosis.read(site.db, name) for name in READS}
    status = await owner_status(site)
    findings = [*ownership(status), *fleet(status.workers), *open_runs(read["open_by_pool"], status)]
    findings += waiting_activities(read["activities_by_queue"], status.workers)
    findings += leftovers(read["dead_letters"], read["lapsed"], read["lost_claims"])
    findings += server(read["server"][0], read["long_transactions"])
    return sorted(findings, key=lambda f: ("error", "warning", "ok").index(f.level))


def ownership(status: OwnerStatus) -> list[Finding]:
    since = f"{status.since:%Y-%m-%d %H:%M} UTC"
    if status.mode == "sticky":
        return [Finding("ok", f"sticky mode since {since}: decisions are claimed (owner mode: harvest owner enable)")]
    findings = [Finding("ok", f"owner mode since {since}")]
    for pool in status.pools:
        owners = [w for w in status.workers if pool.pool in w.grants]
        if owners and pool.free:
            what = f"{pool.free} partitions of {pool.pool!r} have no owner, although {len(owners)} workers could own them"
            findings.append(Finding("warning", what, "wait two scans; if it stays so, read the logs of these workers"))
        elif owners:
            findings.append(Finding("ok", f"all partitions of {pool.pool!r} are owned, by {plural(len(owners), 'worker')}"))
    return findings


def fleet(workers: Sequence[WorkerStatus]) -> list[Finding]:
    if not workers:
        return [Finding("error", "no worker is alive: nothing runs", "harvest worker MODULE --queue QUEUE")]
    findings = [Finding("ok", f"{plural(len(workers), 'worker is', 'workers are')} alive")]
    for worker in workers:
        who = f"worker {worker.worker_id} ({worker.host}, pid {worker.pid})"
        for pool, why in worker.refusals.items():
            remedy = "finish the deployment: it takes over when the workers with other types are gone"
            findings.append(Finding("warning", f"{who} is refused ownership of {pool!r}: {why}", remedy))
        blocked = worker.figures.get("blocked_by")
        if blocked:
            findings.append(Finding("error", f"{who}: {blocked} holds its event loop", "move blocking work into an activity"))
        if worker.workflows and not worker.can_own:
            what = f"{who} runs workflows but may not own: its owner mode or its workflow slots are off"
            findings.append(Finding("warning", what, "HARVEST_OWNER_MODE=true, HARVEST_MAX_WORKFLOW_SLOTS above 0"))
    return findings


def open_runs(rows: Rows, status: OwnerStatus) -> list[Finding]:
    findings = []
    for row in rows:
        pool, queue = row["pool"], queue_of(row["pool"])
        build = pool.partition("@")[2]
        servers = [w for w in status.workers if pool in w.pools and w.workflows]
        if servers and status.mode == "owner" and not any(w.can_own for w in servers):
            what = f"{row['runs']} open runs of {pool!r} stand still: none of its {len(servers)} workers may own partitions"
            findings.append(
                Finding("error", what, "HARVEST_OWNER_MODE=true and HARVEST_MAX_WORKFLOW_SLOTS above 0 for one of them")
            )
        elif not servers:
            pinned = f" (pinned to build {build!r})" if build else ""
            remedy = f"{f'HARVEST_BUILD_ID={build} ' if build else ''}harvest worker MODULE --queue {shlex.quote(queue)}"
            findings.append(Finding("error", f"{row['runs']} open runs of queue {queue!r}{pinned} have no worker", remedy))
        elif row["overdue"]:
            what = f"{row['overdue']} runs of {pool!r} are overdue, the oldest by {row['oldest']:.0f} s"
            findings.append(Finding("warning", what, f"add workers: harvest worker MODULE --queue {queue}"))
        if row["failing"]:
            what = f"decisions of {row['failing']} runs of {pool!r} fail"
            findings.append(Finding("warning", what, "harvest run show ID tells why; then deploy the fix"))
        if row["unstamped"] and status.mode == "owner":
            findings.append(
                Finding("warning", f"{row['unstamped']} tasks of {pool!r} have no partition yet; a scan stamps them")
            )
    return findings


def waiting_activities(rows: Rows, workers: Sequence[WorkerStatus]) -> list[Finding]:
    findings = []
    for row in rows:
        queue = row["queue"]
        able = {name for w in workers if w.queue == queue for name in w.activities}
        missing = sorted(set(row["names"]) - able)
        if missing:
            what = f"activities wait in queue {queue!r} that no living worker knows: {', '.join(missing)}"
            findings.append(Finding("error", what, f"harvest worker MODULE --queue {queue}"))
        else:
            what = f"{row['waiting']} activities wait in queue {queue!r}, the oldest for {row['oldest']:.0f} s"
            findings.append(Finding("warning", what, "add workers, or raise HARVEST_MAX_ACTIVITY_SLOTS"))
    return findings


def leftovers(letters: Rows, lapsed: Rows, lost_claims: Rows) -> list[Finding]:
    findings = []
    if letters[0]["n"]:
        remedy = "harvest dead-letters causes; deploy the fix, then harvest dead-letters redrive"
        findings.append(Finding("warning", f"{letters[0]['n']} runs are in the dead letters", remedy))
    for row in lapsed:
        who = f"worker {row['worker_id']} ({row['host']}, pid {row['pid']}, queue {row['pool']!r})"
        what = f"{who} has been silent for {row['seconds']:.0f} s and nobody took over"
        findings.append(Finding("warning", what, f"harvest worker MODULE --queue {row['pool']}"))
    if lost_claims[0]["n"]:
        what = f"{lost_claims[0]['n']} tasks are claimed by workers that are gone"
        findings.append(Finding("warning", what, "harvest worker MODULE: any worker of their queue frees them"))
    return findings


def server(row: Any, long: Rows) -> list[Finding]:
    findings = []
    for setting in ("fsync", "synchronous_commit"):
        if row[setting] == "off":
            what = f"{setting} is off: a crash of the database may lose acknowledged work"
            findings.append(Finding("error", what, f"set {setting} = on in postgresql.conf"))
    if row["used"] > 0.8 * row["most"]:
        what = f"{row['used']} of {row['most']} connections are in use"
        findings.append(Finding("warning", what, "raise max_connections, or put fewer workers on this hub"))
    for each in long:
        what = f"a transaction of {each['application_name'] or 'an unnamed client'} is open for {each['seconds']:.0f} s"
        remedy = f"select pg_terminate_backend({each['pid']})"
        findings.append(Finding("warning", f"{what} ({each['state']}): it holds back vacuum, and the switch", remedy))
    return findings or [Finding("ok", "the database is set up safely")]
