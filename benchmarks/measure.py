"""Percentiles, medians, and the limit that Postgres itself sets on this machine."""

from __future__ import annotations

import statistics
import time
from typing import Any

import asyncpg


def percentile(values: list[float], p: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(p / 100 * (len(ordered) - 1)))]


def latency(seconds: list[float]) -> dict[str, float]:
    """p50, p95, p99 and mean in milliseconds."""
    ms = [s * 1000 for s in seconds]
    found = {f"p{p}_ms": round(percentile(ms, p), 3) for p in (50, 95, 99)}
    return {**found, "mean_ms": round(statistics.fmean(ms), 3)}


def median_of(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Field by field over rounds; fields that are not numbers are taken from the first."""
    merged = {}
    for name, first in rounds[0].items():
        values = [r[name] for r in rounds]
        merged[name] = (
            round(statistics.median(values), 4) if isinstance(first, (int, float)) and not isinstance(first, bool) else first
        )
    return merged


async def floor(dsn: str) -> dict[str, float]:
    """The bare limit: `commit_ms` of a lone one-row insert, `rows_per_s` inserting 100 rows per statement."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("drop table if exists public.bench_floor")
        await connection.execute("create table public.bench_floor (id bigint, step int, payload json)")
        single = "insert into public.bench_floor values ($1, $2, $3)"
        many = "insert into public.bench_floor select * from unnest($1::bigint[], $2::int[], $3::json[])"
        payload = '{"type":"ActivityCompleted","seq":1,"result":null}'
        lone = []
        for n in range(300):
            began = time.perf_counter()
            await connection.execute(single, n, 1, payload)
            lone.append(time.perf_counter() - began)
        began, rows = time.perf_counter(), 0
        while time.perf_counter() - began < 1.0:
            await connection.execute(many, list(range(100)), [1] * 100, [payload] * 100)
            rows += 100
        rate = rows / (time.perf_counter() - began)
        await connection.execute("drop table public.bench_floor")
    finally:
        await connection.close()
    return {"commit_ms": round(percentile([s * 1000 for s in lone], 50), 3), "rows_per_s": round(rate)}
