"""Absurd on W1 to W4, in a venv of its own. Reads workload names on stdin, answers one JSON line each.

One process holds worker and client; its worker claims in a loop on one connection, here with four of them.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import uuid
from pathlib import Path

from absurd_sdk import AsyncAbsurd

DSN, QUEUE, WORKERS = sys.argv[1], "b" + uuid.uuid4().hex[:8], 4


async def noop(i: int) -> dict[str, int]:
    return {"i": i}


def register(app: AsyncAbsurd) -> None:
    @app.register_task("steps", queue=QUEUE)
    async def steps(params, context):
        for i in range(params["n"]):
            await context.step(f"s{i}", lambda i=i: noop(i))
        return params["n"]

    @app.register_task("fan", queue=QUEUE)
    async def fan(params, context):
        return len(await asyncio.gather(*[context.step(f"s{i}", lambda i=i: noop(i)) for i in range(params["n"])]))


async def result(client: AsyncAbsurd, task_id: str) -> None:
    while True:
        found = await client.fetch_task_result(task_id)
        if found is not None and found.state in ("completed", "failed", "cancelled"):
            return
        await asyncio.sleep(0.002)


async def spawn(client: AsyncAbsurd, task: str, n: int) -> str:
    return str((await client.spawn(task, {"n": n}, queue=QUEUE))["task_id"])


async def w1(client: AsyncAbsurd) -> dict[str, float]:
    began = time.perf_counter()
    ids = [await spawn(client, "steps", 10) for _ in range(200)]
    for task_id in ids:
        await result(client, task_id)
    spent = time.perf_counter() - began
    return {"steps_per_s": round(2000 / spent), "seconds": round(spent, 4)}


async def w2(client: AsyncAbsurd) -> dict[str, float]:
    times = []
    for _ in range(50):
        began = time.perf_counter()
        await result(client, await spawn(client, "steps", 1))
        times.append((time.perf_counter() - began) * 1000)
    times.sort()
    found = {f"p{q}_ms": round(times[round(q / 100 * (len(times) - 1))], 3) for q in (50, 95, 99)}
    return {**found, "mean_ms": round(sum(times) / len(times), 3)}


async def w3(client: AsyncAbsurd) -> dict[str, float]:
    began = time.perf_counter()
    await result(client, await spawn(client, "steps", 200))
    return {"ms_per_step": round((time.perf_counter() - began) * 5, 3)}


async def w4(client: AsyncAbsurd) -> dict[str, float]:
    began = time.perf_counter()
    await result(client, await spawn(client, "fan", 500))
    return {"seconds": round(time.perf_counter() - began, 4)}


WORKLOADS = {"W1": w1, "W2": w2, "W3": w3, "W4": w4}


async def main() -> None:
    control = Path(sys.executable).with_name("absurdctl")
    subprocess.run([str(control), "init", "-d", DSN], check=True, stdout=subprocess.DEVNULL)
    client = AsyncAbsurd(DSN, queue_name=QUEUE)
    await client.create_queue(QUEUE)
    tasks = []
    for _ in range(WORKERS):
        app = AsyncAbsurd(DSN, queue_name=QUEUE)
        register(app)
        tasks.append(asyncio.create_task(app.start_worker(concurrency=200, poll_interval=0.01, claim_timeout=120)))
    await result(client, await spawn(client, "steps", 2))
    print(json.dumps({"ready": True}), flush=True)
    loop = asyncio.get_running_loop()
    while line := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        print(json.dumps(await WORKLOADS[line](client)), flush=True)
    for task in tasks:
        task.cancel()


asyncio.run(main())
