"""Policy network that draws actions on a device, for a learner that collects without workers."""

from __future__ import annotations

import torch
from torch import Tensor

from runtime.rl.algos.actor import HALF_LOG_2_PI, ActorShape
from runtime.rl.algos.networks import Network, squashed_log_std


class PolicySampler:
    """Draws the same actions as ``NumpyActor``, in tensors. Nothing waits for the device, so it can be captured."""

    def __init__(self, shape: ActorShape, device: str, generator: torch.Generator) -> None:
        self.shape = shape
        self._generator = generator
        self._network = Network(shape, torch.Generator().manual_seed(0), device)

    def load(self, weights: Tensor) -> None:
        """Copy in the policy's weights, in the layout of ``ActorShape.parts``."""
        self._network.arena.flat.copy_(weights)

    def draw(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions (B, act_dim) for observations (B, obs_dim), and the log probability (density) of each,
        (B,).

        Probabilities of a squashed Gaussian are zeros: off-policy methods do not need them.
        """
        out = self._network(rows)
        if self.shape.head == "categorical":
            return self._choose(out)
        if self.shape.head == "greedy":
            return self._choose_greedily(out), torch.zeros_like(out[:, 0])
        if self.shape.head == "deterministic":
            action = out.tanh()
            noise = torch.randn(action.shape, generator=self._generator, device=action.device)
            noisy = torch.addcmul(action, self._network.drawing, noise)
            return noisy.clamp_(-1.0, 1.0), torch.zeros_like(action[:, 0])
        if self.shape.head == "gaussian":
            mean, log_std = out, self._network.drawing.expand_as(out)
        else:
            mean, scale = out.chunk(2, dim=1)
            log_std = squashed_log_std(scale)
        noise = torch.randn(mean.shape, generator=self._generator, device=mean.device)
        action = torch.addcmul(mean, log_std.exp(), noise)
        if self.shape.head == "squashed":
            return action.tanh_(), torch.zeros_like(action[:, 0])
        return action, -(0.5 * noise.square() + log_std + HALF_LOG_2_PI).sum(dim=1)

    def draw_at_random(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Uniformly random actions as ``ActionSpace.at_random`` draws them, and zeros."""
        if self.shape.choices:
            return self._choose(torch.zeros((len(rows), self.shape.outputs), device=rows.device))
        shape = (len(rows), self.shape.act_dim)
        draws = torch.rand(shape, generator=self._generator, device=rows.device)
        return 2.0 * draws - 1.0, torch.zeros_like(draws[:, 0])

    def _choose_greedily(self, values: Tensor) -> Tensor:
        """(B, 1) int32: the choice with the largest value, or a random one for a share of the rows."""
        best = values.argmax(dim=1, keepdim=True)
        draws = torch.rand((2, *best.shape), generator=self._generator, device=values.device)
        anything = (draws[1] * values.shape[1]).long().clamp_(max=values.shape[1] - 1)
        return torch.where(draws[0] < self._network.drawing, anything, best).to(torch.int32)

    def _choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """One choice (B, groups) int32 per group of logits, and the log probability of all of them together,
        (B,).
        """
        chosen, log_probs = [], []
        for part in torch.split(logits, list(self.shape.choices), dim=1):
            # Gumbel-max trick, as in NumpyActor: minus the logarithm of an exponential variable is a Gumbel
            # variable.
            noise = torch.empty_like(part).exponential_(generator=self._generator)
            choice = (part - noise.log()).argmax(dim=1, keepdim=True)
            log_probs.append(part.log_softmax(dim=1).gather(1, choice).squeeze(1))
            chosen.append(choice.to(torch.int32))
        return torch.cat(chosen, dim=1), sum(log_probs[1:], log_probs[0])
