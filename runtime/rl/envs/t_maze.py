"""T-maze (Bakker 2001, "Reinforcement learning with long short-term memory"): a sign at the start tells the turn.

Importing this module registers the id: ``runtime.rl.envs.t_maze:l2r/TMaze-v0``. The corridor looks the same all
along, so at the junction only a policy that remembers the sign does better than to guess.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import gymnasium
import numpy as np
from numpy.typing import NDArray

T_MAZE_ID: Final = "l2r/TMaze-v0"
_NORTH, _EAST, _SOUTH, _WEST = range(4)
_SIGNS: Final = {_NORTH: (0.0, 1.0, 1.0), _SOUTH: (1.0, 1.0, 0.0)}
"""Observation at the start, by the turn that leads to the goal."""
_CORRIDOR: Final = (1.0, 0.0, 1.0)
_JUNCTION: Final = (0.0, 1.0, 0.0)
_RIGHT_TURN, _WRONG_TURN, _AGAINST_WALL = 4.0, -0.1, -0.1

Observation = NDArray[np.float32]


class TMaze(gymnasium.Env[Observation, np.int64]):
    """A corridor of ``length`` steps and a junction at its end. Actions are to go north, east, south or west.

    The turn of the sign gives 4, the other one -0.1, and both end the episode; a step against a wall gives -0.1.
    The episode is cut after ``2 * (length + 1)`` steps, so standing still does not pay.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}  # type: ignore[misc]  # the base has it per instance

    def __init__(self, length: int = 10) -> None:
        if type(length) is not int or length < 1:
            raise ValueError(f"length is {length!r}; it must be a whole number from 1")
        self._length = length
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(4)
        self._place, self._steps, self._goal = 0, 0, _NORTH

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Go to the start and draw the sign."""
        super().reset(seed=seed, options=options)
        self._place, self._steps = 0, 0
        self._goal = _NORTH if self.np_random.integers(2) else _SOUTH
        return self._seen(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Go one step, or stay where a wall is."""
        self._steps += 1
        is_cut = self._steps >= 2 * (self._length + 1)
        if self._place == self._length and action in _SIGNS:
            return self._seen(), _RIGHT_TURN if action == self._goal else _WRONG_TURN, True, False, {}
        before = self._place
        self._place = min(max(before + {_EAST: 1, _WEST: -1}.get(int(action), 0), 0), self._length)
        return self._seen(), 0.0 if self._place != before else _AGAINST_WALL, False, is_cut, {}

    def _seen(self) -> Observation:
        if self._place == self._length:
            return np.array(_JUNCTION, dtype=np.float32)
        return np.array(_SIGNS[self._goal] if self._place == 0 else _CORRIDOR, dtype=np.float32)


gymnasium.register(T_MAZE_ID, entry_point="runtime.rl.envs.t_maze:TMaze")
