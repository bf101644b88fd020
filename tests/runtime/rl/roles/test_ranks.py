"""A learner of several ranks: shares of a batch, states that fit any number of ranks, and ranks that are lost."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch.distributed.elastic.multiprocessing import ProcessFailure
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher import api

from runtime.base import contract
from runtime.base.errors import SetupError
from runtime.base.methods import PPOConfig
from runtime.base.metrics import Console
from runtime.base.signals import Stop
from runtime.base.training import from_mapping
from runtime.base.training_rules import mistakes_in
from runtime.rl.buffers.rollout_buffer import RolloutBatch
from runtime.rl.checkpoints.checkpoint_files import Checkpoints
from runtime.rl.roles import rank_launcher, ranks
from runtime.rl.roles.launch_context import Context, plan_of
from runtime.rl.roles.ranks import RankGroup, ShareForm, part, share_of, whole
from tests.runtime.conftest import RunUnderTest, Started
from tests.runtime.rl.algos.test_sac import make_batch

OWN: dict[str, Any] = {
    "environment": "CartPole-v1",
    "algorithm": "ppo",
    "collect": "device",
    "num_envs": 16,
    "segment_steps": 8,
    "hidden": [16],
    "device": "cpu",
}


def copies(count: int) -> dict[str, torch.Tensor]:
    state = {
        "env.position": torch.arange(count * 2.0).view(count, 2),
        "state": torch.arange(4.0 * count).view(4, count),
    }
    state["episodes"] = torch.arange(5.0)
    generator = torch.Generator().manual_seed(3)
    return {**state, "generator": generator.get_state(), "generator.device": torch.tensor(list(b"cpu"))}


def test_a_rank_has_an_equal_share_of_copies_batch_and_minibatches() -> None:
    settings = from_mapping({**OWN, "ppo": {"minibatch_size": 32}})
    plan, own = share_of(plan_of(settings), settings, 4)
    assert isinstance(plan.config, PPOConfig)
    assert own.num_envs == 4
    assert (plan.config.batch_steps, plan.config.minibatch_size) == (32, 8)


def test_where_workers_collect_a_batch_is_collected_whole_and_learned_from_in_shares() -> None:
    settings = from_mapping({**OWN, "collect": "workers", "ppo": {"batch_steps": 512, "minibatch_size": 64}})
    plan, own = share_of(plan_of(settings), settings, 4)
    assert isinstance(plan.config, PPOConfig)
    assert (own.num_envs, plan.config.batch_steps, plan.config.minibatch_size) == (16, 512, 16)


WORKERS: dict[str, Any] = {"collect": "workers", "num_envs": 1, "segment_steps": 64}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"num_envs": 15}, "devices is 2 and num_envs 15; each rank takes an equal part"),
        ({"ppo": {"minibatch_size": 33}}, "devices is 2 and minibatch_size 33"),
        ({"collect": "workers", "algorithm": "sac", "sac": {"batch_size": 255}}, "devices is 2 and batch_size 255"),
        (
            {"collect": "workers", "algorithm": "sac", "memory": "gru", "sac": {"batch_size": 24}},
            "devices is 2 and batch_size / segment_steps 3",
        ),
        ({**WORKERS, "ppo": {"batch_steps": 1_024, "minibatch_size": 33}}, "minibatch_size 33"),
        (
            {"collect": "workers", "memory": "gru", "ppo": {"batch_steps": 512, "minibatch_size": 24}},
            "minibatch_size / segment_steps 3",
        ),
        ({**WORKERS, "algorithm": "impala", "impala": {"batch_steps": 192}}, "batch_steps / segment_steps 3"),
        (
            {**WORKERS, "algorithm": "impala", "impala": {"sends_gradients": True, "batch_steps": 256}},
            "on one device; set it to 1",
        ),
    ],
)
def test_what_has_no_equal_shares_is_refused_by_learner_and_plan(changes: dict[str, Any], complaint: str) -> None:
    given = {**OWN, **changes, "devices": 2}
    with pytest.raises(SetupError, match=complaint):
        plan_of(from_mapping(given))
    (sentence,) = mistakes_in(given)
    assert complaint in sentence
    assert not mistakes_in({**given, "devices": 1})


def test_a_state_of_four_ranks_is_that_of_one_and_fits_two() -> None:
    parts = [part(copies(8), rank, 4, copies(2)) for rank in range(4)]
    assert [len(state["env.position"]) for state in parts] == [2, 2, 2, 2]
    generators = [state["generator"] for state in parts]
    assert not torch.equal(generators[0], generators[1]), "two ranks draw different numbers"
    joined = whole(parts, 2)
    for name in ("env.position", "state", "episodes", "generator"):
        assert torch.equal(joined[name], copies(8)[name])
    again = [part(joined, rank, 4, copies(2)) for rank in range(4)]
    assert all(torch.equal(state["generator"], before) for state, before in zip(again, generators, strict=True))
    halves = [part(joined, rank, 2, copies(4)) for rank in range(2)]
    assert torch.equal(torch.cat([state["env.position"] for state in halves]), joined["env.position"])
    assert sum(state["episodes"].sum() for state in halves) == joined["episodes"].sum()


@pytest.mark.parametrize("kind", ["batch", "rollouts"])
def test_a_share_of_a_batch_travels_as_bytes_in_a_form_that_travels_once(kind: str) -> None:
    batch = make_batch(0) if kind == "batch" else rollouts()
    first, second = batch.shares(2)
    form = ShareForm.of(first)
    assert ShareForm.of(second) == form == ShareForm.decoded(form.encoded())
    received = form.unpack(form.pack(second))
    assert type(received) is type(batch)
    assert received.columns().keys() == second.columns().keys()
    assert all(torch.equal(part, received.columns()[name]) for name, part in second.columns().items())
    assert ShareForm.of(second.replaced([part[:1] for part in second.tensors])) != form


def rollouts() -> RolloutBatch:
    """Rollouts of 3 steps of 4 copies whose columns have different types, and odd numbers of bytes."""
    lead = (3, 4)
    obs = torch.arange(84, dtype=torch.uint8).reshape(*lead, 7)
    numbers = torch.rand(*lead)
    ended = torch.randint(0, 3, lead, dtype=torch.uint8)
    return RolloutBatch(obs, torch.rand(*lead, 2), numbers, numbers + 1, obs + 1, ended, absent=ended > 1)


@pytest.fixture
def other_rank() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this system has no descriptors of processes")
@pytest.mark.parametrize("is_over", [False, True])
def test_a_rank_ends_with_another_whatever_it_computes(
    other_rank: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(ranks.os, "_exit", codes.append)
    group = RankGroup(0, 2, "cpu")
    watch = threading.Thread(target=ranks._end_with_others, args=(group, [other_rank.pid], Console()))
    watch.start()
    group.is_over = is_over
    other_rank.kill()
    watch.join(30)
    assert not watch.is_alive()
    assert codes == ([] if is_over else [ranks.EXIT_RANK_LOST]), "after its last command a rank may end"


class Launcher:
    """Stand-in of torch's launcher: each start takes the next of the given ends."""

    def __init__(self, *ends: Callable[[Path], None]) -> None:
        self._ends = iter(ends)
        self.starts = 0

    def __call__(self, _config: object, _entry: object) -> Callable[..., None]:
        def start(group: str, *_arguments: object) -> None:
            self.starts += 1
            next(self._ends, lambda _: None)(Path(group))

        return start


def lost(_group: Path) -> None:
    failure = ProcessFailure(local_rank=0, pid=1, exitcode=ranks.EXIT_RANK_LOST, error_file="none")
    raise ChildFailedError("rank", {0: failure})


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[int, list[float]]]:
    """Run the launching process with a stand-in of the launcher; return its code and its pauses."""
    monkeypatch.setattr(rank_launcher, "set_forkserver_preload", lambda _modules: None)
    monkeypatch.setattr(rank_launcher.forkserver, "ensure_running", lambda: None)
    for name in ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")
    environ = {contract.ENV_RUN: "r", contract.ENV_ENDPOINT: f"ipc://{tmp_path}", contract.ENV_DIR: str(tmp_path)}

    def launch(launcher: Launcher, checkpoints: Checkpoints) -> tuple[int, list[float]]:
        pauses: list[float] = []
        monkeypatch.setattr(api, "elastic_launch", launcher)
        monkeypatch.setattr(time, "sleep", pauses.append)
        context = Context.from_environment(environ, "learner")
        return rank_launcher.launch(context, checkpoints, lambda _: 0, ["learner"], Stop(), Console()), pauses

    return launch


def test_ranks_that_got_on_start_again_at_once_and_others_after_growing_pauses(
    launch: Callable[..., tuple[int, list[float]]], tmp_path: Path
) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", 3)

    def lost_after_a_checkpoint(group: Path) -> None:
        checkpoints.save(launcher.starts, 100 * launcher.starts, {}, {})
        lost(group)

    launcher = Launcher(lost, lost, lost_after_a_checkpoint, lost_after_a_checkpoint, lost)
    assert launch(launcher, checkpoints) == (contract.EXIT_DONE, [0.5, 1.0, 0.0, 0.0, 0.5])
    assert launcher.starts == 6


def test_the_code_of_a_rank_that_failed_is_the_learners_even_if_another_was_seen_first(
    launch: Callable[..., tuple[int, list[float]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(ranks.STORE_VARIABLE, "")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(rank_launcher, "name_process", lambda _name: None)
    monkeypatch.setattr(rank_launcher.os, "_exit", sys.exit)

    def failed(group: Path) -> None:
        with pytest.raises(SystemExit):
            rank_launcher._run_rank(str(group), lambda _: contract.EXIT_NOT_FINITE, [])
        lost(group)

    checkpoints = Checkpoints(tmp_path / "checkpoints", 3)
    assert launch(Launcher(failed), checkpoints) == (contract.EXIT_NOT_FINITE, [])


def ranks_of(learner: Started) -> dict[str, psutil.Process]:
    children = {child.name(): child for child in psutil.Process(learner.process.pid).children(recursive=True)}
    return {
        name.removeprefix("l2r rank "): child for name, child in children.items() if name.startswith("l2r rank ")
    }


def assert_exact(learner: Started) -> None:
    record = learner.last("learner")
    assert record["sent"] == sum(record[name] for name in ("accepted", "refused", "lost", "missing"))
    assert record["accepted"] * OWN["num_envs"] * OWN["segment_steps"] == record["learned_env_steps"]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("collect", ["device", "workers"])
@pytest.mark.parametrize("victim", ["0", "1"])
def test_training_goes_on_when_a_rank_is_killed(
    run: RunUnderTest, wait_until: Callable[..., Any], victim: str, collect: str
) -> None:
    run.settings = {**OWN, "devices": 2, "checkpoint_seconds": 1.0, "collect": collect}
    run.settings["ppo"] = {} if collect == "device" else {"batch_steps": 512, "minibatch_size": 128}
    learner = run.start("learner")
    if collect == "workers":
        run.start("worker")
    wait_until(lambda: learner.text().count("checkpoint ckpt-") >= 2, "a checkpoint", seconds=120.0, log=learner)
    for kill in (1, 2):
        ranks_of(learner)[victim].kill()
        wait_until(
            lambda kill=kill: learner.text().count("resumed ckpt-") == kill, "a resume", seconds=120.0, log=learner
        )
        known = learner.text().count("checkpoint ckpt-")
        wait_until(
            lambda known=known: learner.text().count("checkpoint ckpt-") > known,
            "a checkpoint",
            seconds=120.0,
            log=learner,
        )
    assert "all 2 ranks start again from the newest checkpoint" in learner.text()
    learner.process.terminate()
    wait_until(lambda: "learner ends on SIGTERM" in learner.text(), "an orderly end", seconds=60.0, log=learner)
    # The launcher would wait longer for a rank that waits for the launcher.
    assert learner.process.wait(rank_launcher.SHUTDOWN_SECONDS - 5) == contract.EXIT_DONE
    assert_exact(learner)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_ranks_end_with_the_process_that_started_them(run: RunUnderTest, wait_until: Callable[..., Any]) -> None:
    run.settings = {**OWN, "devices": 2}
    learner = run.start("learner")
    wait_until(lambda: "learner of CartPole-v1 ready" in learner.text(), "ranks", seconds=120.0, log=learner)
    ranks = ranks_of(learner)
    assert sorted(ranks) == ["0", "1"]
    learner.process.kill()
    wait_until(lambda: not any(rank.is_running() for rank in ranks.values()), "their end", seconds=60.0)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("algorithm", ["ppo", "impala"])
def test_a_run_resumes_on_another_number_of_ranks(run: RunUnderTest, algorithm: str) -> None:
    for updates, devices in ((3, 1), (6, 4), (9, 2)):
        run.settings = {**OWN, "algorithm": algorithm, "devices": devices, "total_updates": updates}
        learner = run.start("learner")
        assert learner.process.wait(120) == contract.EXIT_DONE, learner.text()
        record = learner.last("learner")
        assert (record["updates"], record["lost_updates"]) == (updates, 0)
        assert_exact(learner)
        assert "restart" not in learner.text(), "all copies go on"


SHARED: dict[str, dict[str, Any]] = {
    "ppo": {"algorithm": "ppo", "ppo": {"batch_steps": 512, "minibatch_size": 64}},
    "ppo with memory": {"algorithm": "ppo", "memory": "gru", "ppo": {"batch_steps": 512, "minibatch_size": 64}},
    "impala in bfloat16": {"algorithm": "impala", "precision": "bfloat16", "impala": {"batch_steps": 512}},
    "sac": {"algorithm": "sac", "normalise_observations": True, "sac": {"batch_size": 32}},
    "sac by itself": {"algorithm": "sac", "collect": "device", "sac": {"batch_size": 32}},
    "prioritised dqn": {"algorithm": "dqn", "dqn": {"batch_size": 32, "prioritised": True}},
}
"""Settings with which ranks share the batches of rank 0."""


def learn_and_go_on(run: RunUnderTest, changes: dict[str, Any]) -> None:
    """Let a learner of two ranks reach a limit, and one of four continue from there."""
    for updates, devices in ((6, 2), (12, 4)):
        run.settings = {
            **OWN,
            "collect": "workers",
            "warmup_steps": 256,
            "updates_per_step": 0.1,
            "replay_capacity": 10_000,
            **changes,
            "devices": devices,
            "total_updates": updates,
        }
        if changes["device"] == "cuda":
            run.settings["devices"] = min(devices, 2)
        started = [run.start("learner")]
        started += [] if run.settings["collect"] == "device" else [run.start("worker")]
        assert [each.process.wait(240) for each in started] == [0] * len(started), started[0].text()
        record = started[0].last("learner")
        assert (record["updates"], record["lost_updates"]) == (updates, 0)
        assert_exact(started[0])


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SHARED)
def test_ranks_share_the_batches_of_any_method(run: RunUnderTest, name: str) -> None:
    learn_and_go_on(run, {**SHARED[name], "device": "cpu"})
