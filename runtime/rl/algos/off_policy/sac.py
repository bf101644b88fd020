"""Soft actor-critic with a learned temperature, for continuous actions.

Haarnoja et al. 2018b (arXiv:1812.05905); `runtime.rl.algos.off_policy.soft_actor_critic` has the loop.
"""

from __future__ import annotations

import torch
from torch import Tensor

from runtime.rl.algos.networks import Actor
from runtime.rl.algos.off_policy.critics import TwinCritic
from runtime.rl.algos.off_policy.soft_actor_critic import SoftActorCritic


class SAC(SoftActorCritic[Actor, TwinCritic]):
    """Soft actor-critic with a squashed Gaussian."""

    def _make_actor(self, generator: torch.Generator, device: str, dtype: torch.dtype) -> Actor:
        return Actor(self.shape, generator, device, dtype=dtype)

    def _make_critic(self, generator: torch.Generator, device: str, dtype: torch.dtype) -> TwinCritic:
        return TwinCritic(self.shape, generator, device, dtype)

    def _default_entropy(self) -> float:
        # Table 1: minus the dimensions of the action.
        return -float(self.shape.act_dim)

    def _q(self, features: Tensor, action: Tensor) -> Tensor:
        return self.critic(features, action)

    def _next_value(self, features: Tensor, target_features: Tensor, alpha: Tensor) -> Tensor:
        """Return (B,) min Q'(s', a') - alpha log pi(a' | s'), with a' ~ pi(s')."""
        next_action, next_log_prob = self.actor.sample(features, self._draw_noise(features))
        next_q = self.target(target_features, next_action).amin(dim=0)
        return torch.addcmul(next_q, alpha, next_log_prob, value=-1.0)

    def _actor_loss(self, features: Tensor, critic_features: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Equation 9, reparameterised: the gradient flows through the action."""
        action, log_prob = self.actor.sample(features, self._draw_noise(features))
        # `min`, not `amin`: its gradient goes to one of both critics and needs two kernels instead of five.
        actor_loss = (alpha * log_prob - self.critic(critic_features, action).min(dim=0).values).mean()
        return actor_loss, -log_prob.detach().mean()

    def _draw_noise(self, features: Tensor) -> Tensor:
        """Return (B, act_dim) standard normal noise, from the generator that is stored in checkpoints."""
        return torch.randn((len(features), self.shape.act_dim), generator=self._noise, device=features.device)
