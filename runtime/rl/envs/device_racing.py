"""Racing on the learner's device: thousands of cars in one array, by the rules that workers drive by.

`RacingVectorEnv` begins episodes anew in the rows that ended. Here that is a value on the device, so new starts are
drawn for all cars, and taken where an episode ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

import numpy as np

from runtime.rl.envs.device import Array, DeviceArrays, DeviceStep, ended_code, summed
from runtime.rl.envs.racing_rules import (
    START_OFFSET,
    START_SPEED,
    START_TURN,
    Cars,
    RacingOptions,
    RacingRules,
)
from runtime.tracks.track import Projection
from runtime.tracks.vehicle import VehicleState

_PARTS: Final = {"state": VehicleState, "projection": Projection}
"""Fields of `Cars` that are records of arrays."""
# Listed once: torch.compile cannot follow `dataclasses.fields` of a class.
_FIELDS: Final = {part: tuple(field.name for field in fields(kind)) for part, kind in _PARTS.items()}
_REST: Final = tuple(field.name for field in fields(Cars) if field.name not in _PARTS)


class DeviceRacing:
    """``num_envs`` cars on a device; see ``runtime.rl.envs.device.DeviceEnv`` for the methods."""

    def __init__(self, num_envs: int, options: RacingOptions, arrays: DeviceArrays) -> None:
        self.num_envs = num_envs
        self._arrays = arrays
        self._from_line = options.start == "line"
        self._rules = RacingRules(options, xp=arrays.xp, convert=arrays.convert)
        self.obs_space, self.action_space = self._rules.obs_space, self._rules.action_space
        # Made before any step: a copy from the host is not allowed while a step is captured.
        self._zero = arrays.convert(np.zeros(num_envs))
        self._first = arrays.convert(np.zeros(num_envs, dtype=np.int64))
        self._no_action = arrays.convert(np.zeros((num_envs, RacingRules.act_dim)))
        self.start()

    def start(self) -> None:
        """Begin a new episode in every car."""
        self._cars = self._started()

    def observe(self) -> Array:
        """(B, obs_space.width) of the current state."""
        return self._rules.observe(self._cars)

    def step(self, action: Array) -> DeviceStep:
        """Drive all cars for a tenth of a second."""
        cars, xp = self._cars, self._arrays.xp
        outcome = self._rules.drive(cars, action)
        final_obs = self._rules.observe(cars)
        ended = outcome.terminated | outcome.truncated
        laps = (cars.progress // self._rules.track.length).clip(0, None)
        episodes = summed(ended, cars.returns, cars.steps, cars.progress, laps)
        fresh = _flat(self._started())
        before = _flat(cars)
        # Triton 3.6 fails on the one kernel that Inductor makes of both (`PassManager::run failed`, torch 2.11).
        self._arrays.part()
        self.use_state({name: _where(ended, fresh[name], before[name], xp) for name in before})
        reward = xp.asarray(outcome.reward, dtype=xp.float32)
        return DeviceStep(reward, ended_code(outcome.terminated, outcome.truncated, xp), final_obs, episodes)

    def state(self) -> dict[str, Array]:
        """Return the cars' arrays."""
        return _flat(self._cars)

    def use_state(self, state: Mapping[str, Array]) -> None:
        """Go on with other arrays."""
        parts = {
            part: kind(**{name: state[f"{part}.{name}"] for name in _FIELDS[part]}) for part, kind in _PARTS.items()
        }
        self._cars = Cars(**parts, **{name: state[name] for name in _REST})

    def _started(self) -> Cars:
        """Draw a start for every car: at the line, standing; or anywhere, rolling, a little off the centre line."""
        track, zero, first = self._rules.track, self._zero, self._first
        at, offset, turned, forward = first, zero, zero, zero
        if not self._from_line:
            xp, draws = self._arrays.xp, self._arrays.uniform((4, self.num_envs))
            samples = len(track.curvature)
            # A draw just below 1 may be rounded up to the number of samples in float32.
            at = xp.asarray(draws[0] * samples, dtype=xp.int64).clip(None, samples - 1)
            offset = START_OFFSET * (2.0 * draws[1] - 1.0) * xp.minimum(track.left[at], track.right[at])
            turned = START_TURN * (2.0 * draws[2] - 1.0)
            forward = START_SPEED * draws[3]
        x, y, yaw = self._rules.start_pose(at, offset, turned)
        state = VehicleState(x, y, yaw, forward, zero, zero, zero)
        # The foot point of a start is its sample: no search is needed.
        place = Projection(at, at * track.step + zero, offset, track.heading[at])
        return Cars(state, place, self._no_action, zero, zero, zero, first, zero)


def _flat(cars: Cars) -> dict[str, Array]:
    """Return the arrays of ``cars`` by name: ``state.x``, ``progress``."""
    parts = {
        f"{part}.{name}": getattr(getattr(cars, part), name) for part, names in _FIELDS.items() for name in names
    }
    return parts | {name: getattr(cars, name) for name in _REST}


def _where(ended: Array, fresh: Array, before: Array, xp: Any) -> Array:
    """Rows of ``fresh`` where an episode ended, of ``before`` elsewhere; arrays are (B,) or (B, size)."""
    return xp.where(ended if before.ndim == 1 else ended[:, None], fresh, before)
