"""Proximal policy optimisation with a clipped objective.

Schulman et al., *Proximal Policy Optimization Algorithms* (2017, arXiv:1707.06347), with the advantage of Schulman
et al. 2016 (arXiv:1506.02438) and the details that Huang et al. 2022 have found to matter: advantages normalised in
each minibatch, orthogonal weights, short gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.algos.actor import ActorShape
from runtime.algos.configs import PPOConfig
from runtime.algos.method import Method, optimiser_tensors
from runtime.algos.networks import Adam, Network, Policy, shortened, value_network
from runtime.rollouts import RolloutBatch


@dataclass(frozen=True, slots=True)
class PPOStats:
    """Means over the gradient steps of one update; 0-d tensors."""

    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    """Nats."""
    kl: Tensor
    """Estimate of how far the policy has moved from the one that acted, nats."""
    clipped: Tensor
    """Share of the actions whose probability has moved by more than ``clip``."""

    def floats(self) -> dict[str, float]:
        """By name, as numbers."""
        return {name: float(getattr(self, name)) for name in self.__slots__}


class PPO(Method):
    """The learner's half: rollouts in, weights out."""

    def __init__(self, shape: ActorShape, config: PPOConfig, seed: int, device: str = "cpu") -> None:
        super().__init__(shape)
        self.config = config
        initial = torch.Generator().manual_seed(seed)
        self._shuffle = torch.Generator().manual_seed(seed + 1)
        self._policy = Policy(shape, initial, device)
        self._value = value_network(shape, initial, device)
        self._optimisers = {
            "policy": Adam(self._policy.arena.flat, config.lr),
            "value": Adam(self._value.arena.flat, config.lr),
        }

    def update(self, batch: RolloutBatch) -> PPOStats:
        """Go over a batch ``epochs`` times in minibatches."""
        config = self.config
        rate = annealed(config.lr, self.updates, config.anneal_updates)
        for optimiser in self._optimisers.values():
            optimiser.lr = rate

        value, next_value = bootstrap_values(self._value, batch)
        advantage = generalised_advantage(
            batch.reward, value, next_value, batch.ended, config.gamma, config.gae_lambda
        )
        target = (advantage + value).flatten()
        advantage = advantage.flatten()
        obs, action, log_prob = (each.flatten(0, 1) for each in (batch.obs, batch.action, batch.log_prob))

        sums = torch.zeros(len(PPOStats.__slots__), device=obs.device)
        steps = 0
        for _ in range(config.epochs):
            order = torch.randperm(len(obs), generator=self._shuffle)
            for rows in torch.split(order.to(obs.device), config.minibatch_size):
                sums += self._step(obs[rows], action[rows], log_prob[rows], advantage[rows], target[rows])
                steps += 1
            if config.target_kl is not None and self.mean(sums[3] / steps) > config.target_kl:
                break
        self.updates += 1
        return PPOStats(*(sums / steps))

    def _step(self, obs: Tensor, action: Tensor, log_prob_old: Tensor, advantage: Tensor, target: Tensor) -> Tensor:
        """One gradient step for policy and value on a minibatch; returns the statistics."""
        config = self.config
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)

        log_prob, entropy = self._policy.evaluate(obs, action)
        log_ratio = log_prob - log_prob_old
        ratio = log_ratio.exp()
        unclipped = ratio * advantage
        clipped = ratio.clamp(1 - config.clip, 1 + config.clip) * advantage
        policy_loss = -torch.minimum(unclipped, clipped).mean()
        mean_entropy = entropy.mean()

        value_loss = 0.5 * (self._value(obs).squeeze(1) - target).square().mean()

        loss = policy_loss - config.entropy_cost * mean_entropy
        gradient = self.mean(self._policy.arena.gradient(loss))
        self._optimisers["policy"].step(shortened(gradient, config.max_grad_norm))
        gradient = self.mean(self._value.arena.gradient(config.value_cost * value_loss))
        self._optimisers["value"].step(shortened(gradient, config.max_grad_norm))

        with torch.no_grad():
            kl = (ratio - 1 - log_ratio).mean()
            share = ((ratio - 1).abs() > config.clip).float().mean()
            return torch.stack([policy_loss, value_loss, mean_entropy, kl, share])

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
        """Return the generator of the minibatches."""
        return {"shuffle_generator": self._shuffle}


def annealed(lr: float, updates: int, over: int | None) -> float:
    """Return the step size after ``updates`` of ``over`` updates; it never falls quite to nothing."""
    return lr if over is None else lr * max(1.0 - updates / over, 1e-3)


@torch.no_grad()
def bootstrap_values(value: Network, batch: RolloutBatch) -> tuple[Tensor, Tensor]:
    """(T, N) values of each observation, and of the one that followed it.

    Where a copy was not reset, the one that followed is the next row's; only the others are looked at anew.
    """
    steps, copies = batch.reward.shape
    values = value(batch.obs.flatten(0, 1)).view(steps, copies)
    following = torch.empty_like(values)
    following[:-1] = values[1:]
    anew = batch.ended != 0
    anew[-1] = True
    following[anew] = value(batch.next_obs[anew]).squeeze(1)
    return values, following


def generalised_advantage(
    reward: Tensor, value: Tensor, next_value: Tensor, ended: Tensor, gamma: float, gae_lambda: float
) -> Tensor:
    """(T, N) advantages; no end of either kind is looked across, and behind a termination there is nothing."""
    delta = reward + gamma * next_value * (ended != 1) - value
    carry = gamma * gae_lambda * (ended == 0)
    advantage = torch.empty_like(delta)
    last = torch.zeros_like(delta[0])
    for t in range(len(delta) - 1, -1, -1):
        last = torch.addcmul(delta[t], carry[t], last)
        advantage[t] = last
    return advantage
