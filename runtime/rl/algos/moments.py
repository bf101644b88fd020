"""Running mean and variance of observations and returns, in tensors, for networks that need numbers near 1.

Engstrom et al. 2020 (*Implementation Matters in Deep Policy Gradients*, arXiv:2005.12729) and Andrychowicz et al.
2021 (*What Matters in On-Policy Reinforcement Learning?*, arXiv:2006.05990) find that PPO on continuous control
depends on it. OpenAI baselines' VecNormalize keeps the moments in one loop of environments. Here the learner
computes them from the batches of all workers, and they are the last parts of each policy's weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import torch
from torch import Tensor

from runtime.rl.algos.actor import ActorShape
from runtime.rl.algos.networks import vector_of

_EPSILON: Final = 1e-8
"""Added to a variance before its root; a constant number then becomes 0."""
REWARD_BOUND: Final = 10.0
"""Largest absolute value of a normalised reward, as in VecNormalize."""

Mean = Callable[[Tensor], Tensor]
"""Mean of a tensor over all ranks that share a batch."""


class Normalised(Protocol):
    """Network that normalises the vector of observations."""

    @property
    def moments(self) -> Sequence[Tensor]:
        """Return shift and scale; nothing without normalisation."""


class RunningMoments:
    """Mean and variance of all rows so far: Chan et al. 1979 (*Updating Formulae*, STAN-CS-79-773), eq. (2.1)."""

    def __init__(self, size: int, device: str) -> None:
        # Mean and variance, not a sum of squares, for which float32 would soon lack precision.
        self.state = torch.zeros(1 + 2 * size, device=device)
        """(1 + 2 size,) count, means, variances; the same in checkpoints."""
        self._count = self.state[:1]
        self.mean, self.variance = self.state[1 : 1 + size], self.state[1 + size :]
        self.variance.fill_(1.0)

    @torch.no_grad()
    def update(self, rows: Tensor, mean: Mean, ranks: int = 1) -> None:
        """Merge ``rows`` (B, size), an equal share of those of all ``ranks``."""
        # First the mean over devices: the variances of the shares around it then have an exact mean too.
        batch_mean = mean(rows.mean(dim=0))
        batch_variance = mean((rows - batch_mean).square().mean(dim=0))
        count = ranks * len(rows)
        total = self._count + count
        share = count / total
        distance = batch_mean - self.mean
        self.mean.addcmul_(distance, share)
        spread = batch_variance - self.variance + distance.square() * (1.0 - share)
        self.variance.addcmul_(spread, share)
        self._count.copy_(total)

    @property
    def scale(self) -> Tensor:
        """Return (size,) inverse standard deviations."""
        return (self.variance + _EPSILON).rsqrt()

    def count(
        self, shape: ActorShape, obs: Tensor, networks: Sequence[Normalised], mean: Mean, ranks: int = 1
    ) -> None:
        """Merge observations (B, obs_dim), and write the moments to the networks that normalise by them."""
        self.update(vector_of(shape, obs), mean, ranks)
        self.write([network.moments for network in networks if network.moments])

    def write(self, places: Sequence[Sequence[Tensor]]) -> None:
        """Copy mean and scale to each (shift, scale) of networks."""
        scale = self.scale
        for shift, factor in places:
            shift.detach().copy_(self.mean)
            factor.detach().copy_(scale)
