"""Control methods as plain calls: text of a request in, text of the response out; no sockets."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from runtime.base import bounded_json
from runtime.sim.reference.world import (
    VEHICLE_CLASS,
    Car,
    ParameterError,
    Sensor,
    WireAddresses,
    World,
    sensors_of,
    set_all,
)
from runtime.sim.wire import protocol

PARSE_ERROR, INVALID_REQUEST, NO_METHOD, INVALID_PARAMS = -32700, -32600, -32601, -32602
OK: Final = 0
"""Result of the sensor methods on success."""


class RpcRefusal(Exception):  # noqa: N818  (a response, not a fault of the program)
    """Error response: JSON-RPC's code and a sentence."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class ControlMethods:
    """Methods of the control port for one world; a ParameterError becomes an error response to the client.

    ``changed`` is called after calls that may have changed sensors or cars.
    """

    def __init__(self, world: World, addresses: WireAddresses, changed: Callable[[], None]) -> None:
        self.world = world
        self.sensors = [sensors_of(number, addresses) for number in range(len(world.cars))]
        self._changed = changed
        self._methods: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
            "open_level": self._open_level,
            "reset_level": self._reset_level,
            "get_level": lambda _: self.world.level,
            "get_levels": lambda _: self.world.levels(),
            "get_level_vehicles": self._get_level_vehicles,
            "get_vehicle_classes": lambda _: [VEHICLE_CLASS],
            "get_vehicle_state": lambda params: self.world.state(self._vehicle(params)),
            "set_vehicle_position": self._set_vehicle_position,
            "get_vehicle_params": lambda params: self._car(params).parameters(),
            "set_vehicle_params": self._set_vehicle_params,
            "reset_default_vehicle_params": lambda params: self._car(params).reset_parameters(),
            "get_sensors_params": self._get_sensors_params,
            "get_sensor_params": lambda params: self._sensor(params).described(),
            "get_sensor_param": self._get_sensor_param,
            "set_sensor_param": self._set_sensor_param,
            "set_sensor_params": self._set_sensor_params,
            "enable_sensor": lambda params: self._switch(params, enabled=True),
            "disable_sensor": lambda params: self._switch(params, enabled=False),
        }

    def respond(self, text: str | bytes) -> str | None:
        """Execute a request and return the response; None for a notification, which has none (JSON-RPC 2.0)."""
        try:
            request = bounded_json.loads(text)
        except ValueError as error:
            return _refused(None, RpcRefusal(PARSE_ERROR, f"not JSON: {error}"))
        if not isinstance(request, dict) or not isinstance(request.get("method"), str):
            return _refused(None, RpcRefusal(INVALID_REQUEST, "a request is an object with a method"))
        number = request.get("id")
        try:
            result = self._call(request["method"], request.get("params"))
        except RpcRefusal as refusal:
            return _refused(number, refusal)
        return json.dumps({"jsonrpc": "2.0", "result": result, "id": number}) if "id" in request else None

    def _call(self, method: str, params: Any) -> Any:
        if (handler := self._methods.get(method)) is None:
            raise RpcRefusal(NO_METHOD, f"unknown method {method[:100]!r}")
        if not isinstance(params, dict | None):
            raise RpcRefusal(INVALID_PARAMS, "params must be an object")
        try:
            return handler(params or {})
        except ParameterError as error:
            raise RpcRefusal(INVALID_PARAMS, str(error)) from error

    def _vehicle(self, params: Mapping[str, Any]) -> int:
        number = params.get("veh_id", 0)
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(self.world.cars):
            raise ParameterError(f"unknown vehicle {number!r}")
        return number

    def _car(self, params: Mapping[str, Any]) -> Car:
        return self.world.cars[self._vehicle(params)]

    def _sensor(self, params: Mapping[str, Any]) -> Sensor:
        sensors, name = self.sensors[self._vehicle(params)], params.get("sensor_name")
        if not isinstance(name, str) or name not in sensors:
            raise ParameterError(f"unknown sensor {name!r}; the sensors are {', '.join(sensors)}")
        return sensors[name]

    def _open_level(self, params: Mapping[str, Any]) -> None:
        level = params.get("level_name")
        try:
            self.world.open(level if isinstance(level, str) else "")
        except KeyError as error:
            levels = ", ".join(self.world.levels())
            raise ParameterError(f"unknown level {level!r}; the levels are {levels}") from error
        self._apply()

    def _reset_level(self, _: Mapping[str, Any]) -> None:
        self.world.reset()
        self._apply()

    def _get_level_vehicles(self, _: Mapping[str, Any]) -> list[dict[str, Any]]:
        if self.world.map is None:
            return []
        return [{"veh_id": number, "vehicle_class_name": VEHICLE_CLASS} for number in range(len(self.world.cars))]

    def _set_vehicle_position(self, params: Mapping[str, Any]) -> None:
        location, rotation = params.get("location"), params.get("rotation", {})
        try:
            x, y = float(location["x"]), float(location["y"])  # type: ignore[index]  # TypeError says so too
            yaw = math.radians(float(rotation.get("yaw", 0.0)))
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise ParameterError("location {x, y, z} and rotation {yaw, pitch, roll} are needed") from error
        if not all(map(math.isfinite, (x, y, yaw))):
            raise ParameterError("a position of numbers that are not finite")
        self._car(params).set_pose(x, y, yaw + math.pi / 2)  # converts from "from north" to "from east"
        self._apply()

    def _set_vehicle_params(self, params: Mapping[str, Any]) -> None:
        car, pairs = self._car(params), params.get("parameters")
        if not isinstance(pairs, list) or not all(isinstance(pair, dict) and "name" in pair for pair in pairs):
            raise ParameterError("parameters must be a list of {name, value}")
        for pair in pairs:
            car.set_parameter(str(pair["name"]), pair.get("value"))

    def _get_sensors_params(self, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [sensor.described() for sensor in self.sensors[self._vehicle(params)].values()]

    def _get_sensor_param(self, params: Mapping[str, Any]) -> Any:
        sensor, name = self._sensor(params), params.get("parameter_name")
        if name not in sensor.parameters:
            raise ParameterError(f"{sensor.name} has no parameter {name!r}")
        return sensor.parameters[name]

    def _set_sensor_param(self, params: Mapping[str, Any]) -> int:
        pairs = [{"name": params.get("parameter_name"), "value": params.get("value")}]
        return self._set_sensor_params({**params, "parameters": pairs})

    def _set_sensor_params(self, params: Mapping[str, Any]) -> int:
        sensor = self._sensor(params)
        # All or nothing: if the new settings cannot be applied, the old ones are restored.
        before = dict(sensor.parameters)
        set_all(sensor, params.get("parameters"))
        try:
            self._apply()
        except ParameterError:
            sensor.parameters = before
            self._apply()
            raise
        return OK

    def _switch(self, params: Mapping[str, Any], *, enabled: bool) -> int:
        sensor = self._sensor(params)
        before, sensor.enabled = sensor.enabled, enabled
        try:
            self._apply()
        except ParameterError:
            sensor.enabled = before
            raise
        return OK

    def _apply(self) -> None:
        """Apply the sensors' settings to the cars and the sockets."""
        for car, sensors in zip(self.world.cars, self.sensors, strict=True):
            driver = sensors[protocol.DRIVER]
            car.is_ai = bool(driver.parameters[protocol.DRIVER_MODE]) and driver.enabled
        self._changed()


def _refused(number: Any, refusal: RpcRefusal) -> str:
    return json.dumps({"jsonrpc": "2.0", "error": {"code": refusal.code, "message": str(refusal)}, "id": number})
