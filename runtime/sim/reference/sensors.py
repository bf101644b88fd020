"""The sensors of one car, as the control port shows them: names, whether enabled, parameters with defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from runtime.sim import protocol

MAX_SIDE: Final = 2048
"""Largest width and height of an image, pixels."""
VEHICLE_PORT_STEP: Final = 10
"""Between the action and pose ports of one car and those of the next."""
VEHICLE_CAMERA_STEP: Final = 100
"""Between the default camera ports of one car and those of the next."""


class ParameterError(ValueError):
    """A parameter cannot take this value; the sentence names both."""


@dataclass(slots=True)
class Sensor:
    """One sensor of one car."""

    name: str
    enabled: bool
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def is_camera(self) -> bool:
        """Whether it publishes images."""
        return self.name in protocol.CAMERA_PORTS

    def set(self, name: str, value: Any) -> None:
        """Set a parameter, known or not: clients of other versions set some that mean nothing here.

        ParameterError for a value that a known one cannot take; numbers may come as text.
        """
        if self.is_camera and name in ("Width", "Height", "FOVAngle"):
            value = _number(name, value, least=1, most=170 if name == "FOVAngle" else MAX_SIDE)
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
        """What ``get_sensor_params`` answers."""
        named = [{"name": name, "value": value} for name, value in self.parameters.items()]
        return {"sensor_name": self.name, "enabled": self.enabled, "parameters": named}


def _number(name: str, value: Any, *, least: float, most: float) -> int | float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not least <= number <= most:
        raise ParameterError(f"{name} must be a number from {least:g} to {most:g}, not {value!r}")
    return int(number) if number == int(number) else number


@dataclass(frozen=True, slots=True)
class WireAddresses:
    """Where a simulator listens and sends, before a client says otherwise."""

    host: str = "127.0.0.1"
    """Where control, actions and cameras are bound."""
    control: int = protocol.CONTROL_PORT
    action: int = protocol.ACTION_PORT
    pose_host: str = "127.0.0.1"
    pose: int = protocol.POSE_PORT
    cameras: int | None = None
    """Port of the first camera, the others follow; None for the lab's own ports."""

    def camera(self, vehicle: int, name: str) -> str:
        """ZeroMQ address of a camera of the car ``vehicle``."""
        if self.cameras is None:
            port = protocol.CAMERA_PORTS[name] + VEHICLE_CAMERA_STEP * vehicle
        else:
            port = self.cameras + len(protocol.CAMERA_PORTS) * vehicle + list(protocol.CAMERA_PORTS).index(name)
        return f"tcp://{self.host}:{port}"


def sensors_of(vehicle: int, addresses: WireAddresses) -> dict[str, Sensor]:
    """Return the sensors of a car as they are after the start: a driver that listens, cameras that do not send."""
    driver: Mapping[str, Any] = {
        "DriverAPIClass": "VApiUdp",
        "DriverAPI_UDP_SendAddress": addresses.pose_host,
        "InputSource": "AI",
        protocol.DRIVER_MODE: True,
    }
    found = {protocol.DRIVER: Sensor(protocol.DRIVER, enabled=True, parameters=dict(driver))}
    for name in protocol.CAMERA_PORTS:
        parameters = {
            protocol.CAMERA_ADDRESS: addresses.camera(vehicle, name),
            "Format": "SegmBGR8" if name.endswith("Segm") else "ColorBGR8",
            "FOVAngle": 90,
            "Width": 512,
            "Height": 384,
            "bAutoAdvertise": True,
        }
        found[name] = Sensor(name, enabled=False, parameters=parameters)
    return found


def set_all(sensor: Sensor, parameters: Any) -> None:
    """Set parameters given as ``[{name, value}, ...]`` or as an object, all of them or none. ParameterError."""
    pairs: Iterable[tuple[Any, Any]]
    if isinstance(parameters, dict):
        pairs = parameters.items()
    elif isinstance(parameters, list) and all(
        isinstance(each, dict) and {"name", "value"} <= each.keys() for each in parameters
    ):
        pairs = [(each["name"], each["value"]) for each in parameters]
    else:
        raise ParameterError("parameters must be a list of {name, value}")
    trial = Sensor(sensor.name, sensor.enabled, dict(sensor.parameters))
    for name, value in pairs:
        trial.set(str(name), value)
    sensor.parameters = trial.parameters
