"""Real processes learn: by each method, reproducibly when taking turns, and further after an interruption."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy

from runtime.base import contract
from runtime.base.metrics import Console
from runtime.base.signals import Stop
from runtime.rl.roles import learner, worker
from runtime.rl.roles.launch_context import Context
from tests.runtime.conftest import RunUnderTest

Wait = Callable[..., Any]
CARTPOLE: dict[str, Any] = {
    "environment": "CartPole-v1",
    "num_envs": 8,
    "segment_steps": 32,
    "hidden": [32],
    "checkpoint_seconds": 3600,
    "eval_seconds": 1.0,
    "eval_episodes": 2,
}
ON_POLICY = {
    "ppo": {"ppo": {"batch_steps": 512, "minibatch_size": 128, "epochs": 4, "lr": 3e-3}},
    "impala": {"impala": {"batch_steps": 256, "lr": 3e-3}},
}
PENDULUM: dict[str, Any] = {
    "environment": "Pendulum-v1",
    "algorithm": "sac",
    "num_envs": 4,
    "segment_steps": 8,
    "hidden": [16],
    "warmup_steps": 200,
    "updates_per_step": 0.25,
    "publish_every": 5,
    "checkpoint_seconds": 3600,
}


def newest(folder: Path) -> dict[str, str]:
    """Hash of each array of networks and optimisers in the newest checkpoint, by name."""
    path = max((folder / "run" / "checkpoints").glob("*.safetensors"))
    return {
        name: hashlib.sha256(array.tobytes()).hexdigest()
        for name, array in safetensors.numpy.load_file(path).items()
        if name.startswith("method.")
    }


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("method", sorted(ON_POLICY))
def test_an_on_policy_method_learns_to_balance(run: RunUnderTest, method: str) -> None:
    run.settings = {**CARTPOLE, **ON_POLICY[method], "algorithm": method, "total_env_steps": 25_600}
    learning = run.start("learner")
    others = [run.start("worker", index) for index in range(2)] + [run.start("evaluator")]
    assert learning.process.wait(280) == contract.EXIT_DONE, learning.text()
    last = learning.last("learner")
    assert last["mean_return"] > 45, "a random policy balances for 22 steps"
    assert last["env_steps"] == 256 * last["accepted"] >= 25_600
    assert last["lost"] == last["refused"] == 0 or method == "impala"
    assert last["policy_lag"][2] <= {"ppo": 0, "impala": 8}[method]
    assert 0 <= last["idle_share"] <= 1
    for started in others:
        assert started.process.wait(120) == contract.EXIT_DONE, started.text()


@pytest.mark.timeout(300)
def test_random_learns_nothing_and_counts_everything(run: RunUnderTest) -> None:
    run.settings = {**CARTPOLE, "algorithm": "random", "total_env_steps": 20_000}
    learning, collecting = run.start("learner"), run.start("worker")
    assert learning.process.wait(200) == contract.EXIT_DONE, learning.text()
    assert collecting.process.wait(120) == contract.EXIT_DONE
    last = learning.last("learner")
    assert (last["updates"], last["policy_version"]) == (0, 0)
    assert last["env_steps"] >= 20_000
    assert 10 < last["mean_return"] < 40
    assert last["device"].partition(":")[0] in ("cpu", "cuda", "mps")
    assert ("gpu_reserved_bytes" in last) == last["device"].startswith("cuda")
    for record in learning.records("learner"):
        idle = record["idle_share"]
        assert record["bound_by"] == ("workers" if idle > 0.5 else "update")
        assert record["bound_share"] == pytest.approx(max(idle, 1.0 - idle), abs=1e-3)
    assert 0 < last["network_share"] < 1
    shares = [record["environment_share"] for record in collecting.records("worker")]
    assert all(0 <= share <= 1 for share in shares)
    assert max(shares) > 0.01
    assert all(0 <= record["waiting_share"] <= 1 for record in collecting.records("worker"))


LOCKSTEP = {
    "sac": {**PENDULUM, "total_updates": 150},
    "sac, several steps, by priority": {
        **PENDULUM,
        "total_updates": 150,
        "sac": {"n_step": 3, "prioritised": True},
    },
    "ppo": {**CARTPOLE, **ON_POLICY["ppo"], "algorithm": "ppo", "total_updates": 12},
    "impala": {**CARTPOLE, **ON_POLICY["impala"], "algorithm": "impala", "total_updates": 24},
    "ppo, memory": {**CARTPOLE, **ON_POLICY["ppo"], "algorithm": "ppo", "memory": "gru", "total_updates": 12},
    "impala, memory": {
        **CARTPOLE,
        **ON_POLICY["impala"],
        "algorithm": "impala",
        "memory": "lstm",
        "total_updates": 24,
    },
    "sac, memory": {
        **PENDULUM,
        "memory": "gru",
        "sac": {"batch_size": 64, "burn_in": 1},
        "total_updates": 100,
    },
    "ppo, normalised": {
        **PENDULUM,
        "algorithm": "ppo",
        "ppo": {"batch_steps": 64, "minibatch_size": 32, "normalise_returns": True},
        "normalise_observations": True,
        "total_updates": 12,
    },
}


class Threads:
    """Learner and worker of a run as threads of this process: real sockets, and no process to wait for."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder = folder
        folder.mkdir()
        self._config = json.dumps(settings)
        self.sentences: list[str] = []

    def start(self, role: str) -> tuple[threading.Thread, Stop]:
        environ = {
            contract.ENV_RUN: "test",
            contract.ENV_POD: f"{role[0]}-0",
            contract.ENV_SEED: "7",
            contract.ENV_ENDPOINT: f"ipc://{self.folder}/x",
            contract.ENV_DIR: str(self.folder / "run"),
            contract.ENV_CONFIG: self._config,
        }
        context, stop = Context.from_environment(environ, role), Stop()
        console = Console()
        console.say = self.sentences.append  # type: ignore[method-assign]
        if role == "learner":
            arguments: tuple[Any, ...] = (context, self.folder / "run", stop, console)
            thread = threading.Thread(target=learner.run, args=arguments, name=role)
        else:
            thread = threading.Thread(target=worker.run, args=(context, stop, console), name=role)
        thread.start()
        return thread, stop

    def interrupt(self, learning: threading.Thread, stop: Stop) -> tuple[threading.Thread, Stop]:
        """End the learner as a signal does, and start the next one."""
        stop.reason = "SIGTERM"
        learning.join(60)
        ends = "learner ends on SIGTERM", "the run is done"  # on a busy machine it may end first
        assert any(sentence.startswith(ends) for sentence in self.sentences), self.sentences
        self.sentences.clear()
        return self.start("learner")

    def policy_version(self) -> int:
        """Return the version in the learner's status; 0 if it does not answer."""
        with socket.socket(socket.AF_UNIX) as stream, contextlib.suppress(OSError, ValueError):
            stream.connect(str(self.folder / "x" / "status.sock"))
            stream.sendall(b"GET /status HTTP/1.0\r\n\r\n")
            _, _, body = b"".join(iter(lambda: stream.recv(65536), b"")).partition(b"\r\n\r\n")
            return int(json.loads(body)["policy_version"])
        return 0


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("method", LOCKSTEP)
def test_by_turns_a_seed_gives_one_run_and_an_interruption_does_not_change_it(
    short_folder: Path, no_leaks: None, wait_until: Wait, method: str
) -> None:
    """Networks and optimisers at the end agree to the last bit, also if the learner was ended in between."""
    ends = []
    for turn in ("unbroken", "interrupted"):
        run = Threads(short_folder / turn, {**LOCKSTEP[method], "lockstep": True})
        learning, stop = run.start("learner")
        collecting, _ = run.start("worker")
        if turn == "interrupted":
            wait_until(lambda: any("w-0 joined" in sentence for sentence in run.sentences), "the worker")  # noqa: B023
            learning, stop = run.interrupt(learning, stop)
            wait_until(lambda: run.policy_version() >= 3, "a few updates")  # noqa: B023
            learning, stop = run.interrupt(learning, stop)
        for thread in (learning, collecting):
            thread.join(120)
            assert not thread.is_alive(), run.sentences
        ends.append(newest(run.folder))
    assert ends[0] == ends[1]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_methods_and_environments_that_do_not_fit_are_refused_with_a_sentence(run: RunUnderTest) -> None:
    wrong = {
        "batch_steps is 100; it must be a multiple": {
            **CARTPOLE,
            "algorithm": "ppo",
            "ppo": {"batch_steps": 100},
        },
        "unknown environment 'chess'": {"environment": "chess"},
        "PPO has no setting 'epoch'": {**CARTPOLE, "algorithm": "ppo", "ppo": {"epoch": 3}},
    }
    for sentence, settings in wrong.items():
        run.settings = settings
        for started in (run.start("learner"), run.start("worker")):
            assert started.process.wait(200) == contract.EXIT_USAGE
            assert sentence in started.text()
            assert "Traceback" not in started.text()
