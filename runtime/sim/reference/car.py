"""One car of the reference simulator: the shared dynamics, gears, and what its sensors report."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any, Final

import numpy as np

from runtime.envs.vehicle import GRAVITY, Vehicle, VehicleParams, VehicleState
from runtime.sim import protocol
from runtime.sim.geo import LocalFrame

WHEEL_RADIUS: Final = 0.33
"""m"""
MASS: Final = 1150.0
"""kg; only torque readings need it, the motion does not."""
REVERSE_SPEED: Final = 6.0
"""m/s"""
PARK_BRAKE: Final = -8.0
"""m/s^2"""
IMU_NOISE: Final = 0.02
"""m/s^2, standard deviation of the accelerometer."""
VEHICLE_CLASS: Final = "ReferenceCar"
_SETTABLE: Final = tuple(each.name for each in fields(VehicleParams) if each.name != "blend_speeds")


class Car:
    """A car: give it an ``action``, ``advance`` it, read its ``pose``."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.is_ai = True
        """Driven by actions from the wire; otherwise it coasts, as nobody sits in it."""
        self.begin(rng)
        self._extra: dict[str, Any] = {}
        self._vehicle = Vehicle()
        self.place(0.0, 0.0, 0.0)

    def begin(self, rng: np.random.Generator) -> None:
        """Forget the last action; noise comes from ``rng``."""
        self.action = protocol.Action(0.0, 0.0)
        self._rng = rng

    def place(self, x: float, y: float, yaw: float, forward: float = 0.0) -> None:
        """Put it at x east and y north, heading ``yaw`` (rad from the east, counter-clockwise), rolling ahead."""
        self._state = VehicleState.at_rest(1)
        self._state.place(
            np.zeros(1, dtype=np.intp),
            x=np.array([x]),
            y=np.array([y]),
            yaw=np.array([yaw]),
            forward=np.array([forward]),
        )
        self._backwards = 0.0
        self._measured = (0.0, 0.0)
        self._asked = 0.0

    def advance(self, seconds: float, substeps: int) -> None:
        """Drive on under the present action."""
        state = self._state
        asked = self._pedal()
        before = state.forward[0], state.sideways[0]
        if self._backwards > 0 or (self.action.gear == protocol.REVERSE and state.forward[0] < 0.01):
            self._reverse(seconds)
        else:
            self._vehicle.advance(state, np.array([self.action.steering]), np.array([asked]), seconds, substeps)
        turning = state.yaw_rate[0]
        self._asked = asked
        self._measured = (
            float((state.forward[0] - before[0]) / seconds - turning * state.sideways[0]),
            float((state.sideways[0] - before[1]) / seconds + turning * state.forward[0]),
        )

    def _pedal(self) -> float:
        gear, asked = self.action.gear, self.action.acceleration
        if not self.is_ai:
            return 0.0
        if gear == protocol.PARK:
            return PARK_BRAKE
        return min(asked, 0.0) if gear != protocol.DRIVE else asked

    def _reverse(self, seconds: float) -> None:
        """Roll backwards without slip: slow enough that tyres need no model."""
        state, params = self._state, self._vehicle.params
        asked = self.action.acceleration if self.action.gear == protocol.REVERSE else PARK_BRAKE
        self._backwards = min(REVERSE_SPEED, max(0.0, self._backwards + min(asked, 3.0) * seconds))
        reach = params.steer_rate * seconds
        wheel = self.action.steering * params.max_steer
        state.steer += np.clip(wheel - state.steer, -reach, reach)
        turning = -self._backwards * np.tan(state.steer) / params.wheelbase
        state.yaw += turning * seconds
        state.yaw_rate[:] = turning
        state.x -= self._backwards * seconds * np.cos(state.yaw)
        state.y -= self._backwards * seconds * np.sin(state.yaw)

    @property
    def position(self) -> tuple[float, float, float]:
        """East and north, m, and heading, rad from the east."""
        state = self._state
        return float(state.x[0]), float(state.y[0]), float(state.yaw[0])

    @property
    def compass_yaw(self) -> float:
        """Heading as the wire has it: 0 to the north, counter-clockwise, within ±pi."""
        return math.remainder(self.position[2] - math.pi / 2, math.tau)

    def pose(self, frame: LocalFrame) -> tuple[float, ...]:
        """Return the 30 values of the pose."""
        state, params = self._state, self._vehicle.params
        x, y, _ = self.position
        forward = float(state.forward[0]) - self._backwards
        latitude, longitude, altitude = frame.to_geodetic(x, y, 0.0)
        noise = self._rng.normal(0.0, IMU_NOISE, 3).tolist()
        brake = max(0.0, -self._asked) / params.max_brake
        torque = max(0.0, self._asked) * MASS * WHEEL_RADIUS / 2
        rpm = forward / WHEEL_RADIUS * 60 / math.tau
        return (
            self.action.steering,
            self.action.gear,
            int(self.is_ai),
            *(forward, float(state.sideways[0]), 0.0),
            *(self._measured[0] + noise[0], self._measured[1] + noise[1], GRAVITY + noise[2]),
            *(0.0, 0.0, float(state.yaw_rate[0])),
            *(self.compass_yaw, 0.0, 0.0),
            *(longitude, latitude, altitude),
            *(rpm,) * 4,
            *(brake,) * 4,
            *(0.0, 0.0, torque, torque),
        )

    def parameters(self) -> dict[str, Any]:
        """Every parameter by name: those of the dynamics, and others that a client has set."""
        return {**{name: getattr(self._vehicle.params, name) for name in _SETTABLE}, **self._extra}

    def set_parameter(self, name: str, value: Any) -> None:
        """Set one; a name that the dynamics do not know is kept for who asks. ValueError for no positive number."""
        if name not in _SETTABLE:
            self._extra[name] = value
            return
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
            raise ValueError(f"{name} must be a positive number, not {value!r}")
        changed: dict[str, Any] = {name: float(value)}
        self._vehicle = Vehicle(replace(self._vehicle.params, **changed))

    def reset_parameters(self) -> None:
        """Back to the defaults."""
        self._extra = {}
        self._vehicle = Vehicle()
