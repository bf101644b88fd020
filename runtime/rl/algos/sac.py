"""Soft actor-critic with a learned temperature.

Haarnoja et al., *Soft Actor-Critic Algorithms and Applications* (2018b, arXiv:1812.05905), algorithm 1, with the
equations in the order of the paper: the target of the critics (5), the critics (6), the actor (9), the
temperature (18), the target critics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from runtime.algos import configs
from runtime.algos.actor import ActorShape
from runtime.algos.configs import SACConfig
from runtime.algos.method import Method, optimiser_tensors
from runtime.algos.networks import Actor, Adam, TwinCritic
from runtime.replay import Batch


@dataclass(frozen=True, slots=True)
class SACStats:
    """Of one update; 0-d tensors, so that reading them is the caller's choice (on a GPU it waits)."""

    critic_loss: Tensor
    actor_loss: Tensor
    alpha: Tensor
    entropy: Tensor
    """Estimate from the batch, nats."""
    mean_q: Tensor

    def floats(self) -> dict[str, float]:
        """By name, as numbers."""
        return {name: float(getattr(self, name)) for name in self.__slots__}


class SAC(Method):
    """The learner's half of soft actor-critic: batches in, weights out.

    With images, the critics' loss alone teaches the kernels, and the actor looks through the same ones
    (Kostrikov et al. 2020: the actor's loss spoils them).
    """

    def __init__(self, shape: ActorShape, config: SACConfig, seed: int, device: str = "cpu") -> None:
        super().__init__(shape)
        self.config = config
        initial = torch.Generator().manual_seed(seed)
        self._noise = torch.Generator(device).manual_seed(seed + 1)
        self._actor = Actor(self.shape, initial, device)
        self._critic = TwinCritic(shape, initial, device)
        self._target = TwinCritic(shape, initial, device)
        self._target.arena.flat.copy_(self._critic.arena.flat)
        self._kernel_size = sum(each.numel() for each in self._critic.kernels)
        self._share_kernels()
        self._log_alpha = torch.tensor([config.init_alpha], device=device).log_()
        self._target_entropy = -float(shape.act_dim) if config.target_entropy is None else config.target_entropy
        self.misjudged = torch.zeros(0, device=device)
        """(B,) how far the worse critic was off on the latest batch."""
        self._optimisers = {
            "actor": Adam(self._actor.arena.flat, config.actor_lr),
            "critic": Adam(self._critic.arena.flat, config.critic_lr),
            "log_alpha": Adam(self._log_alpha, config.alpha_lr),
        }

    def update(self, batch: Batch) -> SACStats:
        """One gradient step for critics, actor and temperature, then one step of the target critics."""
        alpha = self._log_alpha.exp()

        y = self._bellman_target(batch, alpha)

        q = self._critic(self._critic.features(batch.obs), batch.action)
        error = q - y
        squares = 0.5 * error.square()
        critic_loss = (squares if batch.weight is None else squares * batch.weight).mean(dim=1).sum()
        self._optimisers["critic"].step(self.mean(self._critic.arena.gradient(critic_loss)))
        self._share_kernels()

        with torch.no_grad():
            seen = self._critic.features(batch.obs)
        action, log_prob = self._actor.sample(seen, self._draw_noise(batch.obs))
        actor_loss = (alpha * log_prob - self._critic(seen, action).amin(dim=0)).mean()
        self._optimisers["actor"].step(self.mean(self._actor.arena.gradient(actor_loss)))

        # The slope of alpha * (entropy - target entropy) in log(alpha), with the factor alpha left out: it only
        # scales, and Adam takes scales out.
        entropy = self.mean(-log_prob.detach().mean())
        self._optimisers["log_alpha"].step((entropy - self._target_entropy).view(1))

        self._target.arena.flat.lerp_(self._critic.arena.flat, self.config.tau)
        self.updates += 1
        self.misjudged = error.detach().abs().amax(dim=0)
        return SACStats(critic_loss.detach(), actor_loss.detach(), alpha[0], entropy, q.detach().mean())

    def _share_kernels(self) -> None:
        """Let the actor look through the critics' kernels."""
        size = self._kernel_size
        if size:
            self._actor.arena.flat[:size].copy_(self._critic.arena.flat[:size])

    @torch.no_grad()
    def _bellman_target(self, batch: Batch, alpha: Tensor) -> Tensor:
        """(B,) r + gamma^n (1 - terminated) (min Q'(s', a') - alpha log pi(a' | s')), with a' drawn in s'.

        s' is the observation n steps on and r the discounted rewards until there; n is 1 where the batch does not
        say. The present observation is not looked at.
        """
        gamma = self.config.gamma if batch.steps is None else self.config.gamma**batch.steps
        seen = self._critic.features(batch.next_obs)
        next_action, next_log_prob = self._actor.sample(seen, self._draw_noise(batch.next_obs))
        next_q = self._target(self._target.features(batch.next_obs), next_action).amin(dim=0)
        return batch.reward + gamma * (1.0 - batch.terminated) * (next_q - alpha * next_log_prob)

    def _draw_noise(self, obs: Tensor) -> Tensor:
        """(B, act_dim) standard normal, from the generator that a checkpoint keeps."""
        return torch.randn((len(obs), self.shape.act_dim), generator=self._noise, device=obs.device)

    def policy_weights(self) -> Tensor:
        """Return the actor's parameters."""
        return self._actor.arena.flat

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor that an update changes."""
        return {
            "actor": self._actor.arena.flat,
            "critic": self._critic.arena.flat,
            "target_critic": self._target.arena.flat,
            "log_alpha": self._log_alpha,
            **optimiser_tensors(self._optimisers),
        }

    def generators(self) -> dict[str, torch.Generator]:
        """Return the generator of the noise."""
        return {"noise_generator": self._noise}


def sac_config(settings: Mapping[str, Any]) -> SACConfig:
    """Make a SACConfig of the settings in a spec; ValueError names a wrong one and what it may be."""
    return configs.read(SACConfig, "SAC", settings)
