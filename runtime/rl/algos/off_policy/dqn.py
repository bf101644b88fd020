"""Deep Q-network with optional parts of Rainbow.

Mnih et al., *Human-level control through deep reinforcement learning* (2015, doi:10.1038/nature14236), algorithm 1.
The options are from Hessel et al., *Rainbow* (2018, arXiv:1710.02298): double Q-learning (van Hasselt et al. 2016,
arXiv:1509.06461), dueling networks (Wang et al. 2016, arXiv:1511.06581), n-step returns and prioritised replay
(Schaul et al. 2016); workers and replay implement the last two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import mse_loss, smooth_l1_loss

from runtime.base.methods import DQNConfig
from runtime.rl.algos.actor import ActorShape, linear_schedule
from runtime.rl.algos.algorithm import HasKernels, Stats
from runtime.rl.algos.networks import Arena, dense_layers, encode, fill_kernels, fill_uniform
from runtime.rl.algos.off_policy.critics import (
    ReplayMethod,
    bellman_target,
    errors_of,
    weighted_mean,
)
from runtime.rl.algos.optimisers import Adam, clip_grad_norm
from runtime.rl.buffers.replay import Batch
from runtime.rl.device.accelerator import DTYPES


class QNetwork:
    """Value of each choice, from one stack of layers after the encoder, or from two streams.

    The dueling form is Wang et al. 2016, equation (9): Q = V + A - mean A. The choice with the largest advantage
    also has the largest value, so the stream of V is not sent to workers.
    """

    def __init__(
        self,
        shape: ActorShape,
        generator: torch.Generator,
        device: str,
        *,
        is_dueling: bool,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.shape = shape
        count, end = len(shape.convolution_parts), len(shape.convolution_parts) + 2 * len(shape.layers)
        widths = (shape.features, *shape.hidden, 1) if is_dueling else ()
        stream = [part for i, o in pairwise(widths) for part in ((i, o), (o,))]
        # Parameters that are in no product come last, since the arena is exact from there on.
        self.arena = Arena(
            [*shape.parts[:end], *stream, *shape.parts[end:]], device, dtype, exact=len(shape.parts) - end
        )
        parameters, behind = self.arena.parameters, end + len(stream)
        self.kernels = parameters[:count]
        self._advantage = _layers(parameters[count:end])
        self._value = _layers(parameters[end:behind])
        self.moments = self.arena.begin_moments(shape)
        self.exploration = self.arena.weights[behind]
        """(1,) share of random actions."""
        self._sizes = [sum(map(math.prod, shape.parts[:end])), sum(map(math.prod, shape.parts[end:]))]
        # Biases too: without them values of small observations are linear, and overshoot where an episode ends.
        first = 0
        if shape.network is not None:
            fill_kernels(shape, self.arena.weights[:count], generator)
            first = count
        for weight, bias in _layers(self.arena.weights[first:behind]):
            for part in (weight, bias):
                fill_uniform(part, math.prod(weight.shape[:-1]), generator)

    def __call__(self, rows: Tensor) -> Tensor:
        """Return (B, choices) values for observations (B, obs_dim)."""
        features = encode(self.shape, self.kernels, rows, self.moments)
        advantage = dense_layers(self.shape, self._advantage, features)
        if not self._value:
            return advantage
        return dense_layers(self.shape, self._value, features) + advantage - advantage.mean(dim=1, keepdim=True)

    def policy_weights(self) -> Tensor:
        """Return the (shape.size,) weights that acting needs: all except the stream of V."""
        front, tail = self._sizes
        flat = self.arena.flat
        return flat if not self._value else torch.cat([flat[:front], flat[-tail:]])


def _layers(parts: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return weight and bias of each layer."""
    return list(zip(parts[::2], parts[1::2], strict=True))


@dataclass(frozen=True, slots=True)
class DQNStats(Stats):
    """Statistics of one update; 0-d tensors."""

    loss: Tensor
    mean_q: Tensor
    exploration: Tensor
    """Share of random actions of the policy that is published next."""


class DQN(ReplayMethod):
    """Deep Q-network: batches in, weights out."""

    config: DQNConfig

    def __init__(
        self,
        shape: ActorShape,
        config: DQNConfig,
        seed: int,
        device: str = "cpu",
        *,
        precision: str = "float32",
        capture: bool | None = None,
    ) -> None:
        super().__init__(shape, config, device, capture)
        initial, dtype = torch.Generator().manual_seed(seed), DTYPES[precision]
        self.q = QNetwork(shape, initial, device, is_dueling=config.dueling, dtype=dtype)
        self.target = QNetwork(shape, initial, device, is_dueling=config.dueling, dtype=dtype)
        self.target.arena.flat.copy_(self.q.arena.flat)
        self._optimisers = {"q": Adam(self.q.arena.flat, config.lr, eps=config.adam_eps)}
        self._step = self.captured(self._learn)
        self._explore()

    def ends_launch(self, updates: int) -> bool:
        """Return true for an update after which the target is copied."""
        return (updates + 1) % self.config.target_updates == 0

    def end_updates(self, count: int, stats: Tensor, td_error: Tensor) -> DQNStats:
        """Count updates, set the share of random actions, and copy the network to the target when it is due."""
        self.td_error = td_error
        self.updates += count
        self._explore()
        if self.updates % self.config.target_updates == 0:
            self.target.arena.flat.copy_(self.q.arena.flat)
        return DQNStats.of(torch.cat([stats, self.q.exploration.detach()]))

    def _learn(self, *columns: Tensor) -> tuple[Tensor, Tensor]:
        """Do one gradient step on the columns of a `Batch`; return loss and mean value, and TD errors."""
        batch = Batch(*columns)
        self.q.arena.refresh()
        self.target.arena.refresh()
        y = bellman_target(batch, self.next_value(batch.next_obs), self.config.gamma)
        q = self.q(batch.obs).gather(1, batch.action.long()).squeeze(1)
        # Clipping the error to [-1, 1] amounts to Huber's loss (Mnih et al. 2015, Methods).
        errors = smooth_l1_loss if self.config.huber else mse_loss
        loss = weighted_mean(errors(q, y, reduction="none"), batch.weight)
        gradient = self.mean(self.q.arena.gradient(loss))
        self._optimisers["q"].step(clip_grad_norm(gradient, self.config.max_grad_norm))
        self._count_moments(batch.obs, self.q, self.target)
        return torch.stack([loss.detach(), q.detach().mean()]), errors_of(q, y, batch)

    @torch.no_grad()
    def next_value(self, next_obs: Tensor) -> Tensor:
        """Return (B,) largest target values; with double Q-learning, target values of the network's own choices."""
        target = self.target(next_obs)
        if not self.config.double:
            return target.amax(dim=1)
        return target.gather(1, self.q(next_obs).argmax(dim=1, keepdim=True)).squeeze(1)

    def _explore(self) -> None:
        """Set the share of random actions: it decreases linearly to its end value, and is sent with the weights."""
        config = self.config
        bounds = config.exploration_begin, config.exploration_end
        share = linear_schedule(*bounds, self.updates, config.exploration_updates)
        self.q.exploration.detach().fill_(share)

    def networks(self) -> Sequence[HasKernels]:
        """Return the network and its target."""
        return (self.q, self.target)

    def policy_weights(self) -> Tensor:
        """Return the weights that acting needs, and the share of random actions."""
        return self.q.policy_weights()

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor that an update changes."""
        return {
            "q": self.q.arena.flat,
            "target_q": self.target.arena.flat,
            **self._shared_tensors(),
        }
