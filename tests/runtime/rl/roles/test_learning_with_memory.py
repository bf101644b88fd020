"""Tasks that need memory are learned by a policy with memory and not by one without, in one process."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from runtime.base.training import from_mapping
from runtime.rl.algos.actor import CopyStates, NumpyActor
from runtime.rl.algos.plan import build, make_store
from runtime.rl.roles.launch_context import environment_plan, make_environment
from runtime.rl.roles.rollout import Rollout

MANIFESTS = Path(__file__).parents[4] / "manifests"
BALANCED = 195.0
"""Mean return from which CartPole counts as solved in its first version."""
SOLVED, GUESSED = 3.9, 1.95
"""Mean returns in the T-maze of the right turn, and of a random turn."""


def returns_while_learning(manifest: str, enough: float, most_steps: int, **changes: Any) -> float:
    """Train on an example; return the mean of the latest episodes, as soon as it is `enough`."""
    training = from_mapping({**yaml.safe_load((MANIFESTS / manifest).read_text())["train"], **changes})
    env = make_environment(training, training.num_envs, {})
    plan = environment_plan(training, env)
    method, store = build(plan, 1, "cpu"), make_store(plan, training, 1)
    actor, rng = NumpyActor(plan.shape), np.random.default_rng(1)
    actor.load(method.actor_arena())
    states = CopyStates(actor, env.num_envs)
    rollout = Rollout(env, plan.layout, training.segment_steps, 1, gamma=plan.gamma, states=states)
    latest: deque[tuple[int, float]] = deque(maxlen=20)
    mean = 0.0
    for _ in range(most_steps // env.num_envs):
        finished = rollout.step(lambda obs: actor.draw_with_log_prob(states.outputs(obs), rng), 1)
        if finished is None:
            continue
        segment = finished.segment
        latest.append((segment.episodes, segment.return_sum))
        mean = sum(total for _, total in latest) / max(1, sum(count for count, _ in latest))
        if len(latest) == latest.maxlen and mean >= enough:
            break
        store.put(plan.layout.columns(finished.memory.view, segment.transitions, segment.tail))
        if (batch := store.take()) is not None:
            method.update(batch)
            actor.load(method.actor_arena())
    return mean


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("one_thread")
def test_cartpole_without_velocities_needs_memory() -> None:
    assert returns_while_learning("cartpole-memory.yaml", BALANCED, 40_960, memory=None) < 100
    assert returns_while_learning("cartpole-memory.yaml", BALANCED, 122_880) >= BALANCED


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("one_thread")
def test_the_t_maze_needs_memory() -> None:
    assert returns_while_learning("t-maze.yaml", SOLVED, 40_960, memory=None) < GUESSED + 0.3
    assert returns_while_learning("t-maze.yaml", SOLVED, 204_800) >= SOLVED
