"""DBOS on W1 to W5, in a venv of its own. Reads workload names on stdin, answers one JSON line each.

One process is worker and client, as DBOS is a library; steps are no-ops, as on the Harvest side.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid

from dbos import DBOS, DBOSConfig, SetWorkflowID

config: DBOSConfig = {
    "name": "bench",
    "system_database_url": sys.argv[1],
    "log_level": "ERROR",
    "application_version": "v1",
    "executor_id": "bench",
}
DBOS(config=config)
handled: dict[int, asyncio.Future[float]] = {}


@DBOS.step()
async def noop(i: int) -> dict[str, int]:
    return {"i": i}


@DBOS.workflow()
async def steps(count: int) -> int:
    for i in range(count):
        await noop(i)
    return count


@DBOS.workflow()
async def fan(count: int) -> int:
    return len(await asyncio.gather(*[noop(i) for i in range(count)]))


@DBOS.workflow()
async def counter(until: int) -> int:
    total = 0
    for n in range(until):
        total += await DBOS.recv_async("add", timeout_seconds=60)
        if n in handled:
            handled.pop(n).set_result(time.perf_counter())
    return total


def p(values: list[float], q: float) -> float:
    return round(sorted(values)[round(q / 100 * (len(values) - 1))] * 1000, 3)


def spread(values: list[float]) -> dict[str, float]:
    return {**{f"p{q}_ms": p(values, q) for q in (50, 95, 99)}, "mean_ms": round(sum(values) / len(values) * 1000, 3)}


async def w1() -> dict[str, float]:
    began = time.perf_counter()
    handles = await asyncio.gather(*[DBOS.start_workflow_async(steps, 10) for _ in range(200)])
    await asyncio.gather(*[handle.get_result() for handle in handles])
    spent = time.perf_counter() - began
    return {"steps_per_s": round(2000 / spent), "seconds": round(spent, 4)}


async def w2() -> dict[str, float]:
    times = []
    for _ in range(200):
        began = time.perf_counter()
        await (await DBOS.start_workflow_async(steps, 1)).get_result()
        times.append(time.perf_counter() - began)
    return spread(times)


async def w3() -> dict[str, float]:
    began = time.perf_counter()
    await steps(200)
    return {"ms_per_step": round((time.perf_counter() - began) * 5, 3)}


async def w4() -> dict[str, float]:
    began = time.perf_counter()
    await fan(500)
    return {"seconds": round(time.perf_counter() - began, 4)}


async def w5() -> dict[str, float]:
    name = str(uuid.uuid4())
    with SetWorkflowID(name):
        handle = await DBOS.start_workflow_async(counter, 1000)
    times = []
    for n in range(1000):
        done = handled[n] = asyncio.get_running_loop().create_future()
        began = time.perf_counter()
        await DBOS.send_async(name, 1, "add")
        times.append(await done - began)
    await handle.get_result()
    first, last = sum(times[:100]) * 10, sum(times[-100:]) * 10
    return {
        **spread(times),
        "first100_ms": round(first, 3),
        "last100_ms": round(last, 3),
        "last_over_first": round(last / first, 3),
    }


WORKLOADS = {"W1": w1, "W2": w2, "W3": w3, "W4": w4, "W5": w5}


async def main() -> None:
    DBOS.launch()
    for _ in range(20):
        await (await DBOS.start_workflow_async(steps, 2)).get_result()
    loop = asyncio.get_running_loop()
    print(json.dumps({"ready": True}), flush=True)
    while line := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        print(json.dumps(await WORKLOADS[line]()), flush=True)
    DBOS.destroy()


asyncio.run(main())
