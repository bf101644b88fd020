"""Camera images of a course: ground looked up in a map from above for every pixel, and boxes of other cars.

The ground is flat, so the ray of each pixel meets it at a fixed point in the car's frame. A frame is one rotation
of that table of points and one lookup, about a millisecond for 512 by 384. Colour and segmentation images only
differ in the map. Each enabled camera of a car has a renderer and a publisher.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime.sim.reference.world import ParameterError, Sensor, World
from runtime.sim.wire import protocol
from runtime.sim.wire.camera import CameraPublisher, Cameras, Image
from runtime.tracks.track import Track

Colours = NDArray[np.uint32]
Cells = NDArray[np.float32]
"""Coordinates on a map, in cells."""

SKY, GRASS, ASPHALT, LINE, KERB, CAR = range(6)
_COLOUR: Final = ((235, 206, 160), (62, 130, 70), (92, 92, 96), (240, 240, 240), (40, 40, 200), (200, 80, 30))
_SEGMENT: Final = ((180, 130, 70), (35, 142, 107), (128, 64, 128), (255, 255, 255), (232, 35, 244), (142, 0, 0))
"""BGR by class: colour image, and segmentation in the palette of Cityscapes."""
MARGIN: Final = 40.0
"""Metres of grass around the course on the map."""
MAX_CELLS: Final = 6_000_000
SIGHT: Final = 400.0
"""Metres; beyond this distance the ground has the colour of the sky."""
CAR_LENGTH: Final = 3.0
CAR_WIDTH: Final = 1.68
"""m, Learn-to-Race's box of a car"""


@dataclass(frozen=True, slots=True)
class CameraMount:
    """Position of a camera on the car (m forward, left, up) and its direction (rad down, left)."""

    x: float
    y: float
    z: float
    pitch: float = 0.0
    yaw: float = 0.0


_SIDE: Final = (math.radians(20), math.radians(50))
_MOUNTS: Final[Mapping[str, CameraMount]] = {
    "Front": CameraMount(2.1, 0.0, 0.7),
    "Left": CameraMount(1.28, 0.38, 0.55, *_SIDE),
    "Right": CameraMount(1.28, -0.38, 0.55, _SIDE[0], -_SIDE[1]),
    "BirdsEye": CameraMount(0.0, 0.0, 30.0, math.radians(60)),
}


def mount_of(camera: str) -> CameraMount:
    """Return the mount of the camera with this name."""
    return next(mount for name, mount in _MOUNTS.items() if camera.startswith(f"Camera{name}"))


@dataclass(frozen=True, slots=True)
class GroundMap:
    """Map of a course from above: BGR and an unused byte for each cell."""

    cells: Colours
    """(rows, columns); row 0 is the southern edge."""
    west: float
    south: float
    size: float
    """Metres per cell."""


def paint(track: Track, *, segmented: bool, seed: int = 0) -> GroundMap:
    """Draw the map of a course."""
    reach = float(max(track.left.max(), track.right.max())) + MARGIN
    low, high = track.centre.min(axis=0) - reach, track.centre.max(axis=0) + reach
    # Coarser cells for a large course, which bounds the memory of the map.
    size = max(0.2, math.sqrt(float(np.prod(high - low)) / MAX_CELLS))
    columns, rows = (int(extent / size) + 1 for extent in (high - low).tolist())
    classes = np.full((rows, columns), GRASS, dtype=np.uint8)
    # Points every half cell along the course and 0.6 of a cell across it leave no holes in a curve.
    along = np.arange(0.0, len(track.heading), 0.5 * size / track.step)
    before = along.astype(np.intp)
    share = (along - before)[:, None]
    here, there = track.centre[before], track.centre[(before + 1) % len(track.heading)]
    line = here + share * (there - here)
    heading = track.heading[before]
    normal = np.column_stack([-np.sin(heading), np.cos(heading)])
    kerb_stripe = (along * track.step) % 4.0 < 2.0
    for side in np.arange(-reach + MARGIN - 1.2, reach - MARGIN + 1.2, 0.6 * size):
        left, right = track.left[before], track.right[before]
        beyond = np.maximum(side - left, -side - right)
        kind = np.where(beyond > -0.25, LINE, ASPHALT)
        kind = np.where(beyond > 0, np.where(kerb_stripe, KERB, LINE), kind)
        where = beyond <= 1.0
        at = ((line + side * normal - low) / size).astype(np.intp)[where]
        classes[at[:, 1], at[:, 0]] = kind[where]
    palette = np.zeros((len(_COLOUR), 4), dtype=np.uint8)
    palette[:, :3] = _SEGMENT if segmented else _COLOUR
    cells = palette[classes]
    if not segmented:  # texture on grass and asphalt, without which motion would not be visible in the image
        grain = np.random.default_rng(seed).integers(-9, 10, classes.shape, dtype=np.int16)[..., None]
        cells[..., :3] = np.clip(cells[..., :3] + grain, 0, 255).astype(np.uint8)
    return GroundMap(cells.view(np.uint32)[..., 0].copy(), float(low[0]), float(low[1]), size)


class Camera:
    """Renderer of one camera; its image buffer is overwritten by each frame."""

    def __init__(
        self, mount: CameraMount, width: int, height: int, view_angle: float, ground: GroundMap, *, segmented: bool
    ) -> None:
        self._ground = ground
        colours = _SEGMENT if segmented else _COLOUR
        self._car = np.uint32(int.from_bytes(bytes((*colours[CAR], 0)), "little"))
        self.image: Image = np.empty((height, width, 3), dtype=np.uint8)
        self.image[:] = colours[SKY]
        # A pinhole camera: the horizontal angle of view gives the focal length in pixels.
        focal = width / 2 / math.tan(math.radians(view_angle) / 2)
        across = (width / 2 - 0.5 - np.arange(width)) / focal
        down = (np.arange(height) - height / 2 + 0.5) / focal
        cos_pitch, sin_pitch = math.cos(mount.pitch), math.sin(mount.pitch)
        drop = down * cos_pitch + sin_pitch  # along the vertical, per unit along the camera's axis
        self._top = int(np.searchsorted(drop, mount.z / SIGHT))
        if not segmented:
            haze = np.linspace(1.15, 1.0, max(self._top, 1))[: self._top, None, None]
            self.image[: self._top] = np.clip(self.image[: self._top] * haze, 0, 255).astype(np.uint8)
        scale = mount.z / drop[self._top :, None]
        ahead = scale * (cos_pitch - down[self._top :, None] * sin_pitch)
        left = scale * across[None, :]
        cos_yaw, sin_yaw = math.cos(mount.yaw), math.sin(mount.yaw)
        forward = mount.x + cos_yaw * ahead - sin_yaw * left
        sideways = mount.y + sin_yaw * ahead + cos_yaw * left
        # In cells, so that a frame needs no division.
        self._forward = (forward / ground.size).astype(np.float32)
        self._sideways = (sideways / ground.size).astype(np.float32)

    def render(self, x: float, y: float, yaw: float, others: Sequence[tuple[float, float, float]] = ()) -> Image:
        """Render the view from a car at x east, y north (m), ``yaw`` (rad); ``others`` are poses of other cars."""
        ground, rows = self._ground, self._ground.cells.shape[0]
        columns = ground.cells.shape[1]
        cos, sin = np.float32(math.cos(yaw)), np.float32(math.sin(yaw))
        east = self._forward * cos
        east -= self._sideways * sin
        east += np.float32((x - ground.west) / ground.size)
        north = self._forward * sin
        north += self._sideways * cos
        north += np.float32((y - ground.south) / ground.size)
        np.clip(east, 0, columns - 1, out=east)
        np.clip(north, 0, rows - 1, out=north)
        # One flat index and ndarray.take: faster than separate row and column indices.
        at = north.astype(np.int32)
        at *= columns
        at += east.astype(np.int32)
        pixels = ground.cells.ravel().take(at)
        for other_x, other_y, other_yaw in others:
            if math.hypot(other_x - x, other_y - y) < SIGHT / 4:
                self._draw_car(pixels, east, north, (other_x, other_y, other_yaw))
        self.image[self._top :] = pixels.view(np.uint8).reshape(*pixels.shape, 4)[..., :3]
        return self.image

    def _draw_car(self, pixels: Colours, east: Cells, north: Cells, other: tuple[float, float, float]) -> None:
        """Draw the box of a car onto the ground."""
        ground, (x, y, yaw) = self._ground, other
        cos, sin = np.float32(math.cos(yaw)), np.float32(math.sin(yaw))
        right = east - np.float32((x - ground.west) / ground.size)
        up = north - np.float32((y - ground.south) / ground.size)
        long, wide = CAR_LENGTH / 2 / ground.size, CAR_WIDTH / 2 / ground.size
        pixels[(np.abs(right * cos + up * sin) < long) & (np.abs(up * cos - right * sin) < wide)] = self._car


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
