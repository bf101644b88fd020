"""Enabled cameras of all cars: their publishers and their renderers."""

from __future__ import annotations

from typing import Any, Final

from runtime.sim.reference.render import Camera, GroundMap, mount_of, paint
from runtime.sim.reference.sensors import ParameterError, Sensor
from runtime.sim.reference.world import World
from runtime.sim.wire import protocol
from runtime.sim.wire.camera import CameraPublisher, Cameras

Key = tuple[int, str]
"""Number of the car, name of the camera."""
GARBAGE: Final = b"\xff" * 57


class CameraRig:
    """Publishers and renderers of the enabled cameras. Created with the first enabled camera."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._seed = seed
        self._context = Cameras()
        self._publishers: dict[Key, CameraPublisher] = {}
        self._cameras: dict[Key, tuple[tuple[Any, ...], Camera]] = {}
        self._grounds: dict[tuple[str, bool], GroundMap] = {}

    @property
    def is_on(self) -> bool:
        """True while any camera publishes."""
        return bool(self._publishers)

    def follow(self, sensors: list[dict[str, Sensor]]) -> None:
        """Apply the sensors' settings to the publishers. Raises ParameterError if an address cannot be bound."""
        enabled = {
            (number, sensor.name): sensor
            for number, of_car in enumerate(sensors)
            for sensor in of_car.values()
            if sensor.is_camera and sensor.enabled
        }
        # Closed before others are bound: a camera may take over another's address.
        for key, publisher in list(self._publishers.items()):
            if key not in enabled or enabled[key].parameters[protocol.CAMERA_ADDRESS] != publisher.address:
                self._publishers.pop(key).close()
        for key in [key for key in self._cameras if key not in enabled]:
            del self._cameras[key]
        for key, sensor in enabled.items():
            if key not in self._publishers:
                try:
                    address = sensor.parameters[protocol.CAMERA_ADDRESS]
                    self._publishers[key] = CameraPublisher(self._context, address)
                except OSError as error:
                    raise ParameterError(f"{sensor.name} cannot publish: {error}") from error
            self._build(key, sensor)

    def publish_frames(self, *, garbage: bool = False) -> None:
        """Render and publish one frame of every camera."""
        poses = [car.position for car in self._world.cars]
        for key, publisher in self._publishers.items():
            if garbage:
                publisher.send_raw(GARBAGE)
            elif key in self._cameras:
                number = key[0]
                others = poses[:number] + poses[number + 1 :]
                image = self._cameras[key][1].render(*poses[number], others)
                publisher.send(image, int(self._world.seconds * 1e9))

    def close(self) -> None:
        """Release the addresses."""
        for publisher in self._publishers.values():
            publisher.close()
        self._context.close()

    def _build(self, key: Key, sensor: Sensor) -> None:
        """Create a camera's renderer, if level, size or format have changed."""
        if (here := self._world.map) is None:
            self._cameras.pop(key, None)
            return
        settings = tuple(sensor.parameters[name] for name in ("Width", "Height", "FOVAngle"))
        segmented = str(sensor.parameters["Format"]).startswith("Segm")
        made_of = (*settings, segmented, here.track.name)
        if key in self._cameras and self._cameras[key][0] == made_of:
            return
        plan = (here.track.name, segmented)
        if plan not in self._grounds:
            # Maps of other levels are dropped: each takes up to 24 MB.
            self._grounds = {at: ground for at, ground in self._grounds.items() if at[0] == plan[0]}
            self._grounds[plan] = paint(here.track, segmented=segmented, seed=self._seed)
        width, height, angle = settings
        size, ground = (int(width), int(height)), self._grounds[plan]
        camera = Camera(mount_of(sensor.name), *size, float(angle), ground, segmented=segmented)
        self._cameras[key] = (made_of, camera)
