"""Worker's half of a distributed update: IMPALA's gradients on rollouts, and a cross entropy for parameter servers.

Gradients on rollouts import torch, so such a worker needs as much memory as a learner; a cross entropy is NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from runtime.base.errors import NotFiniteError
from runtime.exchange.protocol.framing import SegmentArena
from runtime.exchange.protocol.messages import Trajectory
from runtime.exchange.protocol.segment_schema import Layout
from runtime.rl.algos.actor import NumpyActor
from runtime.rl.buffers.rollout_buffer import Rollouts
from runtime.rl.envs.base import VectorEnv
from runtime.rl.roles.rollout import Act, FinishedSegment, Rollout

if TYPE_CHECKING:
    from runtime.rl.algos.impala import Impala


class RolloutGradients:
    """Computes gradients of IMPALA's losses on rollouts, which never leave the worker."""

    def __init__(self, env: VectorEnv, layout: Layout, steps: int, seed: int, method: Impala) -> None:
        self._rollout = Rollout(env, layout, steps, seed)
        self._layout = layout
        self._method = method
        self._rollouts = Rollouts(layout, env.num_envs, steps * env.num_envs, steps * env.num_envs)

    @property
    def env_seconds(self) -> float:
        """Seconds in the environment's steps so far."""
        return self._rollout.env_seconds

    def step(self, act: Act, actor: NumpyActor, version: int) -> FinishedSegment | None:
        """Take one step of every copy; return a gradient when the rollout is full."""
        finished = self._rollout.step(act, version)
        if finished is None:
            return None
        segment = finished.segment
        self._rollouts.put(self._layout.columns(finished.memory.view, segment.transitions, segment.tail))
        batch = self._rollouts.take()
        assert batch is not None  # noqa: S101  (one segment is one batch here)
        self._method.load_arena(actor.weights)
        gradient = _finite(self._method.gradient(batch)[0].numpy())
        return gradient_segment(gradient, version, segment.episodes, segment.return_sum)


def _finite(gradient: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return `gradient`. Raises NotFiniteError if it contains infinite numbers or NaN."""
    if not np.isfinite(gradient).all():
        raise NotFiniteError(
            "the gradient holds values that are not finite; lower the step size or bound the rewards"
        )
    return gradient


def gradient_segment(
    gradient: NDArray[np.float32], version: int, episodes: int, return_sum: float
) -> FinishedSegment:
    """Return a segment with one item, the gradient with the weights of `version`."""
    raw = np.ascontiguousarray(gradient, dtype=np.float32)
    return FinishedSegment(Trajectory(1, version, version, episodes, return_sum, 0.0), SegmentArena.of(raw.data))


def cross_entropy_gradient(
    actor: NumpyActor, obs: NDArray[np.float32], labels: NDArray[np.intp]
) -> tuple[NDArray[np.float32], int, float]:
    """Return the gradient for all weights, the number of correct predictions, and the mean cross entropy.

    For networks of dense layers with ReLU in between, whose outputs are the logits of one choice.

    Args:
        obs: (B, width) inputs. labels: (B,) correct choices.
    """
    features = [obs]
    for weight, bias in actor.layers[:-1]:
        features.append(np.maximum(features[-1] @ weight + bias, 0.0))
    weight, bias = actor.layers[-1]
    logits = features[-1] @ weight + bias
    logits -= logits.max(axis=1, keepdims=True)  # softmax is invariant to it, and exp cannot overflow
    probs = np.exp(logits)
    totals = probs.sum(axis=1, keepdims=True)
    # Not the logarithm of a probability, because the probability of an unlikely label may be 0 in float32.
    loss = float((np.log(totals[:, 0]) - logits[np.arange(len(labels)), labels]).mean())
    probs /= totals
    num_correct = int((logits.argmax(axis=1) == labels).sum())

    # d loss / d logits = (probs - onehot(labels)) / B; backpropagation then goes from the last to the first layer.
    gradient = probs
    gradient[np.arange(len(labels)), labels] -= 1.0
    gradient /= len(labels)
    parts: list[NDArray[np.float32]] = []
    for (weight, _), below in zip(reversed(actor.layers), reversed(features), strict=True):
        parts += [gradient.sum(axis=0), (below.T @ gradient).ravel()]
        gradient = (gradient @ weight.T) * (below > 0)
    return np.concatenate(parts[::-1]).astype(np.float32), num_correct, loss
