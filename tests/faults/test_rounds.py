"""A fleet under load, fault after fault: F-1 to F-5 hold in both modes. `make soak` does the same for longer."""

from __future__ import annotations

import random

import pytest

import harvest
from tests.faults.cluster import PATIENCE, SETTINGS, Cluster, Faults
from tests.faults.ledger import Counts, Traffic


@pytest.mark.timeout(480)
@pytest.mark.parametrize(("mode", "rounds", "seed"), [("owner", 40, 1), ("sticky", 25, 2)])
async def test_fault_after_fault(mode, rounds, seed):
    dice = random.Random(seed)
    async with Cluster(3, **SETTINGS) as cluster, harvest.connect(cluster.hub.dsn, patience=60) as client:
        if mode == "sticky":
            await client.disable_owner_mode()
        await cluster.covered(PATIENCE)
        traffic = Traffic(client, dice, width=4)
        traffic.start()
        faults = Faults(cluster, dice)
        for _ in range(rounds):
            kind = faults.draw()
            await faults.inject(kind)
            await cluster.covered(PATIENCE)
            await traffic.answered()
        counts = await traffic.finish(Counts(runs=rounds // 4, signals=rounds, updates=rounds // 8, operations=rounds))
        async with cluster.connection() as connection:
            trespasses = await connection.fetchval("select count(*) from harvest.trespasses")
            left = await connection.fetchval("select count(*) from harvest.workflow_tasks")
    assert counts.violations == []
    assert trespasses == 0
    assert left == 0
