"""IMPALA with memory: V-trace over whole segments, unrolled from the workers' states (section 3.1)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from runtime.rl.algos.actor_critic import with_entropy, without_padding
from runtime.rl.algos.impala import Impala, v_trace
from runtime.rl.algos.networks import joint_gradient
from runtime.rl.algos.recurrent.actor_critic import RecurrentActorCritic
from runtime.rl.buffers.rollout_buffer import RolloutBatch


class RecurrentImpala(RecurrentActorCritic, Impala):
    """IMPALA with memory, or APPO if ``clip`` is set."""

    def gradient(self, batch: RolloutBatch, *, is_captured: bool = False) -> tuple[Tensor, Tensor]:
        """Return the gradient of the losses (policy size + value size,), and the statistics."""
        config = self.config
        self._refresh()
        states = self.policy.unroll(batch.obs, batch.ended, self._starting_states(batch))
        rows = states.flatten(0, 1)
        values = self._values(rows)
        value = values.detach().view_as(batch.reward)
        next_value = self._next_values(value, states, batch.next_obs, batch.ended, is_captured=is_captured)
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
