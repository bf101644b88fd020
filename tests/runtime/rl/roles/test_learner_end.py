"""End of a learner in which several failures coincide."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from runtime.base import contract
from runtime.base.errors import NotFiniteError
from runtime.base.metrics import Console
from runtime.base.signals import Stop
from runtime.rl.checkpoints.learner_state import LearnerSnapshot
from runtime.rl.roles import learner, metrics_log
from runtime.rl.roles.launch_context import Context


def test_a_learner_that_fails_while_its_checkpoint_fails_too_ends_all_its_threads(
    short_folder: Path, no_leaks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_packing, has_failed = threading.Event(), threading.Event()

    def pack(_: LearnerSnapshot) -> None:
        is_packing.set()
        assert has_failed.wait(60)
        raise NotFiniteError("the checkpoint is not finite")

    class FailingConsole(Console):
        def record(self, line: str) -> None:
            if is_packing.is_set():
                has_failed.set()
                raise RuntimeError(line)

    monkeypatch.setattr(LearnerSnapshot, "pack", pack)
    monkeypatch.setattr(metrics_log, "RECORD_SECONDS", 0.1)
    environ = {
        contract.ENV_RUN: "test",
        contract.ENV_POD: "l-0",
        contract.ENV_SEED: "7",
        contract.ENV_ENDPOINT: f"ipc://{short_folder}/x",
        contract.ENV_DIR: str(short_folder / "run"),
        contract.ENV_CONFIG: json.dumps({"environment": "CartPole-v1", "checkpoint_seconds": 0.05}),
    }
    context = Context.from_environment(environ, "learner")
    with pytest.raises(NotFiniteError, match="the checkpoint is not finite"):
        learner.run(context, short_folder / "run", Stop(), FailingConsole())
    assert not {"exchange", "status", "checkpoint"} & {thread.name for thread in threading.enumerate()}
