"""Twin delayed deep deterministic policy gradient (TD3).

Fujimoto et al., *Addressing Function Approximation Error in Actor-Critic Methods* (2018, arXiv:1802.09477),
algorithm 1: two critics and the smaller of their targets (section 4.2), a policy and targets that follow later
(5.2), and noise on the target's action (5.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from runtime.base.methods import TD3Config
from runtime.rl.algos.actor import ActorShape, linear_schedule
from runtime.rl.algos.algorithm import HasKernels, Stats
from runtime.rl.algos.networks import Network, fill_biases
from runtime.rl.algos.off_policy.critics import (
    LearnFunction,
    ReplayMethod,
    TwinCritic,
    bellman_target,
    errors_of,
    share_kernels,
    weighted_mean,
)
from runtime.rl.algos.optimisers import Adam
from runtime.rl.buffers.replay import Batch
from runtime.rl.device.accelerator import DTYPES


@dataclass(frozen=True, slots=True)
class TD3Stats(Stats):
    """Statistics of one update; 0-d tensors."""

    critic_loss: Tensor
    actor_loss: Tensor
    """Loss of the latest policy update."""
    mean_q: Tensor


class TD3(ReplayMethod):
    """Twin delayed deterministic policy gradient: batches in, weights out. With images, kernels are as in SAC."""

    config: TD3Config

    def __init__(
        self,
        shape: ActorShape,
        config: TD3Config,
        seed: int,
        device: str = "cpu",
        *,
        precision: str = "float32",
        capture: bool | None = None,
    ) -> None:
        super().__init__(shape, config, device, capture)
        initial, dtype = torch.Generator().manual_seed(seed), DTYPES[precision]
        self._noise = torch.Generator(device).manual_seed(seed + 1)
        self.actor, self.target_actor = (Network(shape, initial, device, dtype=dtype) for _ in range(2))
        self.critic, self.target = (TwinCritic(shape, initial, device, dtype) for _ in range(2))
        # Drawn after all weights, which therefore do not change for a seed. With biases of 0, policies repeatedly
        # regressed.
        for network in (self.actor, self.critic):
            first = len(network.kernels)
            fill_biases(network.arena.weights[first : first + 2 * len(network.layers)], initial)
        share_kernels(self.critic, self.actor)
        self._explore()
        self.target_actor.arena.flat.copy_(self.actor.arena.flat)
        self.target.arena.flat.copy_(self.critic.arena.flat)
        self._actor_loss = torch.zeros((), device=device)
        self._optimisers = {
            "actor": Adam(self.actor.arena.flat, config.actor_lr, eps=config.adam_eps),
            "critic": Adam(self.critic.arena.flat, config.critic_lr, eps=config.adam_eps),
        }
        self._step = self.captured(self._learn)
        self._step_both = self.captured(self._learn_both)

    def update(self, batch: Batch) -> TD3Stats:
        """Do one gradient step for the critics, and every ``policy_delay`` one for the policy and all targets."""
        self.begin_updates()
        step = self._step_both if self._is_due(self.updates) else self._step
        return self.end_updates(1, *step(*batch.parts))

    def learn_function(self, updates: int) -> LearnFunction:
        """Return the update: of the critics only, or also of the policy and the targets."""
        return self._learn_both if self._is_due(updates) else self._learn

    def _is_due(self, updates: int) -> bool:
        """Return true if the update after ``updates`` earlier ones includes the policy."""
        return (updates + 1) % self.config.policy_delay == 0

    def end_updates(self, count: int, stats: Tensor, td_error: Tensor) -> TD3Stats:
        """Count updates, and set the exploration noise of workers."""
        self.td_error = td_error
        self.updates += count
        self._explore()
        return TD3Stats.of(stats)

    def _learn_both(self, *columns: Tensor) -> tuple[Tensor, Tensor]:
        """Do one gradient step of the critics, then one of the policy up the first critic; see `_learn`."""
        stats, td_error = self._learn(*columns)
        self._actor_loss.copy_(self.learn_actor(Batch(*columns).obs))
        return torch.stack([stats[0], self._actor_loss, stats[2]]), td_error

    def _learn(self, *columns: Tensor) -> tuple[Tensor, Tensor]:
        """Do one gradient step of both critics on a `Batch`; return the statistics as a vector, and TD errors."""
        batch = Batch(*columns)
        for network in (self.critic, self.target, self.target_actor):
            network.arena.refresh()
        y = bellman_target(batch, self.next_value(batch.next_obs), self.config.gamma)
        q = self.critic(self.critic.features(batch.obs), batch.action)
        loss = weighted_mean(mse_loss(q, y.expand_as(q), reduction="none"), batch.weight)
        self._optimisers["critic"].step(self.mean(self.critic.arena.gradient(loss)))
        share_kernels(self.critic, self.actor)
        self._count_moments(batch.obs, self.actor, self.target_actor, self.critic, self.target)
        return torch.stack([loss.detach(), self._actor_loss, q.detach().mean()]), errors_of(q, y, batch)

    @torch.no_grad()
    def next_value(self, next_obs: Tensor) -> Tensor:
        """Return (B,) min Q'(s', a') with the target policy's action and clipped noise, equations (10) and (14)."""
        config, features = self.config, self.target.features(next_obs)
        action = self.target_actor.head(features).tanh()
        noise = torch.randn(action.shape, generator=self._noise, device=action.device)
        noise = (config.target_noise * noise).clamp_(-config.target_noise_clip, config.target_noise_clip)
        return self.target(features, (action + noise).clamp_(-1.0, 1.0)).amin(dim=0)

    def learn_actor(self, obs: Tensor) -> Tensor:
        """Do one step of the policy up the first critic, and of all targets towards their networks; return the
        loss.
        """
        self.critic.arena.refresh()
        self.actor.arena.refresh()
        with torch.no_grad():
            features = self.critic.features(obs)
        loss = -self.critic(features, self.actor.head(features).tanh())[0].mean()
        self._optimisers["actor"].step(self.mean(self.actor.arena.gradient(loss)))
        self.target.arena.flat.lerp_(self.critic.arena.flat, self.config.tau)
        self.target_actor.arena.flat.lerp_(self.actor.arena.flat, self.config.tau)
        return loss.detach()

    def _explore(self) -> None:
        """Set the exploration noise of workers, which decreases to its end value if given, and is sent with the
        weights.
        """
        config = self.config
        end = config.exploration_noise if config.exploration_end is None else config.exploration_end
        deviation = linear_schedule(config.exploration_noise, end, self.updates, config.exploration_updates or 1)
        self.actor.drawing.detach().fill_(deviation)

    def networks(self) -> Sequence[HasKernels]:
        """Return policy and critics, and the targets of both."""
        return (self.actor, self.target_actor, self.critic, self.target)

    def policy_weights(self) -> Tensor:
        """Return the policy's parameters, and the standard deviation of its workers' noise."""
        return self.actor.arena.flat

    def begin_with(self, weights: Tensor) -> None:
        """Start with another run's policy, also as target; the noise comes from these settings."""
        super().begin_with(weights)
        self._explore()
        self.target_actor.arena.flat.copy_(self.actor.arena.flat)

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor that an update changes."""
        return {
            "actor": self.actor.arena.flat,
            "target_actor": self.target_actor.arena.flat,
            "critic": self.critic.arena.flat,
            "target_critic": self.target.arena.flat,
            "actor_loss": self._actor_loss,
            **self._shared_tensors(),
        }

    def generators(self) -> dict[str, torch.Generator]:
        """Return the generator of the target's noise."""
        return {"noise_generator": self._noise}
