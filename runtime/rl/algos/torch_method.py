"""A method in plain torch: a loss on an ``nn.Module`` and an optimiser of ``torch.optim``, as CleanRL has them.

Workers act by one flat array of weights (`runtime.rl.algos.actor`). `PolicyModule` is that array as a module, whose
parameters are views of it: an optimiser that steps them in place changes what is published and stored. The rest of
the user's module, such as a critic, is stored under its own names.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import make_dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from runtime.rl.algos.actor import ActorShape
from runtime.rl.algos.actor_critic import without_padding
from runtime.rl.algos.algorithm import Algorithm, HasKernels, Stats
from runtime.rl.algos.networks import Actor, Network, Policy, RunningMoments


class PolicyModule(nn.Module):
    """The policy that workers act by, as a module whose parameters are views of its flat weights."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        leaves = network.arena.parameters
        # Without the moments of observations at the end, which are measured and not learned.
        for number, leaf in enumerate(leaves[: len(leaves) - len(network.moments)]):
            leaf._is_param = True  # noqa: SLF001  (torch's mark of a parameter)
            self.register_parameter(f"part{number}", leaf)  # type: ignore[arg-type]

    def forward(self, obs: Tensor) -> Tensor:
        """Return (B, outputs) of observations (B, obs_dim)."""
        return self.network(obs)

    def evaluate(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log probability (B,) of actions (B, act_dim), and entropy (B,), for logits or a plain Gaussian."""
        if not isinstance(self.network, Policy):
            raise TypeError(f"a policy with head {self.network.shape.head} has no evaluate; use forward")
        return self.network.evaluate(obs, action)


class TorchMethod(Algorithm):
    """Base of methods that are a module, an optimiser of torch and a loss.

    A subclass has a ``Config``, `make_agent` and `learn`, and may have `make_optimiser`. Random numbers come from
    torch's default generators, whose states are stored, so ``torch.randperm`` and ``torch.randn`` resume exactly.
    """

    def __init__(
        self,
        shape: ActorShape,
        config: Any,
        seed: int,
        device: str = "cpu",
        *,
        precision: str = "float32",  # noqa: ARG002  (products follow the process-wide setting)
        capture: bool | None = None,  # noqa: ARG002  (an optimiser of torch reads its step count on the host)
    ) -> None:
        super().__init__(shape, capture=False)
        self.config = config
        self.device = torch.device(device)
        kind = {"gaussian": Policy, "categorical": Policy, "squashed": Actor}.get(shape.head, Network)
        self.policy = PolicyModule(kind(shape, torch.Generator().manual_seed(seed), device))
        """Policy of the workers; `make_agent` makes it part of the agent."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.agent = self.make_agent().to(self.device)
        self.optimiser = self.make_optimiser()
        self.optimiser.register_step_pre_hook(lambda *_: self._average_gradients())
        _create_state(self.optimiser)
        self._moments = RunningMoments(shape.obs_space.vector, device) if shape.is_normalised else None

    @abstractmethod
    def make_agent(self) -> nn.Module:
        """Return the module whose parameters are trained, with `policy` in it."""

    def make_optimiser(self) -> torch.optim.Optimizer:
        """Return the optimiser; Adam with the setting ``lr`` by default."""
        return torch.optim.Adam(self.agent.parameters(), lr=self.config.lr)

    @abstractmethod
    def learn(self, batch: Any) -> Mapping[str, Tensor | float]:
        """Take gradient steps on a batch; return the figures of the record by name, the same names each time."""

    def update(self, batch: Any) -> Stats:
        """Learn from one batch."""
        figures = self.learn(batch)
        if self._moments is not None:
            (obs,) = without_padding(getattr(batch, "absent", None), batch.obs.reshape(-1, self.shape.obs_dim))
            self._moments.count(self.shape, obs, (self.policy.network,), self.mean, self.ranks)
        self.updates += 1
        values = [torch.as_tensor(value, device=self.device).detach().float() for value in figures.values()]
        return _stats_type(tuple(figures))(*values)

    def _average_gradients(self) -> None:
        """Replace gradients by their mean over all devices that share a batch."""
        for parameter in self.agent.parameters():
            if parameter.grad is not None:
                parameter.grad = self.mean(parameter.grad)

    def networks(self) -> Sequence[HasKernels]:
        """Return the policy."""
        return (self.policy.network,)

    def policy_weights(self) -> Tensor:
        """Return the policy's parameters."""
        return self.policy.network.arena.flat

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor that an update changes."""
        own = {id(part) for part in self.policy.parameters()}
        rest = (*self.agent.named_parameters(), *self.agent.named_buffers())
        return {
            "policy": self.policy_weights(),
            **({"obs_moments": self._moments.state} if self._moments is not None else {}),
            **{f"agent.{name}": part for name, part in rest if id(part) not in own},
            **{
                f"optimiser.{number}.{key}": value
                for number, parameter in enumerate(_parameters(self.optimiser))
                for key, value in self.optimiser.state[parameter].items()
                if isinstance(value, Tensor)
            },
        }

    def generators(self) -> dict[str, torch.Generator]:
        """Return torch's default generators of the CPU and of this device."""
        generators = {"generator": torch.default_generator}
        if self.device.type == "cuda":
            generators["device_generator"] = torch.cuda.default_generators[self.device.index or 0]
        return generators


def _parameters(optimiser: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimiser.param_groups for parameter in group["params"]]


def _create_state(optimiser: torch.optim.Optimizer) -> None:
    """Create the state that an optimiser makes in its first step, so that a checkpoint can be loaded before it."""
    parameters = _parameters(optimiser)
    before = [parameter.detach().clone() for parameter in parameters]
    there = {(id(parameter), key) for parameter in parameters for key in optimiser.state[parameter]}
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimiser.step()
    with torch.no_grad():
        for parameter, value in zip(parameters, before, strict=True):
            parameter.copy_(value)
            parameter.grad = None
            for key, state in optimiser.state[parameter].items():
                if isinstance(state, Tensor) and (id(parameter), key) not in there:
                    state.zero_()


@cache
def _stats_type(names: tuple[str, ...]) -> type[Stats]:
    fields = [(name, Tensor) for name in names]
    return make_dataclass("TorchStats", fields, bases=(Stats,), frozen=True, slots=True)
