"""Random keys on a cluster on which things go wrong: no traceback, and nothing is made or destroyed unasked.

Some hundred here; ``python -m tests.bench monkey`` presses ten thousand, on processes of this machine as well.
"""

from __future__ import annotations

import random

import pytest

from tests.l2rtui.ui.monkey import Monkey

KEYS_PRESSED = 400
SEED = 7


@pytest.mark.timeout(900)
async def test_random_keys_break_nothing_and_change_nothing_unasked(desk, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VISUAL", "true")
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "one.yaml").write_text("kind: learner-workers\nname: one\n", "utf-8")
    monkey = Monkey(random.Random(SEED))
    async with desk(size=(124, 34)) as one:
        monkey.guard(one.backend)
        monkey.keep(one.app)
        for number in range(KEYS_PRESSED):
            await monkey.press(one.app, one.pilot)
            if number % 10 == 0:
                monkey.upset(one.backend)
            assert not monkey.problem(one.app), f"{monkey.problem(one.app)} after {' '.join(monkey.last)}"
        one.backend.outage = ""
