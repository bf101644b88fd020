"""Soft actor-critic for continuous and for discrete actions: one update, with hooks that each form implements.

Haarnoja et al., *Soft Actor-Critic Algorithms and Applications* (2018b, arXiv:1812.05905), algorithm 1, with the
equations in the order of the paper: the target of the critics (5), the critics (6), the actor (9), the temperature
(18), the target critics.

A single discrete choice follows Christodoulou, *Soft Actor-Critic for Discrete Action Settings* (2019,
arXiv:1910.07207), section 3: the policy returns a probability and the critics a value for every choice.
Expectations over actions are therefore sums, and no action is sampled.

Images are augmented as in Kostrikov et al. 2020, *Image Augmentation Is All You Need* (DrQ, arXiv:2004.13649), and
Yarats et al. 2021, *Mastering Visual Continuous Control* (DrQ-v2, arXiv:2107.09645), section 3.1: each image of a
batch is shifted by a random number of pixels, so that a critic cannot memorise single pixels. One draw for an
observation and one for the next, which is K = M = 1 in the first paper and the choice of the second.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from runtime.base.methods import SACConfig
from runtime.rl.algos.actor import ActorShape, linear_schedule
from runtime.rl.algos.algorithm import HasKernels, Stats
from runtime.rl.algos.networks import Actor, Network
from runtime.rl.algos.off_policy.critics import (
    ChoiceCritic,
    ReplayMethod,
    TwinCritic,
    TwinNetwork,
    bellman_target,
    errors_of,
    share_kernels,
    weighted_mean,
)
from runtime.rl.algos.optimisers import Adam
from runtime.rl.buffers.replay import Batch
from runtime.rl.device.accelerator import DTYPES


@dataclass(frozen=True, slots=True)
class SACStats(Stats):
    """Statistics of one update."""

    critic_loss: Tensor
    actor_loss: Tensor
    alpha: Tensor
    entropy: Tensor
    """Estimate from the batch, in nats."""
    mean_q: Tensor


ActorT = TypeVar("ActorT", bound=Network)
CriticT = TypeVar("CriticT", bound=TwinNetwork)


class SoftActorCritic(ReplayMethod, Generic[ActorT, CriticT]):
    """The learner's half of soft actor-critic: batches in, weights out.

    With images, only the critics' loss trains the kernels, and the actor shares them (Kostrikov et al. 2020: the
    actor's loss spoils them).
    """

    config: SACConfig

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
        super().__init__(shape, config, device, capture)
        dtype = DTYPES[precision]
        initial = torch.Generator().manual_seed(seed)
        # A second generator, so that initial weights and exploration noise can be reproduced separately.
        self._noise = torch.Generator(device).manual_seed(seed + 1)
        self.actor = self._make_actor(initial, device, dtype)
        self.critic = self._make_critic(initial, device, dtype)
        self.target = self._make_critic(initial, device, dtype)
        self.target.arena.flat.copy_(self.critic.arena.flat)
        share_kernels(self.critic, self.actor)
        self._step = self.captured(self._learn)
        self._log_alpha = torch.tensor([config.init_alpha], device=device).log_()
        own, usual = config.target_entropy, self._default_entropy()
        self.target_entropy = usual if own is None else own
        self._optimisers = {
            "actor": Adam(self.actor.arena.flat, config.actor_lr, eps=config.adam_eps),
            "critic": Adam(self.critic.arena.flat, config.critic_lr, eps=config.adam_eps),
            "log_alpha": Adam(self._log_alpha, config.alpha_lr, eps=config.adam_eps),
        }

    @property
    def anneals(self) -> bool:
        """True if step sizes or the temperature follow a schedule: the host then acts before each update."""
        return super().anneals or self.config.alpha_end is not None

    def begin_updates(self) -> None:
        """Lower step sizes and temperature by their schedules."""
        super().begin_updates()
        if self.config.alpha_end is not None:
            bounds = math.log(self.config.init_alpha), math.log(self.config.alpha_end)
            self._log_alpha.fill_(linear_schedule(*bounds, self.updates, self.config.alpha_updates or 1))

    def ends_launch(self, updates: int) -> bool:
        """Return true for an update after which the target critics follow, if they do not follow each update."""
        return self.config.target_updates > 1 and (updates + 1) % self.config.target_updates == 0

    def end_updates(self, count: int, stats: Tensor, td_error: Tensor) -> SACStats:
        """Count updates, and step the target critics if they do not follow each update."""
        self.td_error = td_error
        self.updates += count
        if self.config.target_updates > 1 and self.updates % self.config.target_updates == 0:
            self._follow()
        return SACStats.of(stats)

    def _follow(self) -> None:
        """Polyak averaging of all parameters, kernels included, in one call over the arena."""
        self.target.arena.flat.lerp_(self.critic.arena.flat, self.config.tau)

    def _learn(self, *columns: Tensor) -> tuple[Tensor, Tensor]:
        """Update on the columns of a `Batch`; return the statistics as a vector, and TD errors."""
        drawn = self._augmented(Batch(*columns))
        batch = self._learned(drawn)
        for network in (self.actor, self.critic, self.target):
            network.arena.refresh()
        alpha = self._log_alpha.exp()

        # Equation 5: the target of the critics. It only depends on the target networks, so no gradient flows
        # through it.
        y = self.soft_bellman_target(drawn, batch, alpha)

        # Equation 6. Both critics learn from the same target; the sum of their losses has separate gradients, and
        # the sum of two halves of mean squares is the mean of all squares.
        features = self._features(drawn)
        q = self._q(features, batch.action)
        critic_loss = weighted_mean(mse_loss(q, y.expand_as(q), reduction="none"), batch.weight)
        self._optimisers["critic"].step(self.mean(self.critic.arena.gradient(critic_loss)))
        share_kernels(self.critic, self.actor)
        self.critic.arena.refresh()

        # Equation 9: the gradient flows into the policy, not into the critics, which are already updated.
        actor_loss, entropy = self.policy_loss(*self._policy_features(drawn, features.detach()), alpha)
        self._optimisers["actor"].step(self.mean(self.actor.arena.gradient(actor_loss)))

        # Gradient of alpha * (entropy - target entropy) with respect to log(alpha), without the factor alpha: Adam
        # divides by the size of the gradient, so a scale has no effect.
        entropy = self.mean(entropy)
        self._optimisers["log_alpha"].step((entropy - self.target_entropy).view(1))

        self._count_moments(batch.obs, self.actor, self.critic, self.target)
        if self.config.target_updates == 1:
            self._follow()
        stats = (critic_loss.detach(), actor_loss.detach(), alpha[0], entropy, q.detach().mean())
        return torch.stack(stats), errors_of(q, y, batch)

    def _augmented(self, batch: Batch) -> Batch:
        """Shift the images of a batch; current and next observations are shifted independently."""
        if not (pixels := self.config.random_shift):
            return batch
        obs, next_obs = (
            random_shift(self.shape, rows, pixels, self._noise) for rows in (batch.obs, batch.next_obs)
        )
        return replace(batch, obs=obs, next_obs=next_obs)

    @torch.no_grad()
    def soft_bellman_target(self, drawn: Batch, batch: Batch, alpha: Tensor) -> Tensor:
        """Return (B,) targets of the critics for the learned ``batch``, including the target critics' next soft
        value.
        """
        if not self.config.entropy_in_target:
            alpha = torch.zeros_like(alpha)
        next_value = self._next_value(*self._next_features(drawn, batch), alpha)
        return bellman_target(batch, next_value, self.config.gamma)

    def _learned(self, batch: Batch) -> Batch:
        """Return the rows of a batch that losses use: all, if no earlier steps warm up a memory."""
        return batch

    def _features(self, batch: Batch) -> Tensor:
        """Return the (B, features) that the critics read, with a gradient for their encoder."""
        return self.critic.features(batch.obs)

    def _next_features(self, drawn: Batch, batch: Batch) -> tuple[Tensor, Tensor]:  # noqa: ARG002  (for a memory)
        """Return the next (B, features) of the learned ``batch`` for policy and target critics, without
        gradients.
        """
        return self.critic.features(batch.next_obs), self.target.features(batch.next_obs)

    def _policy_features(self, batch: Batch, features: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return (B, features) for the policy and for the critics, for the policy's loss.

        They are reused from the critics' step, as in DrQ-v2 (Yarats et al. 2021, arXiv:2107.09645): only the
        critics train the shared encoder, which saves one of six passes of its convolutions.
        """
        return features, features

    @abstractmethod
    def _make_actor(self, generator: torch.Generator, device: str, dtype: torch.dtype) -> ActorT:
        """Return the policy network."""

    @abstractmethod
    def _make_critic(self, generator: torch.Generator, device: str, dtype: torch.dtype) -> CriticT:
        """Return a pair of critics."""

    @abstractmethod
    def _default_entropy(self) -> float:
        """Return the default target entropy, in nats."""

    @abstractmethod
    def _q(self, features: Tensor, action: Tensor) -> Tensor:
        """Return (2, B) values of a batch's actions, with a gradient for the critics."""

    @abstractmethod
    def _next_value(self, features: Tensor, target_features: Tensor, alpha: Tensor) -> Tensor:
        """Return (B,) next soft values by the target critics; see `_next_features`, called without gradients."""

    @abstractmethod
    def policy_loss(self, features: Tensor, critic_features: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of the policy, and its mean entropy without a gradient; see `_policy_features`."""

    def networks(self) -> Sequence[HasKernels]:
        """Return policy, critics and target critics."""
        return (self.actor, self.critic, self.target)

    def policy_weights(self) -> Tensor:
        """Return the actor's parameters."""
        return self.actor.arena.flat

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor that an update changes."""
        return {
            "actor": self.actor.arena.flat,
            "critic": self.critic.arena.flat,
            "target_critic": self.target.arena.flat,
            "log_alpha": self._log_alpha,
            **self._shared_tensors(),
        }

    def generators(self) -> dict[str, torch.Generator]:
        """Return the generator of the noise."""
        return {"noise_generator": self._noise}


def random_shift(shape: ActorShape, rows: Tensor, pixels: int, generator: torch.Generator) -> Tensor:
    """Shift the images of observations (B, obs_dim) by up to ``pixels`` in both directions.

    Each image is shifted independently. New pixels repeat the border. The numbers next to the images stay.
    """
    if not shape.images or not pixels:
        return rows
    parts = [rows[:, : 4 * shape.obs_space.vector]]
    at = 4 * shape.obs_space.vector
    for image in shape.images:
        size = math.prod(image)
        pictures = rows[:, at : at + size].view(len(rows), *image)
        parts.append(shifted(pictures, _offsets(rows, pixels, generator)).flatten(1))
        at += size
    return torch.cat(parts, dim=1)


def shifted(pictures: Tensor, offsets: Tensor) -> Tensor:
    """Return images (B, height, width, channels) that begin at ``offsets`` (B, 2), pixels down and across."""
    count, height, width = pictures.shape[:3]
    device = pictures.device
    # A clamped index pads with the border, without a padded copy.
    down = (torch.arange(height, device=device) + offsets[:, :1]).clamp(0, height - 1)
    across = (torch.arange(width, device=device) + offsets[:, 1:]).clamp(0, width - 1)
    number = torch.arange(count, device=device)[:, None, None]
    return pictures[number, down[:, :, None], across[:, None, :]]


def _offsets(rows: Tensor, pixels: int, generator: torch.Generator) -> Tensor:
    """Return (B, 2) integers within +-``pixels``."""
    return torch.randint(-pixels, pixels + 1, (len(rows), 2), generator=generator, device=rows.device)


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

    def policy_loss(self, features: Tensor, critic_features: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Mean of pi(s)^T [alpha log pi(s) - min Q(s)], equation (12)."""
        log_prob = self.actor.head(features).log_softmax(dim=1)
        prob = log_prob.exp()
        q = self.critic(critic_features).detach().amin(dim=0)
        actor_loss = (prob * (alpha * log_prob - q)).sum(dim=1).mean()
        return actor_loss, -(prob * log_prob).detach().sum(dim=1).mean()


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

    def policy_loss(self, features: Tensor, critic_features: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Equation 9, reparameterised: the gradient flows through the action."""
        action, log_prob = self.actor.sample(features, self._draw_noise(features))
        # `min`, not `amin`: its gradient goes to one of both critics and needs two kernels instead of five.
        actor_loss = (alpha * log_prob - self.critic(critic_features, action).min(dim=0).values).mean()
        return actor_loss, -log_prob.detach().mean()

    def _draw_noise(self, features: Tensor) -> Tensor:
        """Return (B, act_dim) standard normal noise, from the generator that is stored in checkpoints."""
        return torch.randn((len(features), self.shape.act_dim), generator=self._noise, device=features.device)
