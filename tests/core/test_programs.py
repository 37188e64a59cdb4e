"""Warm decides as cold would: random programs in a random world, replayed cold after every decision (rule 4)."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.core.programs import World, programs

EXAMPLES = int(os.environ.get("HARVEST_EXAMPLES", "250"))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs, st.integers(0, 2**32))
def test_warm_and_cold_agree(program, seed):
    World(program, random.Random(seed)).run()


@pytest.mark.parametrize("seed", range(8))
def test_history_does_not_depend_on_the_hash_seed(seed):
    """Two processes with different PYTHONHASHSEED write the same history."""
    script = (
        "import json, random, sys; from tests.core.programs import World, programs;"
        "from hypothesis import find; seed = int(sys.argv[1]);"
        "tree = lambda d, n: ['group' if n % 2 else 'race', [tree(d, n - 1) for _ in range(3)]] if n else"
        " [['sleep', d.randint(0, 20)], ['act', 'ok'], ['child', 'bad'], ['receive', 'a'], ['locked', 3]][d.randrange(5)];"
        "random.seed(0); w = World(tree(random.Random(seed), 3), random.Random(seed), cold_every=9); w.run();"
        "print(json.dumps([d.events for d in w.decisions]))"
    )
    found = []
    for hash_seed in ("1", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", script, str(seed)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        )
        found.append(json.loads(done.stdout))
    assert found[0] == found[1]
    assert len(found[0]) > 3
