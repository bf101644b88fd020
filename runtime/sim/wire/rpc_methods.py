"""Calls of the control port as values: method, params, and the decoder of the response.

Both clients (``controller``) send these, so each method is written once. A response that the decoder rejects is an
error of the call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from runtime.sim.wire.protocol import DRIVER, DRIVER_MODE

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One call; ``read`` decodes its result or raises ValueError, TypeError or KeyError."""

    method: str
    params: Mapping[str, Any]
    read: Callable[[Any], T]
    is_slow: bool = False
    """The lab's simulator needs about three seconds after this call."""


@dataclass(frozen=True, slots=True)
class VehiclePose:
    """Position of a vehicle: east, north, up in m from the level's reference point, and its heading in rad."""

    position: tuple[float, float, float]
    yaw: float


@dataclass(frozen=True, slots=True)
class SensorState:
    """Settings of a sensor."""

    enabled: bool
    parameters: Mapping[str, Any]


def open_level(level: str) -> Call[None]:
    """Open a level, by name or by the path of its map."""
    return Call("open_level", {"level_name": level}, _nothing, is_slow=True)


def reset_level() -> Call[None]:
    """Put every vehicle back on its grid position; parameters are kept."""
    return Call("reset_level", {}, _nothing)


def get_level() -> Call[str]:
    """Get the name of the open level, in lower case; ``MainMenu`` after the start."""
    return Call("get_level", {}, _text)


def get_levels() -> Call[list[str]]:
    """Get the levels that can be opened."""
    return Call("get_levels", {}, lambda result: [_text(level) for level in _list(result)])


def get_level_vehicles() -> Call[dict[int, str]]:
    """Get the vehicles of the level: id to name of the class."""
    return Call("get_level_vehicles", {}, _vehicles)


def get_vehicle_classes() -> Call[list[str]]:
    """Get the classes of vehicles."""
    return Call("get_vehicle_classes", {}, lambda result: [str(name) for name in _list(result)])


def get_vehicle_state(vehicle: int = 0) -> Call[VehiclePose]:
    """Get the position of a vehicle."""
    return Call("get_vehicle_state", {"veh_id": vehicle}, _state)


def set_vehicle_position(
    x: float, y: float, z: float, *, yaw: float, pitch: float = 0.0, roll: float = 0.0, vehicle: int = 0
) -> Call[None]:
    """Set the position of a vehicle: m from the level's reference point, angles in degrees."""
    location = {"x": x, "y": y, "z": z}
    rotation = {"yaw": yaw, "pitch": pitch, "roll": roll}
    params = {"veh_id": vehicle, "location": location, "rotation": rotation}
    return Call("set_vehicle_position", params, _nothing, is_slow=True)


def get_vehicle_params(vehicle: int = 0) -> Call[Mapping[str, Any]]:
    """Get the parameters of a vehicle by name."""
    return Call("get_vehicle_params", {"veh_id": vehicle}, _mapping)


def set_vehicle_params(parameters: Mapping[str, Any], vehicle: int = 0) -> Call[None]:
    """Set parameters of a vehicle."""
    return Call("set_vehicle_params", {"veh_id": vehicle, "parameters": _pairs(parameters)}, _nothing)


def reset_default_vehicle_params(vehicle: int = 0) -> Call[None]:
    """Reset all parameters of a vehicle."""
    return Call("reset_default_vehicle_params", {"veh_id": vehicle}, _nothing)


def get_sensors_params(vehicle: int = 0) -> Call[list[Any]]:
    """Get every sensor of a vehicle with its parameters, as the simulator sends them."""
    return Call("get_sensors_params", {"veh_id": vehicle}, _list)


def get_sensor_params(sensor: str, vehicle: int = 0) -> Call[SensorState]:
    """Get the settings of one sensor."""
    return Call("get_sensor_params", {"veh_id": vehicle, "sensor_name": sensor}, _sensor)


def get_sensor_param(sensor: str, parameter: str, vehicle: int = 0) -> Call[Any]:
    """Get the value of one parameter of a sensor."""
    params = {"veh_id": vehicle, "sensor_name": sensor, "parameter_name": parameter}
    return Call("get_sensor_param", params, lambda result: result)


def set_sensor_param(sensor: str, parameter: str, value: Any, vehicle: int = 0) -> Call[None]:
    """Set one parameter of a sensor."""
    params = {"veh_id": vehicle, "sensor_name": sensor, "parameter_name": parameter, "value": value}
    # The mode takes effect immediately.
    return Call("set_sensor_param", params, _zero, is_slow=parameter != DRIVER_MODE)


def set_sensor_params(sensor: str, parameters: Mapping[str, Any], vehicle: int = 0) -> Call[None]:
    """Set several parameters of a sensor."""
    params = {"veh_id": vehicle, "sensor_name": sensor, "parameters": _pairs(parameters)}
    return Call("set_sensor_params", params, _zero, is_slow=True)


def enable_sensor(sensor: str, vehicle: int = 0) -> Call[None]:
    """Enable a sensor; clients do so before they set its parameters."""
    return Call("enable_sensor", {"veh_id": vehicle, "sensor_name": sensor}, _zero)


def disable_sensor(sensor: str, vehicle: int = 0) -> Call[None]:
    """Disable a sensor."""
    return Call("disable_sensor", {"veh_id": vehicle, "sensor_name": sensor}, _zero)


def set_mode_ai(*, ai: bool = True, vehicle: int = 0) -> Call[None]:
    """Choose the driver of a vehicle: actions from the wire, or a person at the wheel."""
    return set_sensor_param(DRIVER, DRIVER_MODE, ai, vehicle)


def use_udp(pose_address: str, vehicle: int = 0) -> Call[None]:
    """Drive the vehicle by actions over UDP, and send its poses to ``pose_address``."""
    parameters = {"DriverAPIClass": "VApiUdp", "DriverAPI_UDP_SendAddress": pose_address, "InputSource": "AI"}
    return set_sensor_params(DRIVER, parameters, vehicle)


def _nothing(_: Any) -> None:
    """Accept any response."""


def _zero(result: Any) -> None:
    """Check for success, which is 0."""
    # Older versions of the simulator respond with null.
    if result not in (0, None, True):
        raise ValueError(f"the simulator answered {result!r} instead of 0")


def _text(result: Any) -> str:
    if not isinstance(result, str):
        raise TypeError("a text was expected")
    return result


def _list(result: Any) -> list[Any]:
    if not isinstance(result, list):
        raise TypeError("a list was expected")
    return result


def _mapping(result: Any) -> Mapping[str, Any]:
    # Parameters of vehicles are an object, parameters of sensors a list of {name, value}.
    if isinstance(result, list):
        return {_text(pair["name"]): pair.get("value") for pair in result}
    if not isinstance(result, dict):
        raise TypeError("an object was expected")
    return result


def _vehicles(result: Any) -> dict[int, str]:
    return {int(vehicle["veh_id"]): str(vehicle["vehicle_class_name"]) for vehicle in _list(result)}


def _state(result: Any) -> VehiclePose:
    x, y, z = (float(value) for value in _list(result["pos_xyz"]))
    yaw = float(result["yaw"])
    if not all(map(math.isfinite, (x, y, z, yaw))):
        raise ValueError("a position of numbers that are not finite")
    return VehiclePose((x, y, z), yaw)


def _sensor(result: Any) -> SensorState:
    return SensorState(bool(result["enabled"]), _mapping(result["parameters"]))


def _pairs(parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in parameters.items()]
