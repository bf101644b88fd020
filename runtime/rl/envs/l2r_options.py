"""Options of cars in simulators: track, ends, bounds of actions, cameras, and the simulator itself.

Pictures of a simulator's cameras as a policy sees them: cut, resized and made grey in the worker.

A worker sends only the learned part of a picture: a frame of 512 x 384 is 590 kB, the 42 x 64 grey pixels of it
that show the road are 2.7 kB.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime.rl.envs.racing_rules import FELT, RacingOptions, RacingRules
from runtime.rl.spaces import Image, ObsSpace
from runtime.sim.spec import SimulatorSpec
from runtime.sim.wire import protocol
from runtime.sim.wire.errors import LostError
from runtime.sim.wire.udp_io import ActionBounds
from runtime.tracks.maps import TrackMap, load_map

if TYPE_CHECKING:
    from runtime.sim.wire.camera import Frame


Picture = NDArray[np.uint8]
CAMERA: Final[Mapping[str, Any]] = {"Width": 512, "Height": 384, "FOVAngle": 90}
"""Parameters of a camera's sensor, and their defaults."""
_OURS: Final = ("crop", "resize", "grey")
_GREY: Final = np.array([0.114, 0.587, 0.299], dtype=np.float32)
"""Weights of blue, green and red in the luma of ITU-R BT.601."""


@dataclass(frozen=True, slots=True)
class CameraPicture:
    """One camera: the sensor's parameters, and what the worker makes of its frames."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=lambda: dict(CAMERA))
    crop: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Pixels that are cut off at the top, the bottom, the left and the right."""
    resize: tuple[int, int] | None = None
    """Height and width behind that; None keeps them."""
    grey: bool = False

    @classmethod
    def from_mapping(cls, name: str, options: Mapping[str, Any]) -> CameraPicture:
        """Check the options of a camera. ValueError names the wrong one and the valid values."""
        if name not in protocol.CAMERA_PORTS:
            raise ValueError(f"l2r: there is no camera {name!r}; there are {', '.join(protocol.CAMERA_PORTS)}")
        if not isinstance(options, Mapping):
            raise ValueError(f"l2r: {name} is {options!r}; it must be an object of options")  # noqa: TRY004  (a spec's)
        for option, value in options.items():
            if option not in (*CAMERA, *_OURS):
                raise ValueError(f"l2r: {name} has no option {option!r}; known are {', '.join((*CAMERA, *_OURS))}")
            if option in CAMERA and (type(value) is not int or not 0 < value <= 4096):
                raise ValueError(f"l2r: {option} of {name} is {value!r}; it must be a whole number from 1 to 4096")
        if not isinstance(grey := options.get("grey", False), bool):
            raise ValueError(f"l2r: grey of {name} is {grey!r}; it must be true or false")  # noqa: TRY004
        crop = _numbers(name, "crop", options.get("crop", [0, 0, 0, 0]), "[top, bottom, left, right]", least=0)
        resize = None
        if options.get("resize") is not None:
            resize = _numbers(name, "resize", options["resize"], "[height, width]", least=1)
        parameters = {**CAMERA, **{option: value for option, value in options.items() if option in CAMERA}}
        made = cls(name, parameters, crop, resize, grey)  # type: ignore[arg-type]  # their lengths are checked
        if min(made._cut) < 1:
            raise ValueError(
                f"l2r: crop of {name} leaves nothing of {parameters['Height']} x {parameters['Width']}"
            )
        return made

    @property
    def _cut(self) -> tuple[int, int]:
        """Height and width of what the crop leaves."""
        top, bottom, left, right = self.crop
        return self.parameters["Height"] - top - bottom, self.parameters["Width"] - left - right

    @property
    def shape(self) -> Image:
        """Height, width and channels of a picture."""
        return (*(self.resize or self._cut), 1 if self.grey else 3)

    def read(self, frame: Picture) -> Picture:
        """Return the picture, RGB or grey, in a frame (height, width, BGR). Raises LostError for another size."""
        expected = self.parameters["Height"], self.parameters["Width"], 3
        if frame.shape != expected:
            raise LostError(f"{self.name} sends images of {frame.shape}, not {expected}")
        top, _, left, _ = self.crop
        height, width = self._cut
        image: NDArray[Any] = frame[top : top + height, left : left + width]
        if self.resize is not None and self.name.endswith("Segm"):
            image = image[_nearest(height, self.resize[0])][:, _nearest(width, self.resize[1])]
        elif self.resize is not None:
            image = _resized(image @ _GREY if self.grey else image, self.resize)
        if self.grey and image.ndim == 3:
            image = image @ _GREY
        if image.dtype != np.uint8:
            image = (image + 0.5).astype(np.uint8)
        return image[..., None] if self.grey else image[..., ::-1]


def read_cameras(cameras: Sequence[str] | Mapping[str, Any]) -> tuple[CameraPicture, ...]:
    """Return the cameras that options name: a list of names, or name to options. ValueError as `from_mapping`."""
    if isinstance(cameras, str) or not isinstance(cameras, Sequence | Mapping):
        raise ValueError(f"l2r: cameras is {cameras!r}; it must be a list of names, or names with their options")  # noqa: TRY004
    named = cameras if isinstance(cameras, Mapping) else {str(name): {} for name in cameras}
    return tuple(CameraPicture.from_mapping(name, options) for name, options in named.items())


class LatestPictures:
    """Latest picture of every camera of B cars."""

    def __init__(self, cameras: Sequence[CameraPicture], count: int) -> None:
        self._cameras = cameras
        self.arrays: list[Picture] = [np.zeros((count, *camera.shape), dtype=np.uint8) for camera in cameras]
        """(B, height, width, channels) of each camera; written again with each frame."""

    def take(self, row: int, frames: Mapping[str, Frame]) -> None:
        """Write the pictures in the frames of car `row`. Raises LostError."""
        for camera, array in zip(self._cameras, self.arrays, strict=True):
            array[row] = camera.read(frames[camera.name].image)

    def copy(self) -> list[Picture]:
        """Return the arrays as they are now."""
        return [array.copy() for array in self.arrays]


@functools.cache
def area_weights(source: int, target: int) -> NDArray[np.float32]:
    """(target, source) shares of the old pixels in each new one, by how much of it they cover; rows sum to 1."""
    edges = np.linspace(0.0, source, target + 1)
    pixel = np.arange(source)
    overlap = np.minimum(edges[1:, None], pixel + 1) - np.maximum(edges[:-1, None], pixel)
    return np.asarray(overlap.clip(0.0, None) * (target / source), dtype=np.float32)


def _resized(image: NDArray[Any], size: tuple[int, int]) -> NDArray[np.float32]:
    """Return an image (height, width) or (height, width, channels) in another size, by means over areas."""
    down, across = area_weights(image.shape[0], size[0]), area_weights(image.shape[1], size[1])
    rows = np.tensordot(down, image.astype(np.float32), axes=1)
    resized: NDArray[np.float32] = rows @ across.T if rows.ndim == 2 else across @ rows
    return resized


@functools.cache
def _nearest(source: int, target: int) -> NDArray[np.intp]:
    """(target,) old pixel in the middle of each new one: classes of a segmentation must not be mixed."""
    return ((np.arange(target) + 0.5) * source / target).astype(np.intp)


def _numbers(camera: str, option: str, value: Any, form: str, *, least: int) -> tuple[int, ...]:
    numbers = tuple(value) if isinstance(value, list | tuple) else ()
    count = form.count(",") + 1
    if len(numbers) != count or any(type(number) is not int or number < least for number in numbers):
        raise ValueError(f"l2r: {option} of {camera} is {value!r}; it must be {form}, whole numbers from {least}")
    return numbers


@dataclass(frozen=True, slots=True)
class L2ROptions:
    """Settings of one set of cars in simulators."""

    track: str = "harbour"
    """Course of ours, or a track file in Learn-to-Race's form (``.json``), for example that of the lab's level."""
    level: str = ""
    """Level to open in the simulator; empty for one named like the track."""
    start: str = "random"
    """``random``: anywhere, a little off the centre line; ``line``: at the start line."""
    max_seconds: float = 60.0
    laps: int = 0
    """Whole laps after which an episode is cut; 0 means that only time cuts it."""
    max_steering: float = 1.0
    """Largest steering, either way; Learn-to-Race's distributed agents use 0.3."""
    min_acceleration: float = protocol.MIN_ACCELERATION
    max_acceleration: float = protocol.MAX_ACCELERATION
    cameras: Sequence[str] | Mapping[str, Any] = ()
    """Cameras to see by, by name, with options: ``Width``, ``Height``, ``FOVAngle`` of the sensor, ``crop``,
    ``resize``, ``grey`` of the picture; see ``CameraPicture``."""
    observation: str = ""
    """Numbers of an observation: ``place``, where the car is on the track and how the road goes on, or ``felt``,
    what a car can feel; empty for ``felt`` where there are cameras, else ``place``."""
    simulator: Mapping[str, Any] = field(default_factory=dict)
    """See ``runtime.sim.spec.SimulatorSpec``."""

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> L2ROptions:
        """Check ``options`` and fill in the defaults. ValueError names the option and the valid values."""
        names = [option.name for option in fields(cls)]
        for name in options:
            if name not in names:
                raise ValueError(f"l2r has no option {name!r}; known are {', '.join(names)}")
        made = cls(**options)
        numbers = ("max_seconds", "laps", "max_steering", "min_acceleration", "max_acceleration")
        kinds: list[tuple[str, Any, str]] = [(name, int | float, "a number") for name in numbers]
        kinds += [("track", str, "a text"), ("level", str, "a text")]
        kinds.append(("simulator", Mapping, "an object of options"))
        for name, kind, kind_text in kinds:
            value = getattr(made, name)
            if isinstance(value, bool) or not isinstance(value, kind):
                raise ValueError(f"l2r: {name} is {value!r}; it must be {kind_text}")  # noqa: TRY004  (callers catch one)
        # The racing task checks its own options; the track may also be a file.
        RacingOptions.from_mapping({"start": made.start, "max_seconds": made.max_seconds, "laps": made.laps})
        if made.observation not in ("", "place", "felt") or (made.observation == "felt" and not made.cameras):
            raise ValueError(f"l2r: observation is {made.observation!r}; it may be place, or with cameras felt")
        made.pictures  # noqa: B018  (raises)
        made.bounds  # noqa: B018
        made.spec  # noqa: B018
        made.map()
        return made

    @property
    def pictures(self) -> tuple[CameraPicture, ...]:
        """Cameras and the processing of their frames. Raises ValueError."""
        return read_cameras(self.cameras)

    @property
    def is_felt(self) -> bool:
        """True where the numbers are those that a car can feel."""
        return self.observation == "felt" or (self.observation == "" and bool(self.cameras))

    @property
    def obs_space(self) -> ObsSpace:
        """Numbers and pictures of an observation."""
        numbers = len(FELT) if self.is_felt else RacingRules.obs_dim
        return ObsSpace(numbers, tuple(picture.shape for picture in self.pictures))

    @property
    def bounds(self) -> ActionBounds:
        """Bounds of the actions."""
        steering = abs(self.max_steering)
        return ActionBounds(-steering, steering, self.min_acceleration, self.max_acceleration)

    @property
    def spec(self) -> SimulatorSpec:
        """Spec of the simulator and its supervision; the reference simulator is given the track file."""
        spec = SimulatorSpec.from_mapping(self.simulator)
        if spec.kind == "reference" and self.track.endswith(".json"):
            extended = ("--menu", "--track", self.track, *spec.arguments)
            spec = SimulatorSpec.from_mapping({**self.simulator, "arguments": extended})
        return spec

    def map(self) -> TrackMap:
        """The track and where it lies. Raises ValueError."""
        return load_map(self.track)

    def level_name(self, course: TrackMap) -> str:
        """The level to open."""
        return self.level or course.track.name
