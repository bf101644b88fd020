"""Sensors of one car as the control port shows them: names, switches, parameters with defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from runtime.sim.wire import protocol

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
