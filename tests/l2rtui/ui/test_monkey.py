"""Random keys on a cluster on which things go wrong: no traceback, and nothing is made or destroyed unasked.

Some dozens here and some hundred in the slow tests; ``python -m tests.bench monkey`` presses ten thousand, on
processes of this machine as well.
"""

from __future__ import annotations

import random

import pytest

from tests.l2rtui.ui.monkey import Monkey

SEED = 7


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("keys", "is_demo"), [(60, False), pytest.param(400, True, marks=pytest.mark.slow)])
async def test_random_keys_break_nothing_and_change_nothing_unasked(desk, tmp_path, monkeypatch, keys, is_demo):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VISUAL", "true")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")  # `b` among the images builds one
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "one.yaml").write_text("kind: learner-workers\nname: one\n", "utf-8")
    monkey = Monkey(random.Random(SEED))
    async with desk(size=(124, 34), demo=is_demo, has_frames=True) as one:
        monkey.guard(one.backend)
        monkey.keep(one.app)
        for number in range(keys):
            await monkey.press(one.app, one.pilot)
            if number % 10 == 0:
                monkey.upset(one.backend)
            assert not monkey.problem(one.app), f"{monkey.problem(one.app)} after {' '.join(monkey.last)}"
        one.backend.outage = ""
