"""Film of the first copy's first episode: its images, and writing them to a file.

An environment with image observations shows its last image; cars on a track are shown on a map with their path;
other environments render. Pillow writes GIF, ffmpeg writes MP4; neither is needed otherwise.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from runtime.base.environments import BUILT_IN
from runtime.base.errors import FailedError, SetupError
from runtime.rl.envs.base import StepResult, VectorEnv, bare
from runtime.rl.envs.racing_rules import CELL, MARGIN, View
from runtime.tracks.track import Track
from runtime.tracks.vehicle import VehicleState

MAX_SIDE: Final = 640
"""Approximate maximum of the longer side, in pixels."""
BORDER: Final = 10.0
"""Metres of grass around the course."""
GRASS: Final = (34, 60, 40)
ROAD: Final = (120, 120, 124)
WAY: Final = (90, 170, 255)
CAR: Final = (255, 80, 60)


class CourseMap:
    """Images of one car's path around a track."""

    def __init__(self, track: Track) -> None:
        view = View.of(track)
        cut = int((MARGIN - BORDER) / CELL)
        road = view.pixels[cut:-cut, cut:-cut]
        self._stride = max(1, -(-max(road.shape) // MAX_SIDE))
        share = road[:: self._stride, :: self._stride, None] / 255.0
        self._ground = (np.array(GRASS) * (1.0 - share) + np.array(ROAD) * share).astype(np.uint8)
        self._south_west = view.south_west[0] + cut * CELL, view.south_west[1] + cut * CELL

    def draw(self, state: VehicleState) -> NDArray[np.uint8]:
        """Return the map (height, width, 3) with the first car at its current position, and extend its path."""
        metres = CELL * self._stride
        column = int((float(state.x[0]) - self._south_west[0]) / metres)
        row = int((float(state.y[0]) - self._south_west[1]) / metres)
        _dot(self._ground, row, column, 1, WAY)
        picture = self._ground.copy()
        _dot(picture, row, column, 3, CAR)
        return np.ascontiguousarray(picture[::-1])


def _dot(picture: NDArray[np.uint8], row: int, column: int, reach: int, colour: tuple[int, int, int]) -> None:
    """Paint a square; parts outside the map are omitted."""
    rows, columns = slice(max(0, row - reach), row + reach + 1), slice(max(0, column - reach), column + reach + 1)
    if row >= -reach and column >= -reach:
        picture[rows, columns] = colour


Picture = NDArray[np.uint8]
MIN_SIDE: Final = 256
"""Images with less height are enlarged by an integer factor, up to this height."""
MAX_FRAMES: Final = 6_000
"""Maximum number of images; ten minutes of racing."""
_RATE: Final = 30.0
"""Images per second if the environment has no meaningful time."""
_INSTALL: Final = "pip install 'imageio[ffmpeg]'"


@runtime_checkable
class OnTrack(Protocol):
    """Environment of cars on a track."""

    track: Track

    @property
    def state(self) -> VehicleState:
        """Return pose and motion of the cars."""


@runtime_checkable
class Renders(Protocol):
    """Environment that renders its first copy."""

    def render(self) -> Picture | None:
        """Return the current image (height, width, 3). Raises ValueError if rendering needs a missing package."""


class Film:
    """Images of one episode."""

    def __init__(self, environment: str) -> None:
        self.frames: list[Picture] = []
        self._environment = environment
        self._is_over = False
        self._map: CourseMap | None = None
        is_rendered = environment not in BUILT_IN and not environment.rsplit(":", maxsplit=1)[-1].startswith("l2r/")
        self.environment_options: dict[str, Any] = {"render_mode": "rgb_array"} if is_rendered else {}
        """Options that the environment needs for images."""

    def add(self, env: VectorEnv, result: StepResult) -> None:
        """Add the image after a step. Raises SetupError if the environment has no images."""
        if self._is_over:
            return
        self._is_over = any(episode.env == 0 for episode in result.episodes) or len(self.frames) >= MAX_FRAMES
        # After an end the cars are already at the next start; the final observation is still available.
        picture = self._picture(env, result.final_obs[:1])
        if picture is not None:
            self.frames.append(_enlarged(picture))

    def write(self, path: Path, step_seconds: float) -> None:
        """Write the film in the format of the file extension. Raises SetupError if empty, FailedError and
        OSError.
        """
        if not self.frames:
            raise SetupError(f"--video: {self._environment} has no pictures")
        rate = 1.0 / step_seconds if step_seconds else _RATE
        if path.suffix == ".gif":
            _write_gif(self.frames, path, rate)
        else:
            _write_mp4(self.frames, path, rate)

    def _picture(self, env: VectorEnv, obs: NDArray[Any]) -> Picture | None:
        source = bare(env)
        if isinstance(source, OnTrack) and not env.obs_space.images:
            self._map = self._map or CourseMap(source.track)
            return None if self._is_over else self._map.draw(source.state)
        if env.obs_space.images:
            return _last_picture(env.obs_space.split(obs)[1][-1][0])
        if not isinstance(source, Renders):
            raise SetupError(f"--video: {self._environment} has no pictures")
        try:
            return None if self._is_over else source.render()
        except ValueError as error:
            raise SetupError(f"--video: {self._environment} cannot be filmed: {error}") from error


def check_video(path: Path) -> None:
    """Raise SetupError unless a film can be written to the path."""
    if path.suffix not in (".gif", ".mp4"):
        raise SetupError(f"--video {path}: the name must end in .gif or .mp4")
    if not path.absolute().parent.is_dir():
        raise SetupError(f"--video {path}: there is no folder {path.parent}")
    if path.suffix == ".gif" and find_spec("PIL") is None:
        raise SetupError(f"--video {path}: a gif needs Pillow; {_INSTALL}")
    if path.suffix == ".mp4" and _ffmpeg() is None:
        raise SetupError(f"--video {path}: an mp4 needs ffmpeg; {_INSTALL}, install ffmpeg, or take .gif")


def _ffmpeg() -> str | None:
    """Return the path of ffmpeg: the system's, or imageio-ffmpeg's."""
    if (program := shutil.which("ffmpeg")) is not None or find_spec("imageio_ffmpeg") is None:
        return program
    import imageio_ffmpeg

    bundled: str = imageio_ffmpeg.get_ffmpeg_exe()
    return bundled


def _write_gif(frames: Sequence[Picture], path: Path, rate: float) -> None:
    from PIL import Image

    first, *others = [Image.fromarray(frame) for frame in frames]
    first.save(path, save_all=True, append_images=others, duration=round(1000 / rate), loop=0)


def _write_mp4(frames: Sequence[Picture], path: Path, rate: float) -> None:
    height, width = frames[0].shape[:2]
    command = [
        _ffmpeg() or "ffmpeg", "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24",
        "-s", f"{width}x{height}", "-r", f"{rate:g}", "-i", "-",
        # Supported by every player: even sides, and colours at half the resolution.
        "-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p", str(path),
    ]  # fmt: skip
    pixels = b"".join(frame.tobytes() for frame in frames)
    done = subprocess.run(command, input=pixels, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        raise FailedError(f"ffmpeg did not write {path}: {done.stderr.decode(errors='replace').strip()[-300:]}")


def _last_picture(image: NDArray[np.uint8]) -> Picture:
    """Return the newest of stacked images (height, width, channels) in red, green and blue."""
    colours = 3 if image.shape[2] % 3 == 0 else 1
    return np.ascontiguousarray(np.broadcast_to(image[..., -colours:], (*image.shape[:2], 3)))


def _enlarged(picture: Picture) -> Picture:
    """Return an image at least `MIN_SIDE` pixels high, enlarged by an integer factor."""
    factor = max(1, -(-MIN_SIDE // picture.shape[0]))
    return picture.repeat(factor, axis=0).repeat(factor, axis=1)
