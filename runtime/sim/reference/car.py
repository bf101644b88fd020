"""One car of the reference simulator: shared dynamics, gears, and the values of its sensors."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any, Final

import numpy as np

from runtime.sim.reference.sensors import ParameterError
from runtime.sim.wire import protocol
from runtime.tracks.maps import LocalFrame
from runtime.tracks.vehicle import GRAVITY, Vehicle, VehicleParams, VehicleState

WHEEL_RADIUS: Final = 0.33
"""m"""
MASS: Final = 1150.0
"""kg; only used for torque readings, not for the motion."""
REVERSE_SPEED: Final = 6.0
"""m/s"""
PARK_BRAKE: Final = -8.0
"""m/s^2"""
IMU_NOISE: Final = 0.02
"""m/s^2, standard deviation of the accelerometer."""
VEHICLE_CLASS: Final = "ReferenceCar"
_SETTABLE: Final = tuple(field.name for field in fields(VehicleParams) if field.name != "blend_speeds")


class Car:
    """One car: set its ``action``, ``advance`` it, read its ``pose``."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.is_ai = True
        """Driven by actions from the wire; otherwise it coasts."""
        self.begin(rng)
        self._extra: dict[str, Any] = {}
        self._vehicle = Vehicle()
        self.set_pose(0.0, 0.0, 0.0)

    def begin(self, rng: np.random.Generator) -> None:
        """Reset the action; ``rng`` generates the sensor noise."""
        self.action = protocol.Action(0.0, 0.0)
        self._rng = rng

    def set_pose(self, x: float, y: float, yaw: float, forward: float = 0.0) -> None:
        """Set its position: x east and y north in m, ``yaw`` in rad from the east, ``forward`` in m/s."""
        self._state = VehicleState.at_rest(1)
        pose = {"x": x, "y": y, "yaw": yaw, "forward": forward}
        self._state.set_pose(np.zeros(1, dtype=np.intp), **{name: np.array([pose[name]]) for name in pose})
        self._backwards = 0.0
        self._measured = (0.0, 0.0)
        self._pedal_acceleration = 0.0

    def advance(self, seconds: float, substeps: int) -> None:
        """Simulate the given time with the current action."""
        state = self._state
        acceleration = self._pedal()
        before = state.forward[0], state.sideways[0]
        if self._backwards > 0 or (self.action.gear == protocol.REVERSE and state.forward[0] < 0.01):
            self._reverse(seconds)
        else:
            steering = np.array([self.action.steering])
            self._vehicle.advance(state, steering, np.array([acceleration]), seconds, substeps)
        # Accelerations in the rotating frame of the car: dv/dt plus omega times v.
        turning = state.yaw_rate[0]
        self._pedal_acceleration = acceleration
        self._measured = (
            float((state.forward[0] - before[0]) / seconds - turning * state.sideways[0]),
            float((state.sideways[0] - before[1]) / seconds + turning * state.forward[0]),
        )

    def _pedal(self) -> float:
        gear, acceleration = self.action.gear, self.action.acceleration
        if not self.is_ai:
            return 0.0
        if gear == protocol.PARK:
            return PARK_BRAKE
        return min(acceleration, 0.0) if gear != protocol.DRIVE else acceleration

    def _reverse(self, seconds: float) -> None:
        """Drive backwards with a kinematic bicycle model: at 6 m/s tyres hardly slip."""
        state, params = self._state, self._vehicle.params
        acceleration = self.action.acceleration if self.action.gear == protocol.REVERSE else PARK_BRAKE
        self._backwards = min(REVERSE_SPEED, max(0.0, self._backwards + min(acceleration, 3.0) * seconds))
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
        """Heading in the protocol's convention: 0 to the north, counter-clockwise, within ±pi, rad."""
        return math.remainder(self.position[2] - math.pi / 2, math.tau)

    def pose(self, frame: LocalFrame) -> tuple[float, ...]:
        """Return the 30 values of the pose."""
        state, params = self._state, self._vehicle.params
        x, y, _ = self.position
        forward = float(state.forward[0]) - self._backwards
        latitude, longitude, altitude = frame.to_geodetic(x, y, 0.0)
        # Always three numbers: the noise sequence must not depend on the motion.
        noise = self._rng.normal(0.0, IMU_NOISE, 3).tolist()
        brake = max(0.0, -self._pedal_acceleration) / params.max_brake
        torque = max(0.0, self._pedal_acceleration) * MASS * WHEEL_RADIUS / 2
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
        """Return every parameter by name: parameters of the dynamics, and others that a client has set."""
        return {**{name: getattr(self._vehicle.params, name) for name in _SETTABLE}, **self._extra}

    def set_parameter(self, name: str, value: Any) -> None:
        """Set a parameter; an unknown name is only stored. Raises ParameterError if a value is not positive."""
        if name not in _SETTABLE:
            self._extra[name] = value
            return
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
            raise ParameterError(f"{name} must be a positive number, not {value!r}")
        changed: dict[str, Any] = {name: float(value)}
        self._vehicle = Vehicle(replace(self._vehicle.params, **changed))

    def reset_parameters(self) -> None:
        """Restore the defaults."""
        self._extra = {}
        self._vehicle = Vehicle()
