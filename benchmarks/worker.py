"""A worker process for the workloads that need one: `python -m benchmarks.worker QUEUE`."""

from __future__ import annotations

import asyncio
import os
import sys
import time

import harvest
from benchmarks.flows import ALL, mark
from harvest.cli.loop import run_async


async def main(queue: str) -> None:
    async with harvest.connect() as client:
        worker = harvest.Worker(client, definitions=ALL, queue=queue)
        running = asyncio.create_task(worker.run())
        await worker.started.wait()
        mark(os.environ["HARVEST_BENCH_MARKS"], f"up {os.getpid()} - {time.time():.4f}")
        await running


if __name__ == "__main__":
    run_async(main(sys.argv[1]))
