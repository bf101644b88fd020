"""Place of a learner's data, its messages about it, and the allowed amount in flight."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.base.errors import SetupError
from runtime.base.replay_memory import memory_of_settings
from runtime.base.training import from_mapping
from runtime.rl.algos.plan import make_plan
from runtime.rl.buffers.host_rows import HostRows, reserved
from runtime.rl.buffers.replay import Replay
from runtime.rl.roles import experience
from runtime.rl.roles.experience import INFLIGHT_BYTES, Experience, memory_of
from runtime.rl.spaces import ActionSpace, ObsSpace

GIB = 2**30
LARGE, SMALL = ObsSpace(0, ((512, 384, 3),)), ObsSpace(33)


def experience_of(obs: ObsSpace, said: list[str], **values: object) -> Experience:
    settings = from_mapping(values)
    return Experience(make_plan(settings, obs, ActionSpace(2)), settings, 0, "cpu", said.append)


def test_a_learner_says_where_its_replay_is_and_how_large() -> None:
    said: list[str] = []
    made = experience_of(SMALL, said)
    assert isinstance(made.store, Replay)
    assert isinstance(made.store.rows, HostRows)
    assert said == ["replay of 500000 transitions, 80 MiB, in the host's memory"]
    experience_of(SMALL, said, algorithm="ppo")
    assert said[1] == "rollouts, 1 MiB, in the host's memory"


def test_what_the_host_cannot_hold_is_refused_before_anything_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experience, "host_free_bytes", lambda: 16 * GIB)
    with pytest.raises(
        SetupError, match=r"replay and batches take 3\d\d\.\d GiB and the host 16\.0 GiB; lower replay_c"
    ):
        experience_of(LARGE, [])
    assert experience_of(LARGE, [], total_env_steps=10_000).place == "host", "a run that ends before it is full"


def test_what_is_in_flight_is_bounded_in_bytes_also_for_pictures() -> None:
    terms = experience_of(LARGE, [], total_env_steps=1_000).flow_terms()
    segment = 256 * terms["transition_bytes"] + 16 * terms["tail_bytes"]
    assert terms["inflight_transitions"] * segment <= 256 * INFLIGHT_BYTES
    assert terms["inflight_transitions"] < 300, "and not the 8,192 steps of the band"
    assert experience_of(SMALL, []).flow_terms()["inflight_transitions"] > 500_000


@pytest.mark.parametrize(
    ("values", "replay", "rollouts"),
    [
        ({}, True, False),
        ({"algorithm": "random"}, True, False),
        ({"algorithm": "ppo"}, False, True),
        ({"algorithm": "impala"}, False, True),
        ({"algorithm": "impala", "impala": {"sends_gradients": True}}, False, False),
    ],
)
def test_memory_follows_from_the_method(values: dict[str, object], replay: bool, rollouts: bool) -> None:
    settings = from_mapping(values)
    memory = memory_of(make_plan(settings, SMALL, ActionSpace(2)), settings)
    assert (memory.replay_bytes > 0, memory.rollout_bytes > 0) == (replay, rollouts)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"sac": {"prioritised": True, "batch_size": 64}, "precision": "bfloat16"},
        {"hidden": [32], "convolutions": [[8, 8, 4]]},
        {"algorithm": "td3", "hidden": [32], "td3": {"hidden": [40]}},
        {"algorithm": "ppo", "ppo": {"minibatch_size": 128}},
        {"algorithm": "impala"},
    ],
)
def test_the_app_counts_before_the_launch_what_the_learner_counts(values: dict[str, object]) -> None:
    settings, obs = from_mapping(values), ObsSpace(6, ((84, 84, 4),))
    plan = make_plan(settings, obs, ActionSpace(2))
    assert memory_of_settings(values, plan.layout.tail_bytes, 8, obs.images) == memory_of(plan, settings)


def test_memory_that_the_system_does_not_reserve_is_named() -> None:
    with pytest.raises(MemoryError, match=r"1048576\.0 GiB cannot be reserved: Cannot allocate memory"):
        reserved((2**50,), np.dtype(np.uint8))
    large = reserved((2**38,), np.dtype(np.uint8))
    large[-1] = 7
    assert (large[0], large[-1]) == (0, 7)
