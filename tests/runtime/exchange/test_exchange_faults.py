"""Kill, stop, cut, corrupt, duplicate: after any fault of the exchange, its accounts are exact to a segment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.faults import Siege
from tests.tiers import starts_processes

pytestmark = pytest.mark.process


@pytest.fixture
@starts_processes
def siege(tmp_path: Path) -> Iterator[Siege]:
    made = Siege(tmp_path, workers=3, seed=7)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_hundred_faults_lose_nothing_and_double_nothing(siege: Siege) -> None:
    siege.moves()
    for _ in range(4):
        for _ in range(50):
            siege.strike(kill_learner=0.01)
        siege.moves()
    siege.kill_learner()
    siege.moves()
    totals = siege.finish()
    assert sum(totals["faults"].values()) == 200
    assert totals["accepted"] > 200
    assert totals["misfit"] == 0
