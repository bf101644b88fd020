"""Gymnasium's CartPole-v1 and Pendulum-v1, many copies in one array operation.

Step for step those of Gymnasium (a test drives both). Its own vector CartPole spends a step on each reset, which
no transition may come from; stepping single copies costs 20 times as much as this. The same equations are those of
copies on the learner's device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from runtime.rl.envs.base import EpisodeSummary, StepResult
from runtime.rl.envs.device import Array, DeviceArrays, DeviceStep, ended_code, summed
from runtime.rl.spaces import ActionSpace, ObsSpace
from runtime.tracks.vehicle import Namespace

Floats = NDArray[np.float64]


class Physics(Protocol):
    """One environment: arrays of states in, arrays of states out, of whichever library ``xp``."""

    obs_space: ObsSpace
    action_space: ActionSpace
    step_seconds: float
    max_steps: int
    start_bounds: tuple[float, ...]
    """(D,) an episode begins at a state that is drawn evenly between minus these and these."""

    def advance(
        self, state: Floats, action: NDArray[Any], xp: Namespace = np
    ) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        """Return the next states (D, B), rewards (B,), and which episodes terminate."""

    def observe(self, state: Floats, xp: Namespace = np) -> NDArray[np.float32]:
        """(B, obs_space.width) of the states (D, B)."""


class _CartPole:
    """Barto, Sutton & Anderson 1983, with Gymnasium's constants."""

    obs_space = ObsSpace(4)
    action_space = ActionSpace(1, (2,))
    step_seconds = 0.02
    max_steps = 500
    start_bounds: tuple[float, ...] = (0.05,) * 4

    def advance(
        self, state: Floats, action: NDArray[Any], xp: Namespace = np
    ) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        x, x_dot, theta, theta_dot = state
        force = 20.0 * (action[:, 0] == 1) - 10.0
        cos, sin = xp.cos(theta), xp.sin(theta)
        push = (force + 0.05 * xp.square(theta_dot) * sin) / 1.1
        theta_acc = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * xp.square(cos) / 1.1))
        x_acc = push - 0.05 * theta_acc * cos / 1.1
        tau = self.step_seconds
        after = xp.stack(
            (x + tau * x_dot, x_dot + tau * x_acc, theta + tau * theta_dot, theta_dot + tau * theta_acc)
        )
        fallen = (xp.abs(after[0]) > 2.4) | (xp.abs(after[2]) > 12 * 2 * np.pi / 360)
        return after, xp.ones_like(x), fallen

    def observe(self, state: Floats, xp: Namespace = np) -> NDArray[np.float32]:
        rows: NDArray[np.float32] = xp.asarray(state.T, dtype=xp.float32)
        return rows


class _Pendulum:
    """A pendulum to be swung up and held, with Gymnasium's constants."""

    obs_space = ObsSpace(3)
    action_space = ActionSpace(1)
    step_seconds = 0.05
    max_steps = 200
    start_bounds: tuple[float, ...] = (np.pi, 1.0)

    def advance(
        self, state: Floats, action: NDArray[Any], xp: Namespace = np
    ) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        theta, theta_dot = state
        torque = 2.0 * xp.asarray(action[:, 0], dtype=theta.dtype).clip(-1.0, 1.0)
        lean = (theta + np.pi) % (2 * np.pi) - np.pi
        cost = xp.square(lean) + 0.1 * xp.square(theta_dot) + 0.001 * xp.square(torque)
        theta_dot = (theta_dot + (15.0 * xp.sin(theta) + 3.0 * torque) * self.step_seconds).clip(-8.0, 8.0)
        after = xp.stack((theta + theta_dot * self.step_seconds, theta_dot))
        return after, -cost, xp.zeros_like(theta, dtype=xp.bool)

    def observe(self, state: Floats, xp: Namespace = np) -> NDArray[np.float32]:
        theta, theta_dot = state
        rows = xp.stack((xp.cos(theta), xp.sin(theta), theta_dot), axis=1)
        observed: NDArray[np.float32] = xp.asarray(rows, dtype=xp.float32)
        return observed


class ClassicVectorEnv:
    """Copies of one of them; see ``runtime.rl.envs.base.VectorEnv`` for the methods."""

    def __init__(self, physics: Physics, num_envs: int) -> None:
        self._physics = physics
        self.num_envs = num_envs
        self.obs_space = physics.obs_space
        self.action_space = physics.action_space
        self.step_seconds = physics.step_seconds
        self.reset(0)

    def reset(self, seed: int) -> NDArray[Any]:
        """Reset every copy."""
        self._rng = np.random.default_rng(seed)
        self.state = self._draw_states(self.num_envs)
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
            self.state[:, ended] = self._draw_states(len(ended))
            self._steps[ended] = 0
            self._return[ended] = 0.0
            obs = self._physics.observe(self.state)
        return StepResult(obs, reward.astype(np.float32), terminated, truncated, final_obs, episodes)

    def _draw_states(self, count: int) -> Floats:
        """(D, count) states of new episodes."""
        bounds = np.array(self._physics.start_bounds)[:, None]
        return self._rng.uniform(-bounds, bounds, (len(bounds), count))


class DeviceClassic:
    """``num_envs`` copies on a device; see ``runtime.rl.envs.device.DeviceEnv`` for the methods."""

    def __init__(self, physics: Physics, num_envs: int, arrays: DeviceArrays) -> None:
        self._physics = physics
        self._arrays = arrays
        self._bounds = arrays.convert(np.array(physics.start_bounds)[:, None])
        self.num_envs = num_envs
        self.obs_space, self.action_space = physics.obs_space, physics.action_space
        self.start()

    def start(self) -> None:
        """Begin a new episode in every copy."""
        convert, count = self._arrays.convert, self.num_envs
        self._state = self._draw_states()
        self._steps, self._returns = convert(np.zeros(count, dtype=np.int64)), convert(np.zeros(count))

    def observe(self) -> Array:
        """(B, obs_space.width) of the current state."""
        return self._physics.observe(self._state, self._arrays.xp)

    def step(self, action: Array) -> DeviceStep:
        """Advance every copy by one step."""
        xp = self._arrays.xp
        state, reward, terminated = self._physics.advance(self._state, action, xp)
        steps, returns = self._steps + 1, self._returns + reward
        ended = terminated | (steps >= self._physics.max_steps)
        # No track: progress and laps of these episodes are 0.
        none = xp.zeros_like(reward)
        episodes = summed(ended, returns, steps, none, none)
        final_obs = self._physics.observe(state, xp)
        self._state = xp.where(ended, self._draw_states(), state)
        self._steps = xp.where(ended, xp.zeros_like(steps), steps)
        self._returns = xp.where(ended, none, returns)
        code = ended_code(terminated, ended & ~terminated, xp)
        return DeviceStep(xp.asarray(reward, dtype=xp.float32), code, final_obs, episodes)

    def state(self) -> dict[str, Array]:
        """Return the copies' arrays."""
        return {"state": self._state, "steps": self._steps, "returns": self._returns}

    def use_state(self, state: Mapping[str, Array]) -> None:
        """Go on with other arrays."""
        self._state, self._steps, self._returns = (state[name] for name in ("state", "steps", "returns"))

    def _draw_states(self) -> Array:
        """(D, B) states of new episodes."""
        return self._bounds * (2.0 * self._arrays.uniform((len(self._bounds), self.num_envs)) - 1.0)


PHYSICS: Final[Mapping[str, Physics]] = {"CartPole-v1": _CartPole(), "Pendulum-v1": _Pendulum()}
"""Gymnasium's id to the environment."""
