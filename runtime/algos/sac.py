"""Soft actor-critic with a learned temperature.

Haarnoja et al., *Soft Actor-Critic Algorithms and Applications* (2018b, arXiv:1812.05905), algorithm 1, with the
equations in the order of the paper: the target of the critics (5), the critics (6), the actor (9), the
temperature (18), the target critics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runtime.algos.actor import ActorShape
from runtime.algos.networks import Actor, Adam, TwinCritic
from runtime.replay import Batch


@dataclass(frozen=True, slots=True)
class SACConfig:
    """Settings of the update. The defaults were chosen on the racing environment, see tests/bench/racing.py."""

    hidden: tuple[int, ...] = (128, 128)
    """Widths of the hidden layers of actor and critics. Wider costs time before it costs quality on a CPU."""
    batch_size: int = 256
    """Transitions in one update."""
    gamma: float = 0.98
    """Discount a step; 1 / (1 - gamma) steps is how far ahead the policy cares: 50, or 5 s of driving."""
    tau: float = 0.01
    """Share of the critics that the target critics take over in one update; the paper's 0.005 is calmer."""
    actor_lr: float = 5e-4
    """Step size of the actor (Adam). 1e-3 laps as soon, but forgets how to again and again in a long run."""
    critic_lr: float = 5e-4
    """Step size of the critics (Adam). Lower both to 3e-4 where the returns swing."""
    alpha_lr: float = 1e-3
    """Step size of the temperature's logarithm (Adam)."""
    init_alpha: float = 0.1
    """Temperature at the start; a few percent of the largest reward explores without drowning it."""
    target_entropy: float | None = None
    """Entropy that the temperature holds, nats; None means minus the number of action dimensions."""

    def __post_init__(self) -> None:
        """Refuse values that cannot learn, with a ValueError that says what they may be."""
        if not self.hidden or any(width < 1 for width in self.hidden):
            raise ValueError(f"SAC: hidden is {self.hidden}; it needs at least one layer, each at least 1 wide")
        if self.batch_size < 1:
            raise ValueError(f"SAC: batch_size is {self.batch_size}; it must be at least 1")
        for name in ("gamma", "tau"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"SAC: {name} is {getattr(self, name)}; it must be above 0 and at most 1")
        for name in ("actor_lr", "critic_lr", "alpha_lr", "init_alpha"):
            if not getattr(self, name) > 0:
                raise ValueError(f"SAC: {name} is {getattr(self, name)}; it must be above 0")


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


class SAC:
    """The learner's half of soft actor-critic: batches in, weights out."""

    def __init__(self, obs_dim: int, act_dim: int, config: SACConfig, seed: int, device: str = "cpu") -> None:
        self.config = config
        self.shape = ActorShape(obs_dim, act_dim, tuple(config.hidden))
        self.updates = 0
        initial = torch.Generator().manual_seed(seed)
        self._noise = torch.Generator(device).manual_seed(seed + 1)
        self._actor = Actor(self.shape, initial, device)
        self._critic = TwinCritic(obs_dim, act_dim, config.hidden, initial, device)
        self._target = TwinCritic(obs_dim, act_dim, config.hidden, initial, device)
        self._target.arena.flat.copy_(self._critic.arena.flat)
        self._log_alpha = torch.tensor([config.init_alpha], device=device).log_()
        self._target_entropy = -float(act_dim) if config.target_entropy is None else config.target_entropy
        self._optimisers = {
            "actor": Adam(self._actor.arena.flat, config.actor_lr),
            "critic": Adam(self._critic.arena.flat, config.critic_lr),
            "log_alpha": Adam(self._log_alpha, config.alpha_lr),
        }

    def update(self, batch: Batch) -> SACStats:
        """One gradient step for critics, actor and temperature, then one step of the target critics."""
        alpha = self._log_alpha.exp()

        y = self._bellman_target(batch.reward, batch.next_obs, batch.terminated, alpha)

        q = self._critic(batch.obs, batch.action)
        critic_loss = 0.5 * (q - y).square().mean(dim=1).sum()
        self._optimisers["critic"].step(self._critic.arena.gradient(critic_loss))

        action, log_prob = self._actor.sample(batch.obs, self._draw_noise(batch.obs))
        actor_loss = (alpha * log_prob - self._critic(batch.obs, action).amin(dim=0)).mean()
        self._optimisers["actor"].step(self._actor.arena.gradient(actor_loss))

        # The slope of alpha * (entropy - target entropy) in log(alpha), with the factor alpha left out: it only
        # scales, and Adam takes scales out.
        entropy = -log_prob.detach().mean()
        self._optimisers["log_alpha"].step((entropy - self._target_entropy).view(1))

        self._target.arena.flat.lerp_(self._critic.arena.flat, self.config.tau)
        self.updates += 1
        return SACStats(critic_loss.detach(), actor_loss.detach(), alpha[0], entropy, q.detach().mean())

    @torch.no_grad()
    def _bellman_target(self, reward: Tensor, next_obs: Tensor, terminated: Tensor, alpha: Tensor) -> Tensor:
        """(B,) r + gamma (1 - terminated) (min Q'(s', a') - alpha log pi(a' | s')), with a' drawn in s'.

        It is given the next observation and not the present one, so it cannot take its action there.
        """
        next_action, next_log_prob = self._actor.sample(next_obs, self._draw_noise(next_obs))
        next_q = self._target(next_obs, next_action).amin(dim=0)
        return reward + self.config.gamma * (1.0 - terminated) * (next_q - alpha * next_log_prob)

    def _draw_noise(self, obs: Tensor) -> Tensor:
        """(B, act_dim) standard normal, from the generator that a checkpoint keeps."""
        return torch.randn((len(obs), self.shape.act_dim), generator=self._noise, device=obs.device)

    def actor_arena(self) -> NDArray[np.float32]:
        """Copy the policy's weights out, in the layout of ``runtime.algos.actor``."""
        return self._actor.arena.flat.detach().cpu().numpy().copy()

    def _tensors(self) -> dict[str, Tensor]:
        """Every tensor that an update changes, by the name it has in a checkpoint."""
        tensors = {
            "actor": self._actor.arena.flat,
            "critic": self._critic.arena.flat,
            "target_critic": self._target.arena.flat,
            "log_alpha": self._log_alpha,
        }
        for name, optimiser in self._optimisers.items():
            tensors[f"{name}.mean"] = optimiser.mean
            tensors[f"{name}.square"] = optimiser.square
            tensors[f"{name}.steps"] = optimiser.steps
        return tensors

    def state(self) -> dict[str, Tensor]:
        """Everything that the next update depends on: copies on the CPU, contiguous, by flat names."""
        saved = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self._tensors().items()}
        saved["noise_generator"] = self._noise.get_state()
        saved["updates"] = torch.tensor(self.updates)
        return saved

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over what ``state`` gave; the updates that follow are bit for bit those of an unbroken run.

        ValueError, with nothing changed, if a tensor is missing or of another shape.
        """
        tensors = self._tensors()
        for name in (*tensors, "noise_generator", "updates"):
            if name not in state:
                raise ValueError(f"the saved state has no {name!r}; it is not one of this algorithm")
            if name in tensors and state[name].shape != tensors[name].shape:
                raise ValueError(
                    f"the saved {name} has shape {tuple(state[name].shape)} and this run needs "
                    f"{tuple(tensors[name].shape)}; resume with the same environment and hidden layers"
                )
        for name, tensor in tensors.items():
            tensor.detach().copy_(state[name])
        self._noise.set_state(state["noise_generator"])
        self.updates = int(state["updates"])


def sac_config(settings: Mapping[str, Any]) -> SACConfig:
    """Make a SACConfig of the settings in a spec; ValueError names a wrong one and what it may be."""
    known = SACConfig.__dataclass_fields__
    for name in settings:
        if name not in known:
            raise ValueError(f"SAC has no setting {name!r}; known are {', '.join(known)}")
    values = dict(settings)
    hidden = values.get("hidden", ())
    if not isinstance(hidden, list | tuple) or not all(type(width) is int for width in hidden):
        raise ValueError(f"SAC: hidden is {hidden!r}; it must be a list of whole numbers, for example [128, 128]")
    if "hidden" in values:
        values["hidden"] = tuple(hidden)
    for name, value in settings.items():
        if name == "hidden" or (name == "target_entropy" and value is None):
            continue
        if name == "batch_size" and type(value) is not int:
            raise ValueError(f"SAC: batch_size is {value!r}; it must be a whole number")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"SAC: {name} is {value!r}; it must be a number")  # noqa: TRY004  (a spec's value)
    return SACConfig(**values)
