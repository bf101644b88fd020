"""CartPole-v1 and Pendulum-v1 on the learner's device, by the equations of ``classic``."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from runtime.rl.envs.classic import Physics
from runtime.rl.envs.device import Array, DeviceArrays, DeviceStep, ended_code, summed


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
        """(B, obs_space.width) of the present state."""
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
