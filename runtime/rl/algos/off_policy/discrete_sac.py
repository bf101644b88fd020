"""Soft actor-critic for a single discrete choice.

Christodoulou, *Soft Actor-Critic for Discrete Action Settings* (2019, arXiv:1910.07207), section 3. The policy
returns a probability and the critics a value for every choice. Expectations over actions are therefore sums, and no
action is sampled; `runtime.rl.algos.off_policy.soft_actor_critic` has the rest.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from runtime.rl.algos.networks import Network
from runtime.rl.algos.off_policy.critics import ChoiceCritic
from runtime.rl.algos.off_policy.soft_actor_critic import SoftActorCritic

TARGET_ENTROPY_SHARE: Final = 0.98
"""Share of the maximum entropy, the logarithm of the number of choices: the paper's target."""


class DiscreteSAC(SoftActorCritic[Network, ChoiceCritic]):
    """Soft actor-critic with a probability for each choice."""

    def _make_actor(self, generator: torch.Generator, device: str, dtype: torch.dtype) -> Network:
        return Network(self.shape, generator, device, dtype=dtype)

    def _make_critic(self, generator: torch.Generator, device: str, dtype: torch.dtype) -> ChoiceCritic:
        return ChoiceCritic(self.shape, generator, device, dtype)

    def _default_entropy(self) -> float:
        return TARGET_ENTROPY_SHARE * math.log(self.shape.choices[0])

    def _q(self, features: Tensor, action: Tensor) -> Tensor:
        return self.critic(features).gather(2, action.long().expand(2, -1, -1)).squeeze(2)

    def _next_value(self, features: Tensor, target_features: Tensor, alpha: Tensor) -> Tensor:
        """(B,) pi(s')^T [min Q'(s') - alpha log pi(s')], equation (10)."""
        log_prob = self.actor.head(features).log_softmax(dim=1)
        next_q = self.target(target_features).amin(dim=0)
        return (log_prob.exp() * (next_q - alpha * log_prob)).sum(dim=1)

    def _actor_loss(self, features: Tensor, critic_features: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Mean of pi(s)^T [alpha log pi(s) - min Q(s)], equation (12)."""
        log_prob = self.actor.head(features).log_softmax(dim=1)
        prob = log_prob.exp()
        q = self.critic(critic_features).detach().amin(dim=0)
        actor_loss = (prob * (alpha * log_prob - q)).sum(dim=1).mean()
        return actor_loss, -(prob * log_prob).detach().sum(dim=1).mean()
