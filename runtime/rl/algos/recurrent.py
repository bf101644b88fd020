"""Methods with memory: PPO, IMPALA and SAC with networks that are unrolled over whole segments.

PPO and IMPALA with memory: one memory read by policy and value, trained by both losses.

Without memory, policy and value are separate networks. With memory the value reads the policy's memory, as in
IMPALA's paper and in CleanRL's ppo_atari_lstm.py: workers carry one state, and both losses train it. The state at
the start of each segment is the worker's (the stored state of Kapturowski et al. 2019, R2D2, section 3). There is
no burn-in, because segments are used soon after they were collected.

Minibatches of PPO are whole segments of some copies. As *The 37 Implementation Details of PPO* (Huang et al. 2022)
describes for LSTM, masks reset the states at the ends of episodes, and the sequences of a minibatch stay in order.
IMPALA applies V-trace to whole segments (section 3.1).

Soft actor-critic with memory: whole segments of the replay, unrolled from the workers' states.

Policy and critics have separate recurrent cells, as Ni et al. 2022 recommend (*Recurrent Model-Free RL Can Be a
Strong Baseline for Many POMDPs*, arXiv:2110.05038, section 4.1); both critics read the same one. As in Kapturowski
et al. 2019 (R2D2, sections 2.3 and 3), the policy's state at the start of a segment is the stored one, and the
first `burn_in` steps only update the states to the current weights: they have no loss, and no gradient flows into
them. Workers have no critics, so the critics start each segment at zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from runtime.rl.algos.actor import ActorShape
from runtime.rl.algos.actor_critic import ActorCritic, normalised, present_rows, with_entropy, without_padding
from runtime.rl.algos.impala import Impala, v_trace
from runtime.rl.algos.memory import Memory
from runtime.rl.algos.networks import (
    Actor,
    Arena,
    Network,
    Policy,
    encode,
    fill_orthogonal,
    fill_uniform,
    hidden_layers,
    joint_gradient,
    one_value,
)
from runtime.rl.algos.off_policy.critics import ChoiceCritic, TwinCritic, TwinNetwork
from runtime.rl.algos.off_policy.sac import SAC, DiscreteSAC, SoftActorCritic
from runtime.rl.algos.ppo import PPO, generalised_advantage, value_error
from runtime.rl.buffers.replay import Batch
from runtime.rl.buffers.ring_index import GOES_ON, TRUNCATED
from runtime.rl.buffers.rollout_buffer import RolloutBatch

_FORGET: Final = 1
"""Index of the forget gate among the gates of an LSTM."""


class Unrolled:
    """Part of a network that is unrolled over steps: encoder, hidden layers and recurrent cell."""

    shape: ActorShape
    arena: Arena
    kernels: list[Tensor]
    moments: list[Tensor]

    def _begin_memory(
        self, trunk: Sequence[tuple[Tensor, Tensor]], first_of_cell: int, generator: torch.Generator
    ) -> None:
        """Take weight and bias of each hidden layer and the cell, starting at a parameter; draw the cell's
        weights.
        """
        assert self.shape.memory is not None  # noqa: S101  (the plan takes these classes for networks with memory)
        self.memory: Memory = self.shape.memory
        self._trunk = trunk
        cell = slice(first_of_cell, first_of_cell + len(self.shape.cell_parts))
        self._cell = self.arena.parameters[cell]
        size, weights = self.memory.size, self.arena.weights[cell]
        for weight in weights[:2]:
            for gate in torch.split(weight, size, dim=1):
                fill_orthogonal(gate, 1.0, generator)
        if self.memory.kind == "lstm":
            # Start by remembering everything (Jozefowicz et al. 2015, section 2.2).
            weights[2].detach()[_FORGET * size : (_FORGET + 1) * size].fill_(1.0)

    def unroll(self, obs: Tensor, ended: Tensor, state: Tensor) -> Tensor:
        """(T, N, state_size) states after each step, for observations (T, N, obs_dim).

        Args:
            ended: (T, N) 0 if the episode continues; after any other value the state restarts at zero.
            state: (N, state_size) before the first step.
        """
        sent = self._sent(obs)
        runs_on = (ended == GOES_ON).to(state.dtype).unsqueeze(2)
        states: list[Tensor] = []
        for row, keep in zip(sent.unbind(), runs_on.unbind(), strict=True):
            states.append(self._step(row, state))
            # The product also stops the gradient: no step of an episode depends on the episode before it.
            state = states[-1] * keep
        return torch.stack(states)

    def follow(self, obs: Tensor, states: Tensor) -> Tensor:
        """(B, state_size) states one step after ``states`` (B, state_size), with observations (B, obs_dim)."""
        return self._step(self._sent(obs), states)

    def _sent(self, obs: Tensor) -> Tensor:
        """(…, gates) the part of the gates that does not depend on the state, for all steps in one product."""
        shape, (inner, _, bias, _) = self.shape, self._cell
        features = encode(shape, self.kernels, obs.flatten(0, -2), self.moments)
        hidden = hidden_layers(shape, self._trunk, features.to(inner.dtype))
        return torch.addmm(bias, hidden, inner).float().view(*obs.shape[:-1], -1)

    def _step(self, sent: Tensor, state: Tensor) -> Tensor:
        """(N, state_size) states after ``state``, as in `Memory.step`; ``sent`` is (N, gates)."""
        size, (_, across, _, bias) = self.memory.size, self._cell
        hidden = state[:, :size]
        back = torch.addmm(bias, hidden.to(across.dtype), across).float()
        if self.memory.kind == "lstm":
            gates = sent + back
            gate_in, gate_forget, candidate, gate_out = gates.chunk(4, dim=1)
            cells = gate_forget.sigmoid() * state[:, size:] + gate_in.sigmoid() * candidate.tanh()
            return torch.cat([gate_out.sigmoid() * cells.tanh(), cells], dim=1)
        reset, update = (sent[:, : 2 * size] + back[:, : 2 * size]).sigmoid().chunk(2, dim=1)
        candidate = torch.addcmul(sent[:, 2 * size :], reset, back[:, 2 * size :]).tanh()
        return torch.lerp(candidate, hidden, update)


class RecurrentNetwork(Unrolled, Network):
    """Encoder, hidden layers, recurrent cell and last layer, in ``NumpyActor``'s layout."""

    def head(self, states: Tensor) -> Tensor:
        """(B, outputs) of the last layer for states (B, state_size)."""
        return self.last(states[:, : self.memory.size])

    def _begin(self, generator: torch.Generator) -> None:
        count = len(self.shape.convolution_parts) + 2 * len(self.shape.layers)
        self._begin_memory(self.layers[:-1], count, generator)


class RecurrentPolicy(RecurrentNetwork, Policy):
    """Policy of an on-policy method with memory."""

    def __init__(
        self, shape: ActorShape, generator: torch.Generator, device: str, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(shape, generator, device, dtype)
        self._begin(generator)


class RecurrentActor(RecurrentNetwork, Actor):
    """Policy of soft actor-critic with memory: a squashed Gaussian, or logits."""

    def __init__(
        self, shape: ActorShape, generator: torch.Generator, device: str, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(shape, generator, device, dtype=dtype)
        # Only the critics' loss trains the kernels; the policy's loss does not reach them.
        self.kernels = [kernel.detach() for kernel in self.kernels]
        self._begin(generator)


def value_head(memory: Memory, generator: torch.Generator, device: str) -> Network:
    """Return the layer that computes a value (B, 1) from a memory's outputs (B, size)."""
    return Network(one_value(memory.size), generator, device, last_gain=1.0)


def starting_states(column: Tensor, size: int) -> Tensor:
    """(N, size) states at the start of segments, from a column (T, N, width) that `spread_states` wrote."""
    return column.transpose(0, 1).flatten(1)[:, :size]


class RecurrentActorCritic(ActorCritic):
    """Policy with memory, and a value head: one layer on the same memory."""

    policy: RecurrentPolicy

    def _networks(
        self, shape: ActorShape, generator: torch.Generator, device: str, dtype: torch.dtype
    ) -> tuple[Policy, Network]:
        policy = RecurrentPolicy(shape, generator, device, dtype)
        return policy, value_head(policy.memory, generator, device)

    def _starting_states(self, batch: RolloutBatch) -> Tensor:
        """(N, state_size) states of the workers at the start of each segment."""
        assert batch.state is not None  # noqa: S101  (the layout of such a run has the column)
        return starting_states(batch.state, self.policy.memory.state_size)

    def values(self, states: Tensor) -> Tensor:
        """(B,) values of states (B, state_size) after an observation."""
        return self.value.head(states[:, : self.policy.memory.size]).squeeze(1)

    @torch.no_grad()
    def next_values(
        self, values: Tensor, states: Tensor, next_obs: Tensor, ended: Tensor, *, is_captured: bool
    ) -> Tensor:
        """(T, N) values of what followed each step, before any reset; arbitrary after a termination.

        Args:
            values: (T, N) of each step. states: (T, N, state_size) after each step.
            is_captured: see `runtime.rl.algos.actor_critic.following_values`.
        """
        following = torch.cat([values[1:], values[-1:]])
        is_computed_again = ended == TRUNCATED
        is_computed_again[-1].fill_(True)
        if is_captured:
            again = self.policy.follow(next_obs.flatten(0, 1), states.flatten(0, 1))
            return torch.where(is_computed_again, self.values(again).view_as(values), following)
        # The memory advances over the observation after the step, which is not part of any segment.
        again = self.policy.follow(next_obs[is_computed_again], states[is_computed_again])
        following[is_computed_again] = self.values(again)
        return following


class RecurrentPPO(RecurrentActorCritic, PPO):
    """Proximal policy optimisation of a policy with memory."""

    def minibatch_columns(self, batch: RolloutBatch) -> tuple[tuple[Tensor, ...], int]:
        """Return segment columns (N, T, …) with the states at their starts, and the number of segments per
        minibatch.
        """
        state = self._starting_states(batch)
        observed = (batch.obs, batch.next_obs, self.normalised_reward(batch), batch.ended, state)
        advantage, target = self._targets_with_memory(*observed)
        columns: tuple[Tensor, ...] = (batch.obs, batch.action, batch.log_prob, advantage, target, batch.ended)
        if batch.absent is not None:
            columns = (*columns, batch.absent)
        count = max(1, self.config.minibatch_size // len(batch.obs))
        return (*(column.transpose(0, 1) for column in columns), state), count

    @torch.no_grad()
    def _targets_with_memory(
        self, obs: Tensor, next_obs: Tensor, reward: Tensor, ended: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return advantages and value targets, each (T, N)."""
        self._refresh()
        states = self.policy.unroll(obs, ended, state)
        value = self.values(states.flatten(0, 1)).view_as(reward)
        # Not captured, even on a GPU: one pass over the batch, compared with `epochs` captured ones.
        next_value = self.next_values(value, states, next_obs, ended, is_captured=False)
        advantage = generalised_advantage(
            reward, value, next_value, ended, self.config.gamma, self.config.gae_lambda
        )
        return advantage, advantage + value

    def _step(self, *columns: Tensor) -> Tensor:
        """Take one gradient step on whole segments, columns (n, T, …) and states (n, state_size); return
        statistics.
        """
        config, (*by_copy, state) = self.config, columns
        # Rows are steps in time order for the unrolling, then (step, copy) pairs.
        obs, action, log_prob_old, advantage, target, ended, *absent = (
            column.transpose(0, 1) for column in by_copy
        )  # fmt: skip
        self._refresh()
        states = self.policy.unroll(obs, ended, state).flatten(0, 1)
        log_prob, entropy = self.policy.judge(self.policy.head(states), action.flatten(0, 1))
        log_prob_old, advantage, target = (part.flatten() for part in (log_prob_old, advantage, target))
        value = self.values(states)
        # Only the memory reads padding.
        log_prob, entropy, log_prob_old, advantage, target, value = without_padding(
            absent[0] if absent else None, log_prob, entropy, log_prob_old, advantage, target, value
        )
        objective, stats = self._objective(
            log_prob, entropy, log_prob_old, normalised(advantage, self.mean, self.ranks)
        )
        square = value_error(value, target - advantage, target, config.value_clip)

        arenas = self.policy.arena, self.value.arena
        gradient = self.mean(joint_gradient(0.5 * config.value_cost * square - objective, arenas))
        # One norm over both gradients, because the losses share the memory.
        self._descend(gradient, jointly=True)
        policy_loss, mean_entropy, kl, share = stats
        return torch.stack([policy_loss, 0.5 * square.detach(), mean_entropy, kl, share])


class RecurrentImpala(RecurrentActorCritic, Impala):
    """IMPALA with memory, or APPO if ``clip`` is set."""

    def gradient(self, batch: RolloutBatch, *, is_captured: bool = False) -> tuple[Tensor, Tensor]:
        """Return the gradient of the losses (policy size + value size,), and the statistics."""
        config = self.config
        self._refresh()
        states = self.policy.unroll(batch.obs, batch.ended, self._starting_states(batch))
        rows = states.flatten(0, 1)
        values = self.values(rows)
        value = values.detach().view_as(batch.reward)
        next_value = self.next_values(value, states, batch.next_obs, batch.ended, is_captured=is_captured)
        log_prob, entropy = self.policy.judge(self.policy.head(rows), batch.action.flatten(0, 1))
        ratio = (log_prob.detach() - batch.log_prob.flatten()).exp()
        reward, ratios = config.reward_scale * batch.reward, ratio.view_as(batch.reward)
        bounds = {"gamma": config.gamma, "rho_bar": config.rho_bar, "c_bar": config.c_bar}
        vs, advantage = v_trace(reward, value, next_value, batch.ended, ratios, **bounds)
        vs, advantage = vs.flatten(), advantage.flatten()
        log_prob, entropy, ratio, advantage, values, vs = without_padding(
            batch.absent, log_prob, entropy, ratio, advantage, values, vs
        )
        mean_entropy = entropy.mean()
        objective, policy_loss = self._policy_objective(log_prob, ratio, advantage)
        square = mse_loss(values, vs)

        loss = 0.5 * config.value_cost * square - with_entropy(objective, mean_entropy, config.entropy_cost)
        gradient = joint_gradient(loss, (self.policy.arena, self.value.arena))
        stats = (policy_loss, 0.5 * square.detach(), mean_entropy, ratio.mean())
        return gradient, torch.stack([part.detach() for part in stats])


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
