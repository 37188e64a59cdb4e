"""Histories that were recorded once replay for ever. Record another with
`harvest run history ID --export tests/replay/NAME.json`, from the programs in `flows.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from harvest import errors
from harvest.testing import Replayer
from tests.replay import flows

HISTORIES = sorted(Path(__file__).parent.glob("*.json"))


@pytest.mark.parametrize("path", HISTORIES, ids=lambda p: p.stem)
def test_a_recorded_history_fits(path):
    replayed = Replayer([flows]).replay_file(path.read_bytes())
    assert replayed.fits, replayed.error
    assert replayed.decisions > 1


def test_there_are_recordings():
    assert len(HISTORIES) >= 4


def test_what_is_no_history_is_refused():
    with pytest.raises(errors.HarvestError, match="--export"):
        Replayer([flows]).replay_file(b"{}")
