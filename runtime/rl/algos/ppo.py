"""Proximal policy optimisation with a clipped objective.

Schulman et al., *Proximal Policy Optimization Algorithms* (2017, arXiv:1707.06347), with the advantage of Schulman
et al. 2016 (arXiv:1506.02438) and three of the details that Huang et al. 2022 list (*The 37 Implementation Details
of PPO*): advantages normalised in each minibatch, orthogonal initial weights, gradients clipped by norm.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.rl.algos.actor import ActorShape
from runtime.rl.algos.actor_critic import ActorCritic, bootstrap_values
from runtime.rl.algos.algorithm import Stats
from runtime.rl.algos.configs import PPOConfig
from runtime.rl.algos.optimisers import clip_grad_norm
from runtime.rl.buffers.rollout_buffer import RolloutBatch


@dataclass(frozen=True, slots=True)
class PPOStats(Stats):
    """Means over the gradient steps of one update; 0-d tensors."""

    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    """Nats."""
    kl: Tensor
    """Estimated Kullback-Leibler divergence of the acting policy from the present one, nats."""
    clipped: Tensor
    """Share of the actions whose probability ratio is outside 1 ± ``clip``."""


class PPO(ActorCritic):
    """Proximal policy optimisation: rollouts in, weights out."""

    def __init__(self, shape: ActorShape, config: PPOConfig, seed: int, device: str = "cpu") -> None:
        super().__init__(shape, config.lr, seed, device)
        self.config = config
        self._shuffle = torch.Generator().manual_seed(seed + 1)

    def update(self, batch: RolloutBatch) -> PPOStats:
        """Learn from a batch in ``epochs`` passes over shuffled minibatches."""
        config = self.config
        self._set_learning_rate(config.lr, config.anneal_updates)

        value, next_value = bootstrap_values(self._value, batch)
        rates = config.gamma, config.gae_lambda
        advantage = generalised_advantage(batch.reward, value, next_value, batch.ended, *rates)
        target = (advantage + value).flatten()
        advantage = advantage.flatten()
        obs, action, log_prob = (column.flatten(0, 1) for column in (batch.obs, batch.action, batch.log_prob))

        sums = torch.zeros(len(PPOStats.__slots__), device=obs.device)
        steps = 0
        for _ in range(config.epochs):
            # Drawn on the CPU, where the generator of a checkpoint lives, whatever the device.
            order = torch.randperm(len(obs), generator=self._shuffle)
            for rows in torch.split(order.to(obs.device), config.minibatch_size):
                sums += self._step(obs[rows], action[rows], log_prob[rows], advantage[rows], target[rows])
                steps += 1
            # The mean over all devices decides, so that every replica stops after the same epoch.
            if config.target_kl is not None and self.mean(sums[3] / steps) > config.target_kl:
                break
        self.updates += 1
        return PPOStats(*(sums / steps))

    def _step(self, obs: Tensor, action: Tensor, log_prob_old: Tensor, advantage: Tensor, target: Tensor) -> Tensor:
        """One gradient step for policy and value on a minibatch; returns the statistics."""
        config = self.config
        # Normalised in the minibatch and not in the batch, as OpenAI baselines do.
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
        self._optimisers["policy"].step(clip_grad_norm(gradient, config.max_grad_norm))
        gradient = self.mean(self._value.arena.gradient(config.value_cost * value_loss))
        self._optimisers["value"].step(clip_grad_norm(gradient, config.max_grad_norm))

        with torch.no_grad():
            # Low-variance, never negative estimator "k3" (Schulman 2020, Approximating KL Divergence).
            kl = (ratio - 1 - log_ratio).mean()
            share = ((ratio - 1).abs() > config.clip).float().mean()
            return torch.stack([policy_loss, value_loss, mean_entropy, kl, share])

    def generators(self) -> dict[str, torch.Generator]:
        """Return the generator of the minibatches."""
        return {"shuffle_generator": self._shuffle}


def generalised_advantage(
    reward: Tensor, value: Tensor, next_value: Tensor, ended: Tensor, gamma: float, gae_lambda: float
) -> Tensor:
    """(T, N) advantages, Schulman et al. 2016, equation (16).

    ``ended`` is 0 within an episode, 1 at a termination (no value follows) and 2 at a truncation (the value of
    ``next_value`` follows). The sum is cut at both.
    """
    delta = reward + gamma * next_value * (ended != 1) - value
    # The accumulated advantage belongs to the next row, which is another episode behind either kind of end.
    carry = gamma * gae_lambda * (ended == 0)
    advantage = torch.empty_like(delta)
    last = torch.zeros_like(delta[0])
    for t in range(len(delta) - 1, -1, -1):
        last = torch.addcmul(delta[t], carry[t], last)
        advantage[t] = last
    return advantage
