"""Memory that the memory check reserves on the card for networks and updates, and their actual use."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from runtime.base.training import from_mapping
from runtime.rl.algos.plan import make_plan
from runtime.rl.buffers.device_replay import DevicePriorities, DeviceRows
from runtime.rl.buffers.replay import Replay
from runtime.rl.roles.experience import Experience, memory_of
from runtime.rl.spaces import ActionSpace, ObsSpace
from tests.bench.gpu.updates import VECTOR, Case, batch_of, dqn, impala, learner_of, planned, ppo, replayed, sac

pytestmark = pytest.mark.gpu
GIB = 2**30
WORKSPACE_BYTES = 0 if torch.cuda.is_available() and "Simulated" in torch.cuda.get_device_name() else 2**26
"""Memory that cuDNN borrows for a convolution: up to 34 MB on an H200. It is part of `CONTEXT_BYTES`."""
SMALL, ATARI = ObsSpace(6, ((32, 32, 1),)), ObsSpace(6, ((84, 84, 4),))
CASES = {
    "sac": sac("vector", VECTOR, 1_024, [256, 256], 1_000),
    "sac-picture": sac("84x84x4", ATARI, 16, [64, 64], 1_000),
    "sac-shifted": sac("84x84x4", ATARI, 16, [64, 64], 1_000),
    "sac-small": sac("32x32x1", SMALL, 64, [64, 64], 1_000, convolutions=[[16, 5, 2], [32, 3, 2], [32, 3, 2]]),
    "dqn": dqn("84x84x4", ATARI, 16, [64], 1_000),
    "td3": replayed("td3", "vector", VECTOR, 1_024, [256, 256], 1_000),
    "ppo": ppo("vector", VECTOR, 32, 64, 1_024, 1, [64, 64]),
    "ppo-picture": ppo("84x84x4", ATARI, 8, 8, 32, 1, [64]),
    "impala": impala("vector", VECTOR, 32, 64, [64, 64]),
    "impala-picture": impala("84x84x4", ATARI, 4, 16, [64]),
}
CASES["sac-shifted"].settings["sac"]["random_shift"] = 4


@pytest.mark.parametrize(
    ("name", "precision"), [*((name, "float32") for name in CASES), ("sac-picture", "bfloat16")]
)
def test_networks_and_the_largest_moment_of_an_update_are_what_the_check_counts(name: str, precision: str) -> None:
    """The shared pool of graphs allocates and frees memory like eager calls, so their peak is its size."""
    case = CASES[name]
    case = Case(case.title, case.obs, {**case.settings, "precision": precision, "cuda_graphs": False})
    plan, settings = planned(case)
    counted = memory_of(plan, settings).update_bytes
    learner = learner_of(case, {}, "cuda")
    batch = batch_of(case, plan, settings, "cuda")
    learner.update(batch)  # workspaces of libraries, which other methods use too
    del learner
    gc.collect()
    before = torch.cuda.memory_allocated()
    learner = learner_of(case, {}, "cuda")
    torch.cuda.reset_peak_memory_stats()
    learner.update(batch)
    taken = torch.cuda.max_memory_allocated() - before
    assert counted / 6 < taken <= counted + WORKSPACE_BYTES


def experience_of(
    said: list[str], obs: ObsSpace = VECTOR, action: ActionSpace | None = None, **values: Any
) -> Experience:
    settings = from_mapping(values)
    return Experience(make_plan(settings, obs, action or ActionSpace(2)), settings, 0, "cuda", said.append)


def test_a_learner_says_what_it_leaves_for_updates_and_keeps_its_replay_on_the_host_for_large_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("runtime.rl.roles.experience.device_free_bytes", lambda _: 8 * GIB)
    said: list[str] = []
    values = {"replay_capacity": 4_000, "num_envs": 1}
    assert experience_of(said, ATARI, **values).place == "device"
    large = {**values, "sac": {"batch_size": 12_288}}
    assert experience_of(said, ATARI, **large).place == "host"
    assert experience_of(said, ATARI, **large, precision="bfloat16").place == "device"
    assert said[0] == "replay of 4000 transitions, 118 MiB, on cuda beside 4.0 GiB for networks and updates"
    assert said[1] == "replay of 4000 transitions, 118 MiB, in the host's memory"
    assert "on cuda beside 5.4 GiB" in said[2]


@pytest.mark.parametrize(
    ("values", "is_drawn_here"),
    [
        ({}, True),
        ({"cuda_graphs": False}, True),
        ({"devices": 2}, False),
        ({"replay_device": "host"}, False),
        ({"sac": {}}, None),
        ({"sac": {}, "cuda_graphs": False}, None),
        ({"algorithm": "dqn", "dqn": {"prioritised": True, "n_step": 3}}, True),
        ({"algorithm": "td3", "td3": {"prioritised": True}}, True),
    ],
)
def test_draws_by_priority_are_on_the_card_where_one_card_has_learner_and_replay(
    values: dict[str, Any], is_drawn_here: bool | None
) -> None:
    given = {"sac": {"prioritised": True}, "replay_capacity": 4_000, **values}
    action = ActionSpace(1, (3,)) if given.get("algorithm") == "dqn" else ActionSpace(2)
    store = experience_of([], action=action, **given).store
    assert isinstance(store, Replay)
    assert (None if store.priorities is None else isinstance(store.priorities, DevicePriorities)) is is_drawn_here
    assert isinstance(store.rows, DeviceRows) is (given.get("replay_device") != "host")
