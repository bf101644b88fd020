"""Dynamic bicycle model of a car: two axles, load-limited tyres, over any number of cars at once.

SI units throughout; x forward, y left, angles counter-clockwise (ISO 8855). The model is the single-track model
of Rajamani, *Vehicle Dynamics and Control* (2nd ed., ch. 2), with three parts added:

- Tyre force saturates at friction times load, ``F = load * limit * tanh(stiffness * slip / limit)``, and shares
  the friction circle with drive and brakes: ``limit = sqrt(mu^2 - (a / g)^2)``.
- Braking moves load to the front axle, driving to the rear, by the height of the centre of gravity. Drive and
  brake force follow the load of each axle, so both axles reach their limit together.
- Below ``blend_speeds`` the slip angles lose their meaning (division by speed), so lateral motion goes over
  into the kinematic bicycle, which rolls without slip.

All forces are per kilogram, hence accelerations: the mass cancels out of every equation.

The equations are written once for every array library with the names of the array API standard (2023.12), such as
NumPy and torch; see ``Namespace``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

GRAVITY: Final = 9.81
"""m/s^2"""

Floats = NDArray[np.float64]
Namespace = Any
"""Module with the functions of the array API standard that the equations need: ``numpy`` or ``torch`` itself.

Passed in at construction. To derive it from the arrays at each call (``array_namespace`` of array-api-compat) takes
3 us, and each clip of its wrapper 12 us more: with 16 cars, whose step is 330 us of calls, that is a third. NumPy 2
and torch agree on every function here, and on the method ``clip``, the cheapest form of it in both."""


@dataclass(frozen=True, slots=True)
class VehicleParams:
    """Parameters of one kind of car. The defaults are a light closed-wheel racing car on slicks."""

    front_axle: float = 1.40
    """Centre of gravity to front axle, m."""
    rear_axle: float = 1.40
    """Centre of gravity to rear axle, m."""
    height: float = 0.35
    """Centre of gravity above the ground, m."""
    gyration_squared: float = 1.8
    """Yaw moment of inertia over mass, m^2; near front_axle * rear_axle for most cars."""
    friction: float = 1.35
    """Largest tyre force over load."""
    longitudinal_share: float = 0.95
    """Part of the friction that drive and brakes may take; the anti-lock keeps the rest for steering."""
    front_stiffness: float = 17.0
    """Cornering stiffness of the front axle over its load, 1/rad."""
    rear_stiffness: float = 21.0
    """The same at the rear; stiffer than the front makes the car understeer, hence stable at any speed."""
    max_steer: float = 0.30
    """Road-wheel angle at full steering, rad."""
    steer_rate: float = 1.5
    """How fast the road wheels turn, rad/s."""
    max_drive: float = 6.0
    """Largest acceleration that may be asked for, m/s^2 (Learn-to-Race's upper bound)."""
    max_brake: float = 16.0
    """Largest deceleration that may be asked for, m/s^2 (Learn-to-Race's lower bound, as a positive number)."""
    drag: float = 0.0012
    """Air resistance over mass and speed squared, 1/m."""
    rolling: float = 0.12
    """Rolling resistance over mass, m/s^2."""
    blend_speeds: tuple[float, float] = (3.0, 6.0)
    """Kinematic below the first, dynamic above the second, m/s."""

    @property
    def wheelbase(self) -> float:
        """Distance between the axles, m."""
        return self.front_axle + self.rear_axle


@dataclass(slots=True)
class VehicleState:
    """Pose and motion of B cars; every field is (B,), float64 in NumPy and float32 on a device."""

    x: Floats
    """East, m."""
    y: Floats
    """North, m."""
    yaw: Floats
    """Heading, rad, not wrapped."""
    forward: Floats
    """Body velocity forward, m/s; never negative."""
    sideways: Floats
    """Body velocity to the left, m/s."""
    yaw_rate: Floats
    """rad/s"""
    steer: Floats
    """Road-wheel angle, rad, positive to the left."""

    @classmethod
    def at_rest(cls, count: int) -> VehicleState:
        """``count`` cars at the origin, heading east, standing."""
        return cls(*(np.zeros(count) for _ in fields(cls)))

    def set_pose(self, rows: NDArray[np.intp], *, x: Floats, y: Floats, yaw: Floats, forward: Floats) -> None:
        """Set the pose of the cars ``rows``, driving straight ahead at ``forward`` m/s."""
        self.x[rows], self.y[rows], self.yaw[rows], self.forward[rows] = x, y, yaw, forward
        self.sideways[rows] = self.yaw_rate[rows] = self.steer[rows] = 0.0

    @property
    def speed(self) -> Floats:
        """Magnitude of the velocity, m/s."""
        # Not hypot: this form has the same name and meaning for the arrays of every library.
        speed: Floats = (self.forward * self.forward + self.sideways * self.sideways) ** 0.5
        return speed


class Vehicle:
    """The equations of motion for one kind of car."""

    def __init__(self, params: VehicleParams | None = None, xp: Namespace = np) -> None:
        """``xp`` is the library of the arrays that `advance` gets."""
        self.params = params or VehicleParams()
        self._xp = xp

    def advance(
        self, state: VehicleState, steering: Floats, acceleration: Floats, seconds: float, substeps: int = 5
    ) -> None:
        """Move ``state`` on by ``seconds`` under constant commands, in place.

        ``steering`` (B,) is the share of full lock in [-1, 1], left positive; ``acceleration`` (B,) is in m/s^2,
        negative to brake; both are clipped. Brakes bring the car to rest and hold it: there is no reverse gear.
        Semi-implicit Euler steps of 20 ms are stable down to the blend speeds with the stiffness of the defaults.
        """
        p, xp = self.params, self._xp
        dt = seconds / substeps
        wheel = steering.clip(-1.0, 1.0) * p.max_steer
        grip = p.longitudinal_share * p.friction * GRAVITY
        # Limited by the tyres first: the brakes could ask for more than the road gives.
        a = acceleration.clip(-min(p.max_brake, grip), min(p.max_drive, grip))
        limit = xp.sqrt(p.friction**2 - (a / GRAVITY) ** 2)
        front_load = (GRAVITY * p.rear_axle - a * p.height) / p.wheelbase
        front_push = a * front_load / GRAVITY
        front_max, rear_max = front_load * limit, (GRAVITY - front_load) * limit
        front_gain, rear_gain = p.front_stiffness / limit, p.rear_stiffness / limit
        low, high = p.blend_speeds
        for _ in range(substeps):
            state.steer = state.steer + (wheel - state.steer).clip(-p.steer_rate * dt, p.steer_rate * dt)
            u, v, r = state.forward, state.sideways, state.yaw_rate
            cos, sin = xp.cos(state.steer), xp.sin(state.steer)
            # Slip angles divide by the speed; below the blend range they are not used, only kept finite.
            rolling_speed = u.clip(low, None)
            front_slip = state.steer - xp.atan((v + p.front_axle * r) / rolling_speed)
            front = front_max * xp.tanh(front_gain * front_slip)
            rear = rear_max * xp.tanh(rear_gain * -xp.atan((v - p.rear_axle * r) / rolling_speed))
            blend = ((u - low) / (high - low)).clip(0.0, 1.0)
            # The front wheels push along their own direction, as their tyres push across it.
            turned = front * cos + front_push * sin
            u_dot = a - p.drag * u * u - p.rolling
            u_dot = u_dot + blend * (v * r - front * sin - front_push * (1.0 - cos))
            # No reverse gear: brakes hold the car.
            u_next = (u + dt * u_dot).clip(0.0, None)
            v_next = v + dt * (turned + rear - u * r)
            r_next = r + dt * (p.front_axle * turned - p.rear_axle * rear) / p.gyration_squared
            # Rolling without slip: the yaw rate follows from speed and road-wheel angle alone.
            r_rolling = u_next * sin / (cos * p.wheelbase)
            state.forward = u_next
            state.yaw_rate = r_rolling + blend * (r_next - r_rolling)
            v_rolling = p.rear_axle * r_rolling
            state.sideways = v_rolling + blend * (v_next - v_rolling)
            state.yaw = state.yaw + dt * state.yaw_rate
            cos, sin = xp.cos(state.yaw), xp.sin(state.yaw)
            state.x = state.x + dt * (cos * state.forward - sin * state.sideways)
            state.y = state.y + dt * (sin * state.forward + cos * state.sideways)
