"""The cameras that are switched on: which addresses they publish at, and what they see."""

from __future__ import annotations

from typing import Any, Final

from runtime.sim import protocol
from runtime.sim.camera import CameraPublisher, Cameras
from runtime.sim.reference.render import Camera, GroundMap, mount_of, paint
from runtime.sim.reference.sensors import ParameterError, Sensor
from runtime.sim.reference.world import World

Key = tuple[int, str]
"""Number of the car, name of the camera."""
GARBAGE: Final = b"\xff" * 57


class Studio:
    """Publishes what the enabled cameras of all cars see. It lives where the sensors are enabled, not before."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._seed = seed
        self._context = Cameras()
        self._publishers: dict[Key, CameraPublisher] = {}
        self._cameras: dict[Key, tuple[tuple[Any, ...], Camera]] = {}
        self._grounds: dict[tuple[str, bool], GroundMap] = {}

    @property
    def is_on(self) -> bool:
        """Whether any camera publishes."""
        return bool(self._publishers)

    def follow(self, sensors: list[dict[str, Sensor]]) -> None:
        """Publish from what is enabled now, at the addresses set now. ParameterError where one cannot be bound."""
        wanted = {
            (number, sensor.name): sensor
            for number, of_car in enumerate(sensors)
            for sensor in of_car.values()
            if sensor.is_camera and sensor.enabled
        }
        for key, publisher in list(self._publishers.items()):
            if key not in wanted or wanted[key].parameters[protocol.CAMERA_ADDRESS] != publisher.address:
                self._publishers.pop(key).close()
        for key in [key for key in self._cameras if key not in wanted]:
            del self._cameras[key]
        for key, sensor in wanted.items():
            if key not in self._publishers:
                try:
                    address = sensor.parameters[protocol.CAMERA_ADDRESS]
                    self._publishers[key] = self._context.publisher(address)
                except OSError as error:
                    raise ParameterError(f"{sensor.name} cannot publish: {error}") from error
            self._build(key, sensor)

    def shoot(self, *, garbage: bool = False) -> None:
        """Render and publish one frame of every camera."""
        places = [car.position for car in self._world.cars]
        for key, publisher in self._publishers.items():
            if garbage:
                publisher.send_raw(GARBAGE)
            elif key in self._cameras:
                number = key[0]
                others = places[:number] + places[number + 1 :]
                image = self._cameras[key][1].render(*places[number], others)
                publisher.send(image, int(self._world.seconds * 1e9))

    def close(self) -> None:
        """Let go of the addresses."""
        for publisher in self._publishers.values():
            publisher.close()
        self._context.close()

    def _build(self, key: Key, sensor: Sensor) -> None:
        """Make the camera anew where level, size or format changed."""
        here = self._world.map
        if here is None:
            self._cameras.pop(key, None)
            return
        look = tuple(sensor.parameters[name] for name in ("Width", "Height", "FOVAngle"))
        segmented = str(sensor.parameters["Format"]).startswith("Segm")
        made_of = (*look, segmented, here.track.name)
        if key in self._cameras and self._cameras[key][0] == made_of:
            return
        plan = (here.track.name, segmented)
        if plan not in self._grounds:
            self._grounds = {at: ground for at, ground in self._grounds.items() if at[0] == plan[0]}
            self._grounds[plan] = paint(here.track, segmented=segmented, seed=self._seed)
        width, height, angle = look
        camera = Camera(
            mount_of(sensor.name), int(width), int(height), float(angle), self._grounds[plan], segmented=segmented
        )
        self._cameras[key] = (made_of, camera)
