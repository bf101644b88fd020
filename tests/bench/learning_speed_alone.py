"""PPO in one process over `gymnasium.make_vec`: what an update and its env steps cost without other processes.

Run by `tests.bench.learning_speed`: ENVIRONMENT COPIES BATCH MINIBATCH EPOCHS SECONDS. Prints its env steps a
second and a CPU second as one JSON line; starting up is not counted. `Costly-v0` is CartPole with a millisecond of
work in each step.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import gymnasium as gym

WORK_SECONDS = 1e-3


class Work(gym.Wrapper[Any, Any, Any, Any]):
    """Computes for a while in each step."""

    def step(self, action: Any) -> Any:
        """Take a step."""
        end = time.thread_time() + WORK_SECONDS
        while time.thread_time() < end:
            pass
        return self.env.step(action)


gym.register("Costly-v0", entry_point=lambda: Work(gym.make("CartPole-v1", disable_env_checker=True)))


def main() -> None:
    """Learn for a while."""
    import torch  # here: workers import this module for its environment
    from torch import nn
    from torch.distributions import Categorical

    def network(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))

    torch.set_num_threads(1)
    name, (copies, batch, minibatch, epochs), seconds = sys.argv[1], map(int, sys.argv[2:6]), float(sys.argv[6])
    mode = "vector_entry_point" if name == "CartPole-v1" else "sync"
    envs, steps = gym.make_vec(name, copies, vectorization_mode=mode), batch // copies
    policy, value = network(envs.single_observation_space.shape[0], envs.single_action_space.n), network(4, 1)
    parameters = [*policy.parameters(), *value.parameters()]
    adam = torch.optim.Adam(parameters, lr=3e-4, eps=1e-5, fused=True)
    obs, done = torch.from_numpy(envs.reset(seed=0)[0]), torch.zeros(copies)
    began = cpu = counted = 0.0
    while not began or time.monotonic() - began < seconds:
        rows = []
        with torch.no_grad():
            for _ in range(steps):
                actions = Categorical(logits=policy(obs))
                action = actions.sample()
                after, reward, end, cut, _ = envs.step(action.numpy())
                rows.append((obs, action, actions.log_prob(action), torch.from_numpy(reward).float(), done))
                obs, done = torch.from_numpy(after), torch.from_numpy(end | cut).float()
            all_obs, all_actions, log_probs, rewards, dones = (
                torch.stack(column) for column in zip(*rows, strict=True)
            )
            values = value(torch.cat([all_obs, obs[None]])).squeeze(-1)
            advantages, sum_ = torch.zeros_like(rewards), torch.zeros(copies)
            for t in reversed(range(steps)):
                goes_on = 1 - (dones[t + 1] if t + 1 < steps else done)
                sum_ = rewards[t] + 0.99 * values[t + 1] * goes_on - values[t] + 0.99 * 0.95 * goes_on * sum_
                advantages[t] = sum_
        columns = (all_obs, all_actions, log_probs, advantages, advantages + values[:-1])
        flat = [column.flatten(0, 1) for column in columns]
        for _ in range(epochs):
            for indices in torch.randperm(batch).split(minibatch):
                o, a, old, gain, target = (column[indices] for column in flat)
                actions, gain = Categorical(logits=policy(o)), (gain - gain.mean()) / (gain.std() + 1e-8)
                ratio = (actions.log_prob(a) - old).exp()
                loss = torch.max(-gain * ratio, -gain * ratio.clamp(0.8, 1.2)).mean()
                loss = (
                    loss - 0.01 * actions.entropy().mean() + 0.5 * (value(o).squeeze(-1) - target).square().mean()
                )
                adam.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 0.5)
                adam.step()
        if began:
            counted += batch
        else:  # the first batch warms up
            began, cpu = time.monotonic(), time.process_time()
    seconds, cpu = time.monotonic() - began, time.process_time() - cpu
    print(json.dumps({"steps_per_second": counted / seconds, "steps_per_cpu_second": counted / cpu}))


if __name__ == "__main__":
    main()
