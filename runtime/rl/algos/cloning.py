"""Behaviour cloning: supervised learning of a policy from recorded actions.

Pomerleau, *Efficient Training of Artificial Neural Networks for Autonomous Navigation* (1991). Choices: cross
entropy, -log pi(a | s). Numbers: the squared distance between the policy's most likely action and the recorded one,
which is a Gaussian likelihood with constant spread. The spread keeps its initial value, so that a policy that is
fine-tuned by reinforcement learning still explores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss

from runtime.base.methods import BCConfig
from runtime.rl.algos.actor import ActorShape
from runtime.rl.algos.algorithm import Algorithm, HasKernels, Stats, optimiser_tensors
from runtime.rl.algos.networks import Network
from runtime.rl.algos.optimisers import Adam, anneal
from runtime.rl.buffers.replay import Batch
from runtime.rl.device.accelerator import DTYPES


@dataclass(frozen=True, slots=True)
class BCStats(Stats):
    """Statistics of one update; 0-d tensors."""

    bc_loss: Tensor
    """Cross entropy, nats, or mean square."""


class BehaviourCloning(Algorithm):
    """Behaviour cloning: recorded batches in, weights out."""

    def __init__(
        self,
        shape: ActorShape,
        config: BCConfig,
        seed: int,
        device: str = "cpu",
        *,
        precision: str = "float32",
        capture: bool | None = None,
    ) -> None:
        super().__init__(shape, capture)
        self.config = config
        # As in the method that continues with it: small first actions for on-policy methods.
        gain = 0.01 if config.for_method in ("ppo", "impala") else None
        initial = torch.Generator().manual_seed(seed)
        self.policy = Network(shape, initial, device, last_gain=gain, dtype=DTYPES[precision])
        self._adam = Adam(self.policy.arena.flat, config.lr, eps=config.adam_eps)
        self._step = self.captured(self._learn)

    def update(self, batch: Batch) -> BCStats:
        """Do one gradient step towards the recorded actions."""
        anneal([self._adam], self.updates, self.config.anneal_updates)
        stats = self._step(batch.obs, batch.action)
        self.updates += 1
        return BCStats.of(stats)

    def _learn(self, obs: Tensor, action: Tensor) -> Tensor:
        self.policy.arena.refresh()
        loss = cloning_loss(self.shape, self.policy(obs), action)
        self._adam.step(self.mean(self.policy.arena.gradient(loss)))
        return loss.detach().reshape(1)

    def networks(self) -> Sequence[HasKernels]:
        """Return the policy."""
        return (self.policy,)

    def policy_weights(self) -> Tensor:
        """Return the policy's parameters."""
        return self.policy.arena.flat

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor that an update changes."""
        return {"policy": self.policy.arena.flat, **optimiser_tensors({"adam": self._adam})}


def cloning_loss(shape: ActorShape, out: Tensor, action: Tensor) -> Tensor:
    """Return the mean loss of a policy's outputs (B, outputs) for recorded actions (B, act_dim)."""
    if shape.choices:
        logits = torch.split(out, list(shape.choices), dim=1)
        losses = [cross_entropy(part, action[:, column].long()) for column, part in enumerate(logits)]
        return torch.stack(losses).sum()
    mean = out[:, : shape.act_dim]
    return mse_loss(mean if shape.head == "gaussian" else mean.tanh(), action)
