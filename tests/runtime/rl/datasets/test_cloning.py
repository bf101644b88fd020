"""Episodes are recorded completely, read back, and imitated; a policy of one run starts another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from runtime.base.errors import SetupError
from runtime.base.training import Settings, from_mapping
from runtime.rl.algos.actor import NumpyActor
from runtime.rl.algos.plan import build, make_store
from runtime.rl.algos.ppo import value_error
from runtime.rl.buffers.replay import Replay
from runtime.rl.datasets.episode_files import dataset_files, open_episodes, summary
from runtime.rl.datasets.recorder import EpisodeRecorder
from runtime.rl.roles.evaluator import drive_episodes
from runtime.rl.roles.experience import fill_replay
from runtime.rl.roles.launch_context import environment_plan, make_environment

pytest.importorskip("h5py")


def expert(obs: np.ndarray) -> np.ndarray:
    """A linear law that balances CartPole for 500 steps."""
    return (obs @ np.array([0.1, 0.3, 3.0, 1.0]) > 0).astype(np.int32)[:, None]


def record(folder: Path, **limits: Any) -> None:
    env = make_environment(from_mapping({"environment": "CartPole-v1"}), 4, {})
    recorder = EpisodeRecorder(str(folder), env, "CartPole-v1", **limits)
    assert drive_episodes(env, expert, 3, lambda _: False, None, recorder) is not None
    recorder.flush()


def bc_settings(folder: Path) -> Settings:
    return from_mapping({"environment": "CartPole-v1", "algorithm": "bc", "dataset": str(folder)})


@pytest.mark.slow
def test_a_clone_of_an_expert_balances(tmp_path: Path) -> None:
    record(tmp_path)
    figures = summary(str(tmp_path))
    assert (figures["episodes"], figures["transitions"], figures["mean_return"]) == (4, 2000, 500.0)
    training = bc_settings(tmp_path)
    env = make_environment(training, 4, {})
    plan = environment_plan(training, env)
    method, store = build(plan, 1, "cpu"), make_store(plan, training, 1)
    assert isinstance(store, Replay)
    fill_replay(store, plan, str(tmp_path), print)
    for _ in range(600):
        method.update(store.sample(256))
    actor = NumpyActor(plan.shape)
    actor.load(method.actor_arena())
    episodes = drive_episodes(env, lambda obs: actor.act(obs, None), 9, lambda _: False)
    assert episodes is not None
    assert np.mean([episode.return_ for episode in episodes]) > 400

    ppo = from_mapping({"environment": "CartPole-v1", "algorithm": "ppo"})
    going_on = build(environment_plan(ppo, env), 7, "cpu")
    going_on.begin_with(torch.from_numpy(method.actor_arena()))
    assert np.array_equal(going_on.actor_arena(), method.actor_arena())


def test_long_episodes_are_cut_and_damaged_files_are_named(tmp_path: Path) -> None:
    record(tmp_path, memory_bytes=4000)
    file = open_episodes(dataset_files(str(tmp_path))[0])
    episodes = list(file.read())
    file.close()
    assert sum(map(len, episodes)) == 2000
    assert len(episodes) > 4
    assert not any(episode.terminated for episode in episodes)
    (tmp_path / "x.hdf5").write_bytes(b"\x89HDF")
    assert "x.hdf5 is not a complete HDF5 file" in summary(str(tmp_path))["damaged"][0]
    with pytest.raises(SetupError, match="no recorded episodes"):
        summary(str(tmp_path / "none"))


def test_clipped_value_error_is_that_of_the_37_details() -> None:
    value, old, target = (torch.tensor([number]) for number in (2.0, 1.0, 3.0))
    assert value_error(value, old, target, None).item() == 1.0
    assert value_error(value, old, target, 0.2).item() == pytest.approx((1.2 - 3.0) ** 2)
