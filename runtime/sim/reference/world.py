"""World of the reference simulator: levels, the open level and its starting grid; cars with shared dynamics,
gears, and sensors as the control port shows them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

import numpy as np

from runtime.sim.wire import protocol
from runtime.tracks.maps import (
    FILE_FAMILIES,
    LAB_LEVELS,
    STAND_INS,
    LocalFrame,
    TrackMap,
    own_map,
    plain_name,
    short_name,
)
from runtime.tracks.track import COURSES
from runtime.tracks.vehicle import GRAVITY, Vehicle, VehicleParams, VehicleState

MAX_SIDE: Final = 2048
"""Largest width and height of an image, pixels."""
VEHICLE_PORT_STEP: Final = 10
"""Distance between the action and pose ports of one car and the next."""
VEHICLE_CAMERA_STEP: Final = 100
"""Distance between the default camera ports of one car and the next."""


class ParameterError(ValueError):
    """A parameter cannot have this value; the sentence names both."""


@dataclass(slots=True)
class Sensor:
    """One sensor of one car."""

    name: str
    enabled: bool
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def is_camera(self) -> bool:
        """True for a sensor that publishes images."""
        return self.name in protocol.CAMERA_PORTS

    def set(self, name: str, value: Any) -> None:
        """Set a parameter; numbers may be given as text. Raises ParameterError for an invalid value of a known
        one.
        """
        # Unknown ones are stored: clients of other versions set some that have no effect here.
        if self.is_camera and name in ("Width", "Height", "FOVAngle"):
            value = _number(name, value, low=1, high=170 if name == "FOVAngle" else MAX_SIDE)
        elif name == protocol.DRIVER_MODE:
            value = value if isinstance(value, bool) else str(value).lower() in ("true", "1")
        elif (
            self.is_camera
            and name == protocol.CAMERA_ADDRESS
            and not (isinstance(value, str) and value.startswith("tcp://"))
        ):
            raise ParameterError(f"{name} must be an address like tcp://0.0.0.0:8008, not {value!r}")
        self.parameters[name] = value

    def described(self) -> dict[str, Any]:
        """Return the result of ``get_sensor_params``."""
        named = [{"name": name, "value": value} for name, value in self.parameters.items()]
        return {"sensor_name": self.name, "enabled": self.enabled, "parameters": named}


def _number(name: str, value: Any, *, low: float, high: float) -> int | float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not low <= number <= high:
        raise ParameterError(f"{name} must be a number from {low:g} to {high:g}, not {value!r}")
    return int(number) if number == int(number) else number


@dataclass(frozen=True, slots=True)
class WireAddresses:
    """Default addresses at which a simulator listens and to which it sends."""

    host: str = "127.0.0.1"
    """Address for control, actions and cameras."""
    control: int = protocol.CONTROL_PORT
    action: int = protocol.ACTION_PORT
    pose_host: str = "127.0.0.1"
    pose: int = protocol.POSE_PORT
    cameras: int | None = None
    """Port of the first camera, followed by the others; None for the lab's own ports."""

    def camera(self, vehicle: int, name: str) -> str:
        """Return the ZeroMQ address of a camera of the car ``vehicle``."""
        step = VEHICLE_CAMERA_STEP if self.cameras is None else len(protocol.CAMERA_PORTS)
        return f"tcp://{self.host}:{protocol.camera_port(name, self.cameras) + step * vehicle}"


def sensors_of(vehicle: int, addresses: WireAddresses) -> dict[str, Sensor]:
    """Return the initial sensors of a car: an enabled driver, disabled cameras."""
    driver: Mapping[str, Any] = {
        "DriverAPIClass": "VApiUdp",
        "DriverAPI_UDP_SendAddress": addresses.pose_host,
        "InputSource": "AI",
        protocol.DRIVER_MODE: True,
    }
    sensors = {protocol.DRIVER: Sensor(protocol.DRIVER, enabled=True, parameters=dict(driver))}
    for name in protocol.CAMERA_PORTS:
        parameters = {
            protocol.CAMERA_ADDRESS: addresses.camera(vehicle, name),
            "Format": "SegmBGR8" if name.endswith("Segm") else "ColorBGR8",
            "FOVAngle": 90,
            "Width": 512,
            "Height": 384,
            "bAutoAdvertise": True,
        }
        sensors[name] = Sensor(name, enabled=False, parameters=parameters)
    return sensors


def set_all(sensor: Sensor, parameters: Any) -> None:
    """Set parameters from ``[{name, value}, ...]`` or an object, all or none. Raises ParameterError."""
    try:
        # Pairs, not a dict: each value is checked, even if a name occurs twice.
        pairs = (
            list(parameters.items())
            if isinstance(parameters, dict)
            else [(pair["name"], pair["value"]) for pair in parameters]
        )
    except (TypeError, KeyError) as error:
        raise ParameterError("parameters must be a list of {name, value}") from error
    # On a copy: an invalid value must not leave earlier ones set.
    trial = Sensor(sensor.name, sensor.enabled, dict(sensor.parameters))
    for name, value in pairs:
        trial.set(str(name), value)
    sensor.parameters = trial.parameters


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


GRID_GAP: Final = 8.0
"""Metres between two cars on the starting grid."""
GRID_OFFSET: Final = 2.0
"""Metres from the centre line, on alternating sides. A single car starts on the line."""


class World:
    """Levels by name, the open level, and its cars."""

    def __init__(self, vehicles: int, seed: int, maps: Mapping[str, TrackMap]) -> None:
        self._seed = seed
        self._maps = dict(maps)
        """Maps from files by plain name; they take precedence over courses of the same name."""
        self.level = protocol.MAIN_MENU
        self.map: TrackMap | None = None
        """None in the main menu."""
        self.seconds = 0.0
        """Simulated time since the level was opened."""
        self._count = vehicles
        self.cars = self._new_cars()

    def levels(self) -> list[str]:
        """Return the names that ``open`` accepts; it accepts paths that contain them too."""
        names = [*COURSES, *(name for name in LAB_LEVELS if self._is_offered(plain_name(name)))]
        return [*self._maps, *(name for name in names if plain_name(name) not in self._maps)]

    def _is_offered(self, level: str) -> bool:
        """Return whether one of the lab's levels can be opened: from a file, or as a course if no file was
        given.
        """
        return not self._maps or self._from_file(level) is not None

    def _from_file(self, level: str) -> TrackMap | None:
        """Return the map from the file of a level, or from a file whose name contains the level."""
        if level in self._maps or level not in FILE_FAMILIES:
            return self._maps.get(level)
        family = FILE_FAMILIES[level]
        return next((track_map for name, track_map in self._maps.items() if name.startswith(family)), None)

    def open(self, level: str) -> None:
        """Open a level and put all cars on its grid. Raises KeyError for an unknown level."""
        plain = plain_name(level)
        if (track_map := self._from_file(plain)) is not None:
            self.map = track_map
        elif plain in COURSES:
            self.map = own_map(plain)
        elif plain in STAND_INS and self._is_offered(plain):
            self.map = own_map(STAND_INS[plain])
            course = STAND_INS[plain]
            print(f"simulator: level {plain} has no --track file; course {course} stands in, elsewhere", flush=True)
        else:
            raise KeyError(level)
        self.level = short_name(level).removesuffix(".json")
        self.cars = self._new_cars()
        self.reset()

    def _new_cars(self) -> list[Car]:
        """Create cars with default parameters and noise that only depends on the seed: runs repeat exactly."""
        return [Car(np.random.default_rng([self._seed, number])) for number in range(self._count)]

    def reset(self) -> None:
        """Put all cars back on the grid; parameters are kept, and the noise restarts."""
        self.seconds = 0.0
        if self.map is None:
            return
        track = self.map.track
        for number, car in enumerate(self.cars):
            # Backwards from the finish line, alternating sides.
            at = -round(number * GRID_GAP / track.step) % len(track.heading)
            heading = float(track.heading[at])
            side = 0.0 if len(self.cars) == 1 else GRID_OFFSET * (-1) ** number
            x, y = track.centre[at].tolist()
            car.set_pose(x - side * math.sin(heading), y + side * math.cos(heading), heading)
            car.begin(np.random.default_rng([self._seed, number]))

    def advance(self, seconds: float, substeps: int = 1) -> None:
        """Advance every car."""
        for car in self.cars:
            car.advance(seconds, substeps)
        self.seconds += seconds

    def pose(self, number: int) -> bytes:
        """Return the pose datagram of a car."""
        if self.map is None:
            raise RuntimeError("there is no pose in the main menu")
        return protocol.pack_pose(self.cars[number].pose(self.map.frame))

    def state(self, number: int) -> dict[str, Any]:
        """Return the result of ``get_vehicle_state``."""
        car = self.cars[number]
        x, y, _ = car.position
        return {"pos_xyz": [x, y, 0.0], "yaw": car.compass_yaw, "vehicle_class_name": VEHICLE_CLASS}
