"""Code shared by PPO and IMPALA with memory: one memory read by policy and value, and values over a rollout.

Without memory, policy and value are separate networks. With memory the value reads the policy's memory, as in
IMPALA's paper and in CleanRL's ppo_atari_lstm.py: workers carry one state, and both losses train it. The state at
the start of each segment is the worker's (the stored state of Kapturowski et al. 2019, R2D2, section 3). There is
no burn-in, because segments are used soon after they were collected.
"""

from __future__ import annotations

import torch
from torch import Tensor

from runtime.rl.algos.actor import ActorShape
from runtime.rl.algos.actor_critic import ActorCritic
from runtime.rl.algos.networks import Network, Policy
from runtime.rl.algos.recurrent.policy import RecurrentPolicy, starting_states, value_head
from runtime.rl.buffers.rollout_buffer import RolloutBatch
from runtime.rl.buffers.successors import TRUNCATED


class RecurrentActorCritic(ActorCritic):
    """Policy with memory, and a value head: one layer on the same memory."""

    _policy: RecurrentPolicy

    def _networks(
        self, shape: ActorShape, generator: torch.Generator, device: str, dtype: torch.dtype
    ) -> tuple[Policy, Network]:
        policy = RecurrentPolicy(shape, generator, device, dtype)
        return policy, value_head(policy.memory, generator, device)

    def _starting_states(self, batch: RolloutBatch) -> Tensor:
        """(N, state_size) states of the workers at the start of each segment."""
        assert batch.state is not None  # noqa: S101  (the layout of such a run has the column)
        return starting_states(batch.state, self.policy.memory.state_size)

    def _values(self, states: Tensor) -> Tensor:
        """(B,) values of states (B, state_size) after an observation."""
        return self.value.head(states[:, : self.policy.memory.size]).squeeze(1)

    @torch.no_grad()
    def _next_values(
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
            return torch.where(is_computed_again, self._values(again).view_as(values), following)
        # The memory advances over the observation after the step, which is not part of any segment.
        again = self.policy.follow(next_obs[is_computed_again], states[is_computed_again])
        following[is_computed_again] = self._values(again)
        return following
