"""Gymnasium's CartPole-v1 and Pendulum-v1, many copies in one array operation.

Step for step those of Gymnasium (a test drives both). Its own vector CartPole spends a step on each reset, which
no transition may come from; stepping single copies costs 20 times as much as this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from runtime.rl.envs.base import EpisodeSummary, StepResult, VectorEnv
from runtime.rl.spaces import ActionSpace, ObsSpace

Floats = NDArray[np.float64]


class _Physics(Protocol):
    """One environment: arrays of states in, arrays of states out."""

    obs_space: ObsSpace
    action_space: ActionSpace
    step_seconds: float
    max_steps: int

    def start(self, count: int, rng: np.random.Generator) -> Floats:
        """Draw the states (D, count) of new episodes."""

    def advance(self, state: Floats, action: NDArray[Any]) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        """Return the next states, rewards, and which episodes terminate."""

    def observe(self, state: Floats) -> NDArray[np.float32]:
        """(B, obs_space.width) of the states (D, B)."""


class _CartPole:
    """Barto, Sutton & Anderson 1983, with Gymnasium's constants."""

    obs_space = ObsSpace(4)
    action_space = ActionSpace(1, (2,))
    step_seconds = 0.02
    max_steps = 500

    def start(self, count: int, rng: np.random.Generator) -> Floats:
        return rng.uniform(-0.05, 0.05, (4, count))

    def advance(self, state: Floats, action: NDArray[Any]) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        x, x_dot, theta, theta_dot = state
        force = np.where(action[:, 0] == 1, 10.0, -10.0)
        cos, sin = np.cos(theta), np.sin(theta)
        push = (force + 0.05 * np.square(theta_dot) * sin) / 1.1
        theta_acc = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * np.square(cos) / 1.1))
        x_acc = push - 0.05 * theta_acc * cos / 1.1
        tau = self.step_seconds
        after = np.stack(
            (x + tau * x_dot, x_dot + tau * x_acc, theta + tau * theta_dot, theta_dot + tau * theta_acc)
        )
        fallen = (np.abs(after[0]) > 2.4) | (np.abs(after[2]) > 12 * 2 * np.pi / 360)
        return after, np.ones(len(action)), fallen

    def observe(self, state: Floats) -> NDArray[np.float32]:
        return state.T.astype(np.float32)


class _Pendulum:
    """A pendulum to be swung up and held, with Gymnasium's constants."""

    obs_space = ObsSpace(3)
    action_space = ActionSpace(1)
    step_seconds = 0.05
    max_steps = 200

    def start(self, count: int, rng: np.random.Generator) -> Floats:
        return rng.uniform([[-np.pi], [-1.0]], [[np.pi], [1.0]], (2, count))

    def advance(self, state: Floats, action: NDArray[Any]) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        theta, theta_dot = state
        torque = 2.0 * np.clip(action[:, 0].astype(np.float64), -1.0, 1.0)
        lean = (theta + np.pi) % (2 * np.pi) - np.pi
        cost = np.square(lean) + 0.1 * np.square(theta_dot) + 0.001 * np.square(torque)
        theta_dot = np.clip(theta_dot + (15.0 * np.sin(theta) + 3.0 * torque) * self.step_seconds, -8.0, 8.0)
        after = np.stack((theta + theta_dot * self.step_seconds, theta_dot))
        return after, -cost, np.zeros(len(action), dtype=np.bool_)

    def observe(self, state: Floats) -> NDArray[np.float32]:
        theta, theta_dot = state
        return np.stack((np.cos(theta), np.sin(theta), theta_dot), axis=1).astype(np.float32)


class ClassicVectorEnv:
    """Copies of one of them; see ``runtime.rl.envs.base.VectorEnv`` for the methods."""

    def __init__(self, physics: _Physics, num_envs: int) -> None:
        self._physics = physics
        self.num_envs = num_envs
        self.obs_space = physics.obs_space
        self.action_space = physics.action_space
        self.step_seconds = physics.step_seconds
        self.reset(0)

    def reset(self, seed: int) -> NDArray[Any]:
        """Start every copy anew."""
        self._rng = np.random.default_rng(seed)
        self.state = self._physics.start(self.num_envs, self._rng)
        self._steps = np.zeros(self.num_envs, dtype=np.int64)
        self._return = np.zeros(self.num_envs)
        return self._physics.observe(self.state)

    def step(self, action: NDArray[Any]) -> StepResult:
        """Advance every copy by one step."""
        self.state, reward, terminated = self._physics.advance(self.state, action)
        self._steps += 1
        self._return += reward
        truncated = (self._steps >= self._physics.max_steps) & ~terminated
        final_obs = obs = self._physics.observe(self.state)
        ended = np.flatnonzero(terminated | truncated)
        episodes: tuple[EpisodeSummary, ...] = ()
        if len(ended):
            steps, returns = self._steps, self._return
            episodes = tuple(EpisodeSummary(env, int(steps[env]), float(returns[env])) for env in ended.tolist())
            self.state[:, ended] = self._physics.start(len(ended), self._rng)
            self._steps[ended] = 0
            self._return[ended] = 0.0
            obs = self._physics.observe(self.state)
        return StepResult(obs, reward.astype(np.float32), terminated, truncated, final_obs, episodes)


CLASSIC: Final[Mapping[str, Callable[[int], VectorEnv]]] = {
    "CartPole-v1": lambda num_envs: ClassicVectorEnv(_CartPole(), num_envs),
    "Pendulum-v1": lambda num_envs: ClassicVectorEnv(_Pendulum(), num_envs),
}
