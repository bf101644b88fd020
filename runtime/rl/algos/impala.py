"""IMPALA: an actor-critic that corrects for the age of its data with V-trace; with a clip it is APPO.

Espeholt et al., *IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures* (2018,
arXiv:1802.01561), section 4; the clipped form after Petrenko et al. 2020 (arXiv:2006.11751).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runtime.algos.actor import ActorShape
from runtime.algos.configs import ImpalaConfig
from runtime.algos.method import Method, optimiser_tensors
from runtime.algos.networks import Adam, Policy, shortened, value_network
from runtime.algos.ppo import annealed, bootstrap_values
from runtime.rollouts import RolloutBatch


@dataclass(frozen=True, slots=True)
class ImpalaStats:
    """Of the last gradient step of an update; 0-d tensors."""

    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    """Nats."""
    mean_ratio: Tensor
    """Of the probabilities of an action now and when it was taken; far from 1 the data is old."""

    def floats(self) -> dict[str, float]:
        """By name, as numbers."""
        return {name: float(getattr(self, name)) for name in self.__slots__}


class Impala(Method):
    """The learner's half: rollouts in, weights out."""

    def __init__(self, shape: ActorShape, config: ImpalaConfig, seed: int, device: str = "cpu") -> None:
        super().__init__(shape)
        self.config = config
        initial = torch.Generator().manual_seed(seed)
        self._policy = Policy(shape, initial, device)
        self._value = value_network(shape, initial, device)
        self._optimisers = {
            "policy": Adam(self._policy.arena.flat, config.lr),
            "value": Adam(self._value.arena.flat, config.lr),
        }

    def update(self, batch: RolloutBatch) -> ImpalaStats:
        """One gradient step on a batch, or ``epochs`` of them."""
        rate = annealed(self.config.lr, self.updates, self.config.anneal_updates)
        for optimiser in self._optimisers.values():
            optimiser.lr = rate
        stats = [self._step(batch) for _ in range(self.config.epochs)]
        self.updates += 1
        return stats[-1]

    def _step(self, batch: RolloutBatch) -> ImpalaStats:
        gradient, stats = self.gradient(batch)
        gradient = self.mean(gradient)
        size = self._policy.arena.flat.numel()
        self._optimisers["policy"].step(shortened(gradient[:size], self.config.max_grad_norm))
        self._optimisers["value"].step(shortened(gradient[size:], self.config.max_grad_norm))
        return stats

    def arena(self) -> Tensor:
        """Copy all parameters out: the policy's, then the value's."""
        return torch.cat([self._policy.arena.flat, self._value.arena.flat])

    def load_arena(self, weights: NDArray[np.float32]) -> None:
        """Take over what ``arena`` gave."""
        size = self._policy.arena.flat.numel()
        self._policy.arena.flat.copy_(torch.from_numpy(weights[:size]))
        self._value.arena.flat.copy_(torch.from_numpy(weights[size:]))

    def gradient(self, batch: RolloutBatch) -> tuple[Tensor, ImpalaStats]:
        """Slope of the losses on a batch in all parameters, those of the policy first."""
        config = self.config
        obs, action, log_prob_old = (each.flatten(0, 1) for each in (batch.obs, batch.action, batch.log_prob))

        value, next_value = bootstrap_values(self._value, batch)
        log_prob, entropy = self._policy.evaluate(obs, action)
        ratio = (log_prob - log_prob_old).exp()
        vs, advantage = v_trace(
            config.reward_scale * batch.reward,
            value,
            next_value,
            batch.ended,
            ratio.detach().view_as(batch.reward),
            gamma=config.gamma,
            rho_bar=config.rho_bar,
            c_bar=config.c_bar,
        )
        mean_entropy = entropy.mean()
        if config.clip is None:
            policy_loss = -(log_prob * advantage.flatten()).mean()
        else:  # the advantage already holds the weight; the ratio bounds the move alone
            advantage = advantage.flatten() / ratio.detach().clamp(1e-6, config.rho_bar)
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
            policy_loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
        value_loss = 0.5 * (self._value(obs).squeeze(1) - vs.flatten()).square().mean()

        slope = torch.cat(
            [
                self._policy.arena.gradient(policy_loss - config.entropy_cost * mean_entropy),
                self._value.arena.gradient(config.value_cost * value_loss),
            ]
        )
        details = (policy_loss, value_loss, mean_entropy, ratio.mean())
        return slope, ImpalaStats(*(each.detach() for each in details))

    def policy_weights(self) -> Tensor:
        """Return the policy's parameters."""
        return self._policy.arena.flat

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor that an update changes."""
        return {
            "policy": self._policy.arena.flat,
            "value": self._value.arena.flat,
            **optimiser_tensors(self._optimisers),
        }

    def generators(self) -> dict[str, torch.Generator]:
        """Nothing is drawn."""
        return {}


def v_trace(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    ended: Tensor,
    ratio: Tensor,
    *,
    gamma: float,
    rho_bar: float,
    c_bar: float,
) -> tuple[Tensor, Tensor]:
    """(T, N) targets of the values, equation (1), and advantages of the policy, section 4.2.

    ``next_value`` is of what followed before any reset. Behind an end the trace is cut: the next row belongs to
    another episode.
    """
    rho, c = ratio.clamp(max=rho_bar), ratio.clamp(max=c_bar)
    discount = gamma * (ended != 1)
    runs_on = (ended == 0).to(reward.dtype)
    delta = rho * (reward + discount * next_value - value)

    excess = torch.zeros_like(reward[0])  # vs - V of the row behind
    vs = torch.empty_like(value)
    next_vs = torch.empty_like(value)
    for t in range(len(reward) - 1, -1, -1):
        carried = runs_on[t] * excess
        next_vs[t] = next_value[t] + carried
        excess = delta[t] + discount[t] * c[t] * carried
        vs[t] = value[t] + excess
    return vs, rho * (reward + discount * next_vs - value)
