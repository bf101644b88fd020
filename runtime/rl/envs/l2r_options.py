"""Options of cars in simulators: track, ends, bounds of actions, cameras, and the simulator itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from runtime.rl.envs.camera_pictures import CameraPicture, read_cameras
from runtime.rl.envs.racing_rules import FELT, RacingOptions, RacingRules
from runtime.rl.spaces import ObsSpace
from runtime.sim.spec import SimulatorSpec
from runtime.sim.wire import protocol
from runtime.sim.wire.udp_io import ActionBounds
from runtime.tracks.maps import TrackMap, load_map


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
    ``resize``, ``grey`` of the picture; see ``runtime.rl.envs.camera_pictures``."""
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
