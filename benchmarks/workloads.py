"""W1 to W8 for Harvest. Each function measures one round of one variant and returns plain numbers."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.flows import ALL, Counter, fan, leaf, midway, steps
from benchmarks.measure import latency
from harvest import Client, Worker
from harvest.core import events as ev
from harvest.core.instance import Instance
from harvest.core.program import RunInfo
from harvest.core.replay import StoredDecision, replay

RUNS, STEPS, SIGNALS, FAN = 200, 10, 1000, 500
Measure = Callable[[Client, str], Awaitable[dict[str, Any]]]


def fresh(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:12]}"


async def w1(client: Client, mode: str) -> dict[str, Any]:
    """200 runs in flight, 10 steps each, one after another."""
    tag = fresh("w1")
    began = time.perf_counter()
    handles = await asyncio.gather(*(client.start(steps, STEPS, mode, id=f"{tag}-{n}") for n in range(RUNS)))
    await asyncio.gather(*(handle.result() for handle in handles))
    spent = time.perf_counter() - began
    return {"steps_per_s": round(RUNS * STEPS / spent), "seconds": round(spent, 4)}


async def w2(client: Client, mode: str) -> dict[str, Any]:
    """Start to result of a one-step run, one run after another."""
    times = []
    for _ in range(200):
        name = fresh("w2")
        began = time.perf_counter()
        handle = await client.start(steps, 1, mode, id=name)
        await handle.result()
        times.append(time.perf_counter() - began)
    return latency(times)


async def w3(client: Client, mode: str) -> dict[str, Any]:
    """One run of 200 steps."""
    began = time.perf_counter()
    await client.execute(steps, 200, mode, id=fresh("w3"))
    return {"ms_per_step": round((time.perf_counter() - began) * 1000 / 200, 3)}


async def w4(client: Client, mode: str) -> dict[str, Any]:
    """One run that gathers 500 steps, or 500 children."""
    began = time.perf_counter()
    await client.execute(fan, FAN, mode, id=fresh("w4"))
    return {"seconds": round(time.perf_counter() - began, 4)}


async def w5(client: Client, mode: str) -> dict[str, Any]:
    """1,000 signals into one run, each awaited until it is durable and handled."""
    handle = await client.start(Counter, SIGNALS, id=fresh("w5"))
    times = []
    for _ in range(SIGNALS):
        began = time.perf_counter()
        await handle.signal(Counter.add, 1)
        times.append(time.perf_counter() - began)
    await handle.result()
    first, last = latency(times[:100])["mean_ms"], latency(times[-100:])["mean_ms"]
    return {**latency(times), "first100_ms": first, "last100_ms": last, "last_over_first": round(last / first, 3)}


async def w7(client: Client, mode: str) -> dict[str, Any]:
    """Queries of a running workflow: from the owner's process, or from another."""
    handle = await client.start(Counter, 1, id=fresh("w7"), queue="default" if mode == "owner" else "elsewhere")
    await handle.query(Counter.value)
    times = []
    for _ in range(1000 if mode == "owner" else 300):
        began = time.perf_counter()
        await handle.query(Counter.value)
        times.append(time.perf_counter() - began)
    await handle.signal(Counter.add, 1)
    await handle.result()
    return latency(times)


async def w6(client: Client, mode: str) -> dict[str, Any]:
    """kill -9 of the worker while 200 runs sit in the middle of a step; another worker starts at once.

    `from_up_s` counts from the moment the new worker is up, `from_spawn_s` from the start of its process,
    both until the last of the 200 runs moves.
    """
    marks = Path(tempfile.mkdtemp()) / "marks"
    marks.touch()
    queue = fresh("w6")
    worker = await spawn_worker(client, queue, marks)
    await up(marks, worker.pid)
    handles = await asyncio.gather(*(client.start(midway, f"k{n}", 3.0, id=f"{queue}-{n}", queue=queue) for n in range(RUNS)))
    await until(lambda: len(marked(marks, worker.pid)) == RUNS)
    worker.send_signal(signal.SIGKILL)
    await worker.wait()
    spawned = time.time()
    second = await spawn_worker(client, queue, marks)
    at_up = await up(marks, second.pid)
    await until(lambda: len(marked(marks, second.pid)) == RUNS)
    last = max(marked(marks, second.pid).values())
    results = await asyncio.gather(*(handle.result() for handle in handles))
    second.send_signal(signal.SIGTERM)
    await second.wait()
    return {
        "from_up_s": round(max(0.0, last - at_up), 3),
        "from_spawn_s": round(last - spawned, 3),
        "recovered": sum(r == 10 for r in results),
    }


async def spawn_worker(client: Client, queue: str, marks: Path) -> asyncio.subprocess.Process:
    environment = {**os.environ, "HARVEST_DATABASE_URL": client.db.dsn, "HARVEST_BENCH_MARKS": str(marks)}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.worker", queue, env=environment, cwd=Path(__file__).parents[1]
    )


def marked(marks: Path, pid: int | None) -> dict[str, float]:
    """key → time of the step's beginning in this process."""
    rows = [line.split() for line in marks.read_text().splitlines()]
    return {row[2]: float(row[3]) for row in rows if row[0] == "step" and row[1] == str(pid)}


async def up(marks: Path, pid: int) -> float:
    found: list[float] = []

    def look() -> bool:
        found[:] = [float(row[3]) for row in map(str.split, marks.read_text().splitlines()) if row[:2] == ["up", str(pid)]]
        return bool(found)

    await until(look)
    return found[0]


async def until(check: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not check():
        if time.monotonic() > end:
            raise TimeoutError("the benchmark's condition did not come true")
        await asyncio.sleep(0.02)


async def w8(client: Client, mode: str) -> dict[str, Any]:
    """The kernel alone: microseconds per warm decision at the end of a history, and per event of a cold replay."""
    events = int(mode.removesuffix(" events"))
    info = RunInfo("w8", "w8", "steps", "default", 7, msgspec.Raw(b'[%d, "local"]' % (events // 2 + 50)))
    instance = Instance(info, steps.definition)
    decisions: list[StoredDecision] = []
    now, tail = 1_700_000_000_000_000, []
    outcome = instance.activate(now, [])
    decisions.append(StoredDecision(1, now, ev.encode_events([*outcome.commands])))
    while not outcome.closed:
        arrivals: list[Any] = [
            ev.ActivityCompleted(c.seq, msgspec.Raw(b'{"i":1}'))
            for c in outcome.commands
            if isinstance(c, ev.ActivityScheduled)
        ]
        now += 1000
        began = time.perf_counter()
        outcome = instance.activate(now, arrivals)
        spent = time.perf_counter() - began
        if len(decisions) * 2 < events:
            decisions.append(StoredDecision(len(decisions) + 1, now, ev.encode_events([*arrivals, *outcome.commands])))
        else:
            tail.append(spent)
    began = time.perf_counter()
    replayed = replay(info, steps.definition, decisions)
    cold = time.perf_counter() - began
    return {
        "warm_us": round(sorted(tail)[len(tail) // 2] * 1e6, 1),
        "cold_us_per_event": round(cold / replayed.events * 1e6, 2),
    }


WORKLOADS: dict[str, tuple[Measure, tuple[str, ...]]] = {
    "W1": (w1, ("local", "eager", "queue")),
    "W2": (w2, ("local", "eager")),
    "W3": (w3, ("local", "eager")),
    "W4": (w4, ("local", "eager", "children")),
    "W5": (w5, ("signals",)),
    "W6": (w6, ("kill -9",)),
    "W7": (w7, ("owner", "elsewhere")),
    "W8": (w8, ("1000 events", "5000 events", "10000 events")),
}
MAIN_FIELD = {
    "W1": "steps_per_s",
    "W2": "p50_ms",
    "W3": "ms_per_step",
    "W4": "seconds",
    "W5": "mean_ms",
    "W6": "from_up_s",
    "W7": "p50_ms",
    "W8": "cold_us_per_event",
}


async def warm_up(client: Client) -> None:
    for mode in ("local", "eager", "queue"):
        for _ in range(3):
            await w1(client, mode)
    await client.execute(leaf, 1, id=fresh("warm"))


def make_worker(client: Client) -> Worker:
    return Worker(client, definitions=ALL, queue="default")
