"""Soft actor-critic with a learned temperature.

Haarnoja et al., *Soft Actor-Critic Algorithms and Applications* (2018b, arXiv:1812.05905), algorithm 1, with the
equations in the order of the paper: the target of the critics (5), the critics (6), the actor (9), the
temperature (18), the target critics.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from runtime.rl.algos.actor import ActorShape
from runtime.rl.algos.algorithm import Algorithm, Stats, optimiser_tensors
from runtime.rl.algos.configs import SACConfig
from runtime.rl.algos.networks import Actor, TwinCritic
from runtime.rl.algos.optimisers import Adam
from runtime.rl.buffers.replay import Batch
from runtime.rl.device.precision import DTYPES


@dataclass(frozen=True, slots=True)
class SACStats(Stats):
    """Of one update."""

    critic_loss: Tensor
    actor_loss: Tensor
    alpha: Tensor
    entropy: Tensor
    """Estimate from the batch, nats."""
    mean_q: Tensor


class SAC(Algorithm):
    """The learner's half of soft actor-critic: batches in, weights out.

    With images, the critics' loss alone teaches the kernels, and the actor looks through the same ones
    (Kostrikov et al. 2020: the actor's loss spoils them).
    """

    def __init__(
        self,
        shape: ActorShape,
        config: SACConfig,
        seed: int,
        device: str = "cpu",
        *,
        precision: str = "float32",
        capture: bool | None = None,
    ) -> None:
        super().__init__(shape, capture)
        self.config = config
        dtype = DTYPES[precision]
        initial = torch.Generator().manual_seed(seed)
        # A second generator, so that initial weights and exploration noise can be reproduced apart.
        self._noise = torch.Generator(device).manual_seed(seed + 1)
        self._actor = Actor(self.shape, initial, device, dtype=dtype)
        self._critic = TwinCritic(shape, initial, device, dtype)
        self._target = TwinCritic(shape, initial, device, dtype)
        self._target.arena.flat.copy_(self._critic.arena.flat)
        self._kernel_size = sum(kernel.numel() for kernel in self._critic.kernels)
        self._share_kernels()
        self._step = self.captured(self._learn)
        self._log_alpha = torch.tensor([config.init_alpha], device=device).log_()
        # Haarnoja et al. 2018b, table 1: minus the dimensions of the action.
        self._target_entropy = -float(shape.act_dim) if config.target_entropy is None else config.target_entropy
        self.td_error = torch.zeros(0, device=device)
        """(B,) absolute TD error of the latest batch, the larger of both critics'; empty if it had no weights. The
        next update may overwrite it."""
        self._optimisers = {
            "actor": Adam(self._actor.arena.flat, config.actor_lr),
            "critic": Adam(self._critic.arena.flat, config.critic_lr),
            "log_alpha": Adam(self._log_alpha, config.alpha_lr),
        }

    def update(self, batch: Batch) -> SACStats:
        """One gradient step for critics, actor and temperature, then one step of the target critics."""
        columns = (batch.obs, batch.action, batch.reward, batch.next_obs, batch.terminated)
        stats, self.td_error = self._step(*columns, batch.steps, batch.weight)
        self.updates += 1
        return SACStats.of(stats)

    def _learn(self, *columns: Tensor) -> tuple[Tensor, Tensor]:
        """Update on the columns of a `Batch`; return the statistics as a vector, and TD errors."""
        batch = Batch(*columns)
        for network in (self._actor, self._critic, self._target):
            network.arena.refresh()
        alpha = self._log_alpha.exp()

        # Equation 5: the target of the critics. It depends on the target networks alone, so no gradient flows
        # through it.
        y = self._bellman_target(batch, alpha)

        # Equation 6. Both critics learn from the same target; the sum of their losses has separate gradients, and
        # the sum of two halves of mean squares is the mean of all squares.
        q = self._critic(self._critic.features(batch.obs), batch.action)
        reduction = "mean" if batch.weight is None else "none"
        critic_loss = mse_loss(q, y.expand_as(q), reduction=reduction)
        if batch.weight is not None:
            critic_loss = (critic_loss * batch.weight).mean()
        self._optimisers["critic"].step(self.mean(self._critic.arena.gradient(critic_loss)))
        self._share_kernels()
        self._critic.arena.refresh()

        with torch.no_grad():
            features = self._critic.features(batch.obs)  # of the critics as they are after their step
        # Equation 9, reparameterised: the gradient flows through the action into the policy, and not into the
        # encoder.
        action, log_prob = self._actor.sample(features, self._draw_noise(batch.obs))
        # `min` and not `amin`: its gradient goes to one of both critics and needs two kernels instead of five.
        actor_loss = (alpha * log_prob - self._critic(features, action).min(dim=0).values).mean()
        self._optimisers["actor"].step(self.mean(self._actor.arena.gradient(actor_loss)))

        # Gradient of alpha * (entropy - target entropy) with respect to log(alpha), without the factor alpha: Adam
        # divides by the size of the gradient, so a scale changes nothing.
        entropy = self.mean(-log_prob.detach().mean())
        self._optimisers["log_alpha"].step((entropy - self._target_entropy).view(1))

        # Polyak averaging of all parameters, kernels included, in one call over the arena.
        self._target.arena.flat.lerp_(self._critic.arena.flat, self.config.tau)
        stats = (critic_loss.detach(), actor_loss.detach(), alpha[0], entropy, q.detach().mean())
        return torch.stack(stats), self._td_error(q.detach(), y, batch)

    @staticmethod
    def _td_error(q: Tensor, y: Tensor, batch: Batch) -> Tensor:
        """(B,) errors that priorities are set from; (0,) for a batch that was drawn evenly."""
        return y.new_empty(0) if batch.weight is None else (q - y).abs().amax(dim=0)

    def _share_kernels(self) -> None:
        """Copy the critics' convolutions to the actor."""
        size = self._kernel_size
        if size:
            self._actor.arena.flat[:size].copy_(self._critic.arena.flat[:size])

    @torch.no_grad()
    def _bellman_target(self, batch: Batch, alpha: Tensor) -> Tensor:
        """(B,) r + gamma^n (1 - terminated) (min Q'(s', a') - alpha log pi(a' | s')), with a' ~ pi(s').

        s' is the observation n steps later and r the sum of the n discounted rewards; n is 1 where the batch has no
        ``steps``.
        """
        features = self._critic.features(batch.next_obs)
        next_action, next_log_prob = self._actor.sample(features, self._draw_noise(batch.next_obs))
        next_q = self._target(self._target.features(batch.next_obs), next_action).amin(dim=0)
        value = torch.addcmul(next_q, alpha, next_log_prob, value=-1.0)
        goes_on = 1.0 - batch.terminated
        if batch.steps is None:
            return torch.addcmul(batch.reward, goes_on, value, value=self.config.gamma)
        return torch.addcmul(batch.reward, goes_on * self.config.gamma**batch.steps, value)

    def _draw_noise(self, obs: Tensor) -> Tensor:
        """(B, act_dim) standard normal noise, from the generator that is stored in checkpoints."""
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
