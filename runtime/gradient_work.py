"""A worker's half of distributed update: gradients on examples, or on rollouts of an environment.

The first kind is computed in NumPy. The second imports torch: such a worker costs as much memory as a learner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from runtime.algos.actor import NumpyActor
from runtime.envs.base import VectorEnv
from runtime.framing import Arena
from runtime.layout import Layout
from runtime.messages import Trajectory
from runtime.process import NotFiniteError
from runtime.rollout import Act, Collected, Rollout
from runtime.rollouts import Rollouts

if TYPE_CHECKING:
    from runtime.algos.impala import Impala


@runtime_checkable
class HasExamples(Protocol):
    """An environment whose right answers are known: what is learned there needs no trial."""

    def examples(self, count: int, rng: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
        """Draw `count` observations for training, (count, width), and the right choice for each."""
        ...


class ExampleGradients:
    """Gradients of the cross entropy on examples, computed in NumPy."""

    def __init__(self, env: HasExamples, batch_size: int, seed: int) -> None:
        self._env = env
        self._count = batch_size
        self._rng = np.random.default_rng(seed)

    def step(self, actor: NumpyActor, version: int) -> Collected:
        """Compute one gradient at the weights of `version`."""
        obs, right = self._env.examples(self._count, self._rng)
        gradient, hits = cross_entropy_gradient(actor, obs, right)
        return _collected(gradient, version, self._count, float(hits))


class RolloutGradients:
    """Gradients of IMPALA's losses on rollouts, which stay where they were made."""

    def __init__(self, env: VectorEnv, layout: Layout, steps: int, seed: int, method: Impala) -> None:
        self._rollout = Rollout(env, layout, steps, seed)
        self._layout = layout
        self._method = method
        self._rollouts = Rollouts(layout, env.num_envs, steps * env.num_envs, steps * env.num_envs)

    def step(self, act: Act, actor: NumpyActor, version: int) -> Collected | None:
        """Take one step of every copy; return a gradient when the rollout is full."""
        found = self._rollout.step(act, version)
        if found is None:
            return None
        segment = found.segment
        self._rollouts.put(self._layout.columns(found.arena, segment.transitions))
        batch = self._rollouts.take()
        assert batch is not None  # noqa: S101  (it takes as much as was put in)
        self._method.load_arena(actor.weights)
        gradient = self._method.gradient(batch)[0].numpy()
        return _collected(gradient, version, segment.episodes, segment.return_sum)


def _collected(gradient: NDArray[np.float32], version: int, episodes: int, return_sum: float) -> Collected:
    if not np.isfinite(gradient).all():
        raise NotFiniteError(
            "the gradient holds values that are not finite; lower the step size or bound the rewards"
        )
    raw = np.ascontiguousarray(gradient, dtype=np.float32)
    segment = Trajectory(
        transitions=1,
        policy_version_min=version,
        policy_version_max=version,
        episodes=episodes,
        return_sum=return_sum,
        progress_sum=0.0,
    )
    return Collected(segment, Arena.of(raw.data))


def cross_entropy_gradient(
    actor: NumpyActor, obs: NDArray[np.float32], right: NDArray[np.intp]
) -> tuple[NDArray[np.float32], int]:
    """Return the slope of the mean cross entropy of `right` in all weights, and how many choices were right.

    For networks of dense layers with ReLU in between and logits of one choice.
    """
    seen = [obs]
    for weight, bias in actor.layers[:-1]:
        seen.append(np.maximum(seen[-1] @ weight + bias, 0.0))
    weight, bias = actor.layers[-1]
    logits = seen[-1] @ weight + bias
    logits -= logits.max(axis=1, keepdims=True)
    chance = np.exp(logits)
    chance /= chance.sum(axis=1, keepdims=True)
    hits = int((logits.argmax(axis=1) == right).sum())

    slope = chance
    slope[np.arange(len(right)), right] -= 1.0
    slope /= len(right)
    parts: list[NDArray[np.float32]] = []
    for (weight, _), below in zip(reversed(actor.layers), reversed(seen), strict=True):
        parts += [slope.sum(axis=0), (below.T @ slope).ravel()]
        slope = (slope @ weight.T) * (below > 0)
    return np.concatenate(parts[::-1]).astype(np.float32), hits
