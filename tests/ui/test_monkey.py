"""Random keys on a cluster on which things go wrong: no traceback, and nothing is made or destroyed unasked.

The seed is fixed; ``L2R_MONKEY_KEYS`` and ``L2R_MONKEY_SEED`` make it longer or another.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest

from l2rtui.domain.status import Phase
from l2rtui.ui.keys import KEYS

KEYS_PRESSED = int(os.environ.get("L2R_MONKEY_KEYS", "400"))
SEED = int(os.environ.get("L2R_MONKEY_SEED", "7"))
ALPHABET = sorted(
    {pressed for key in KEYS for pressed in key.keys.split(",") if key.action not in ("leave", "command_palette")}
    | set("abcxyz019")
    | {"backspace", "delete", "ctrl+u"}
)
YES = {"y", "enter"}
"""What can answer a question with yes: such keys are not pressed on one, so whatever happens was not confirmed."""
ASKING = ("ConfirmScreen", "ReviewScreen")


def upset(backend, chance: random.Random) -> None:
    """Something happens on the cluster."""
    pods = list(backend._pods.values())
    pod = chance.choice(pods)
    match chance.randrange(4):
        case 0:
            backend.put_pod(replace(pod, phase=Phase.FAILED, ready=False, exit_code=137))
        case 1:
            backend.put_pod(replace(pod, restarts=pod.restarts + 1))
        case 2:
            backend.outage = "" if backend.outage else "the wire is cut"
        case _:
            backend.advance(chance.random() * 5)


@pytest.mark.timeout(900)
async def test_random_keys_break_nothing_and_change_nothing_unasked(desk, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "one.yaml").write_text("kind: learner-workers\nname: one\n", "utf-8")
    chance = random.Random(SEED)
    calls: list[str] = []
    async with desk(size=(124, 34)) as one:
        backend = one.backend
        for verb in ("launch", "scale", "kill", "destroy", "exec"):
            monkeypatch.setattr(backend, verb, lambda *_, verb=verb, **__: calls.append(verb))
        pressed: list[str] = []
        for number in range(KEYS_PRESSED):
            key = chance.choice(ALPHABET)
            if one.top in ASKING and key in YES:
                key = "escape"
            pressed.append(key)
            await one.press(key)
            if number % 10 == 0:
                upset(backend, chance)
            assert not one.app._exit, f"it left after {pressed[-20:]}"
            assert one.app._exception is None, f"a defect after {pressed[-20:]}"
        assert not calls, f"{calls} without a confirmation after {pressed[-40:]}"
