"""Soft actor-critic with memory: whole segments of the replay, unrolled from the workers' states.

Policy and critics have separate recurrent cells, as Ni et al. 2022 recommend (*Recurrent Model-Free RL Can Be a
Strong Baseline for Many POMDPs*, arXiv:2110.05038, section 4.1); both critics read the same one. As in Kapturowski
et al. 2019 (R2D2, sections 2.3 and 3), the policy's state at the start of a segment is the stored one, and the
first `burn_in` steps only update the states to the current weights: they have no loss, and no gradient flows into
them. Workers have no critics, so the critics start each segment at zero.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from runtime.rl.algos.actor import ActorShape
from runtime.rl.algos.actor_critic import present_rows
from runtime.rl.algos.networks import fill_uniform
from runtime.rl.algos.off_policy.critics import ChoiceCritic, TwinCritic, TwinNetwork
from runtime.rl.algos.off_policy.sac import SAC, DiscreteSAC, SoftActorCritic
from runtime.rl.algos.recurrent.policy import RecurrentActor, Unrolled
from runtime.rl.buffers.replay import Batch
from runtime.rl.buffers.ring_index import GOES_ON


class RecurrentTwin(Unrolled, TwinNetwork):
    """Twin networks that read the same memory."""

    def _begin(self, generator: torch.Generator) -> None:
        first = len(self.shape.convolution_parts)
        end = first + len(self.shape.trunk_parts) - len(self.shape.cell_parts)
        hidden = self.arena.parameters[first:end]
        self._begin_memory(list(zip(hidden[::2], hidden[1::2], strict=True)), end, generator)
        for weight in self.arena.weights[first:end:2]:
            fill_uniform(weight, len(weight), generator)


class RecurrentCritic(RecurrentTwin, TwinCritic):
    """Q functions of the history so far and an action."""

    def __init__(
        self, shape: ActorShape, generator: torch.Generator, device: str, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(shape, generator, device, dtype)
        self._begin(generator)


class RecurrentChoiceCritic(RecurrentTwin, ChoiceCritic):
    """Q functions of the history so far, with a value for every choice."""

    def __init__(
        self, shape: ActorShape, generator: torch.Generator, device: str, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(shape, generator, device, dtype)
        self._begin(generator)


class RecurrentSoftActorCritic(SoftActorCritic[Any, Any]):
    """Soft actor-critic whose features are memory states; subclasses add the form of the actions.

    A batch contains its sequences one after another: B = sequences * steps rows.
    """

    def _learned(self, batch: Batch) -> Batch:
        """Return the rows after each sequence's burn-in, with padding replaced by other rows."""
        names = ("obs", "action", "reward", "next_obs", "terminated", "steps")
        columns = {name: column for name in names if (column := getattr(batch, name)) is not None}
        rows = self._present(batch)
        return replace(
            batch, **{name: self._behind_burn_in(column, batch)[rows] for name, column in columns.items()}
        )

    def _behind_burn_in(self, column: Tensor, batch: Batch) -> Tensor:
        return _by_sequence(column, batch)[:, self.config.burn_in :].flatten(0, 1)

    def _present(self, batch: Batch) -> Tensor | slice:
        """Return the index of the rows to learn from among those after the burn-in: all but padding."""
        return slice(None) if batch.absent is None else present_rows(self._behind_burn_in(batch.absent, batch))

    def _features(self, batch: Batch) -> Tensor:
        return self._read(self.critic, self._states(self.critic, batch)[self._present(batch)])

    def _next_features(self, drawn: Batch, batch: Batch) -> tuple[Tensor, Tensor]:
        policy, target = (
            self._read(network, network.follow(batch.next_obs, self._last_states(network, drawn, batch.steps)))
            for network in (self.actor, self.target)
        )
        return policy, target

    def _policy_features(self, batch: Batch, features: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            features = self._features(batch)  # the memory's, by the critics after their step
        return self._read(self.actor, self._states(self.actor, batch)[self._present(batch)]), features

    def _last_states(self, network: Unrolled, drawn: Batch, steps: Tensor | None) -> Tensor:
        """(B, state_size) states after the last step whose reward is in the sum of each learned row."""
        states, rows = self._states(network, drawn), self._present(drawn)
        if steps is None:
            return states[rows]
        # No sum extends beyond its segment, see `runtime.rl.roles.rollout`.
        return states[torch.arange(len(states), device=states.device)[rows] + steps.long() - 1]

    def _states(self, network: Unrolled, batch: Batch) -> Tensor:
        """(B, state_size) states after each learned step; states before it have no gradient."""
        assert batch.state is not None and batch.ended is not None  # noqa: S101, PT018  (the replay of such a run)
        size, burn_in = network.memory.state_size, self.config.burn_in
        obs, ended = (_by_sequence(column, batch).transpose(0, 1) for column in (batch.obs, batch.ended))
        state = batch.state[:, :size] if network is self.actor else batch.state.new_zeros(len(batch.state), size)
        if burn_in:
            with torch.no_grad():
                warmed = network.unroll(obs[:burn_in], ended[:burn_in], state)[-1]
                state = warmed * (ended[burn_in - 1] == GOES_ON).unsqueeze(1)
        states = network.unroll(obs[burn_in:], ended[burn_in:], state)
        return states.transpose(0, 1).flatten(0, 1)

    @staticmethod
    def _read(network: Unrolled, states: Tensor) -> Tensor:
        """(B, size) part of the states that the layers after a memory read."""
        return states[:, : network.memory.size]


class RecurrentSAC(RecurrentSoftActorCritic, SAC):
    """Soft actor-critic with memory, for continuous actions."""

    def _make_actor(self, generator: torch.Generator, device: str, dtype: torch.dtype) -> RecurrentActor:
        return RecurrentActor(self.shape, generator, device, dtype)

    def _make_critic(self, generator: torch.Generator, device: str, dtype: torch.dtype) -> RecurrentCritic:
        return RecurrentCritic(self.shape, generator, device, dtype)


class RecurrentDiscreteSAC(RecurrentSoftActorCritic, DiscreteSAC):
    """Soft actor-critic with memory, for one discrete choice."""

    def _make_actor(self, generator: torch.Generator, device: str, dtype: torch.dtype) -> RecurrentActor:
        return RecurrentActor(self.shape, generator, device, dtype)

    def _make_critic(self, generator: torch.Generator, device: str, dtype: torch.dtype) -> RecurrentChoiceCritic:
        return RecurrentChoiceCritic(self.shape, generator, device, dtype)


def _by_sequence(column: Tensor, batch: Batch) -> Tensor:
    """(sequences, steps, …) view of a column (B, …)."""
    assert batch.state is not None  # noqa: S101  (one for each sequence)
    return column.view(len(batch.state), -1, *column.shape[1:])
