"""Environments by name, for launchers, which import none of them: known names, and the size of their data.

The runtime's registry creates environments; a test compares this file with them.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

BUILT_IN: Final = ("racing", "l2r")
"""Names that are not Gymnasium ids."""
DEFAULT: Final = "racing"
"""Default of the setting ``environment``."""
FRAME_STACK: Final = "frame_stack"
"""Option of every Gymnasium id: number of latest observations that form one."""
WRAPPERS: Final = "wrappers"
"""Option of every Gymnasium id: names of wrappers around it."""
ENVPOOL: Final = "envpool:"
"""Prefix of ids of EnvPool."""
PETTINGZOO: Final = "pettingzoo:"
"""Prefix of modules of PettingZoo, or of others with its parallel interface."""
CLASS_NAME: Final = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"
"""Regular expression of a user's own class: package.module:Class."""
PROCESSES: Final = "env_processes"
"""Option of Gymnasium's ids: a process for each copy."""
CHECK_BOUNDS: Final = "check_bounds"
"""Option of Gymnasium's and PettingZoo's ids: false where numbers may lie beyond the bounds of their space."""
COLLECTED_ON_DEVICE: Final = ("racing", "CartPole-v1", "Pendulum-v1")
"""Environments that also exist in a version for the learner's device, from which the learner can collect itself."""
CLASSIC: Final = {"CartPole-v1": (4, 1), "Pendulum-v1": (3, 1)}
"""Gymnasium ids that the runtime steps itself if a spec gives no options: numbers, as below."""
_VECTORS: Final = {"racing": (23, 2), "l2r": (23, 2), **CLASSIC}
"""Numbers of an observation and of an action."""
_CHOICES: Final[Mapping[str, tuple[int, ...]]] = {
    "racing": (),
    "l2r": (),
    "CartPole-v1": (2,),
    "Pendulum-v1": (),
}
"""Choices of each action; none where actions are numbers."""
_VIEW: Final = (6, (32, 32, 1))
"""Numbers and image of racing with ``observation: view``."""
_L2R_POSE: Final = 30
_CAMERA: Final = (384, 512)
"""Default height and width of a camera of l2r/L2R-v0."""
# A module to import, a namespace or a version; Gymnasium's own names begin with a capital, and without a version it
# takes the newest.
_GYMNASIUM_ID: Final = re.compile(r"[:/]|-v[0-9]+$|^[A-Z]")


class DataShape(Struct, frozen=True):
    """Observation and action of an environment in the exchange: 4 bytes per number, 1 per channel.

    Attributes:
        numbers: Numbers of an observation, without its images. pictures: Height, width and channels of each image.
        actions: Number of values of an action.
    """

    numbers: int
    actions: int
    pictures: tuple[tuple[int, int, int], ...] = ()

    @property
    def observation_bytes(self) -> int:
        """Bytes of an observation."""
        return 4 * self.numbers + sum(map(math.prod, self.pictures))

    @property
    def action_bytes(self) -> int:
        """Bytes of an action."""
        return 4 * self.actions

    def __str__(self) -> str:
        parts = ["x".join(map(str, picture)) for picture in self.pictures]
        # A few numbers in addition to an image are negligible, and not worth mentioning in a sentence.
        return " and ".join(parts) if parts else f"{self.numbers} numbers"


class Environment(Struct, frozen=True):
    """Facts about the environment that settings name, without importing it.

    Attributes:
        name: None if the setting is not a text.
        is_possible: True if there may be an environment of this name.
        suggestion: Sentence with the likely intended name; empty if the name is possible.
        may_be_class: True if it may be the user's own class; see `may_be_class`.
        has_device_form: True if the learner itself can collect from it.
        shape: Shape of its data; None if only the environment knows it.
    """

    name: str | None
    is_possible: bool = False
    suggestion: str = ""
    may_be_class: bool = False
    has_device_form: bool = False
    shape: DataShape | None = None


def of_settings(settings: Mapping[str, Any]) -> Environment:
    """Return the facts about the environment of training settings, which may have values of a wrong type."""
    name, options = settings.get("environment", DEFAULT), settings.get("environment_options") or {}
    if not isinstance(name, str):
        return Environment(None)
    if not is_possible(name):
        return Environment(name, suggestion=suggestion(name))
    shape = data_shape(name, options) if isinstance(options, dict) else None
    return Environment(name, True, "", may_be_class(name), name in COLLECTED_ON_DEVICE, shape)


def is_possible(environment: str) -> bool:
    """Return true for a built-in name, or a name that may be a Gymnasium id."""
    is_misspelt = environment.lower() in BUILT_IN
    return environment in BUILT_IN or (_GYMNASIUM_ID.search(environment) is not None and not is_misspelt)


def may_be_class(environment: str) -> bool:
    """Return true for ``module:Class``: the user's own environment on tensors, or a Gymnasium id without a
    version.
    """
    return not environment.startswith((ENVPOOL, PETTINGZOO)) and re.fullmatch(CLASS_NAME, environment) is not None


def has_processes(environment: str, options: Mapping[str, Any]) -> bool:
    """Return true if the copies of an environment are separate processes or threads, such as simulators."""
    is_simulated = environment == "l2r" or environment.rpartition(":")[2] == "l2r/L2R-v0"
    return is_simulated or environment.startswith(ENVPOOL) or options.get(PROCESSES) is True


def unknown_id(name: str, error: Exception) -> str:
    """Return the sentence for an id that Gymnasium does not know, with its own error."""
    sentence = f"unknown environment {name!r}: {error}"
    if type(error).__name__ not in {"NameNotFound", "NamespaceNotFound"}:
        return sentence  # It names the versions that exist.
    return f"{sentence} Write MODULE:ID if a package registers it, such as ale_py:ALE/Pong-v5"


def suggestion(environment: str) -> str:
    """Return a sentence with the likely intended name."""
    near = difflib.get_close_matches(environment.lower(), BUILT_IN, n=1)
    return f"Did you mean {near[0]}?" if near else f"There are {', '.join(BUILT_IN)}, and ids such as CartPole-v1."


def data_shape(environment: str, options: Mapping[str, Any]) -> DataShape | None:
    """Return the shape of an environment's data; None if only the environment itself knows it."""
    if options.get(WRAPPERS) and environment not in BUILT_IN:
        return None  # a wrapper may show anything else
    _, _, gymnasium_id = environment.rpartition(":")  # may be preceded by a module to import
    shape: DataShape | None = None
    if environment == "racing" or gymnasium_id == "l2r/Racing-v0":
        shape = DataShape(_VIEW[0], 2, (_VIEW[1],)) if options.get("observation") == "view" else _vector("racing")
    elif gymnasium_id == "l2r/L2R-v0":
        shape = _cameras(options, _L2R_POSE)
    elif environment == "l2r" and options.get("cameras"):
        shape = _cameras(options, _VECTORS["l2r"][0] if options.get("observation") == "place" else _VIEW[0])
    elif environment in _VECTORS:
        shape = _vector(environment)
    if shape is None or environment in BUILT_IN:
        return shape
    return _stacked(shape, options.get(FRAME_STACK, 1))


def action_choices(environment: str, options: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return the number of choices of each action, () for numbers; None where only the environment itself knows."""
    return None if options.get(WRAPPERS) and environment not in BUILT_IN else _CHOICES.get(environment)


def _vector(environment: str) -> DataShape:
    numbers, actions = _VECTORS[environment]
    return DataShape(numbers, actions)


def _cameras(options: Mapping[str, Any], numbers: int) -> DataShape | None:
    """Return the shape of a simulator's data. ``cameras`` are names, or names with parameters; None for any other
    value.
    """
    cameras = options.get("cameras", ())
    if isinstance(cameras, Mapping):
        parameters = list(cameras.values())
    elif isinstance(cameras, Sequence) and not isinstance(cameras, str):
        parameters = [{} for _ in cameras]
    else:
        return None
    pictures = []
    for camera in parameters:
        if not isinstance(camera, Mapping):
            return None
        if (picture := _picture(camera)) is None:
            return None
        pictures.append(picture)
    return DataShape(numbers, 2, tuple(pictures))


def _picture(camera: Mapping[str, Any]) -> tuple[int, int, int] | None:
    """Return height, width and channels of a camera image after processing by a worker; None for invalid
    options.
    """
    height, width = camera.get("Height", _CAMERA[0]), camera.get("Width", _CAMERA[1])
    crop, resize = camera.get("crop", [0, 0, 0, 0]), camera.get("resize")
    try:
        top, bottom, left, right = crop
        height, width = resize or (height - top - bottom, width - left - right)
    except (TypeError, ValueError):
        return None
    if not (isinstance(height, int) and isinstance(width, int) and height > 0 and width > 0):
        return None
    return height, width, 1 if camera.get("grey") else 3


def _stacked(shape: DataShape, frames: object) -> DataShape | None:
    if type(frames) is not int or frames < 1:
        return None
    pictures = tuple((height, width, channels * frames) for height, width, channels in shape.pictures)
    return DataShape(shape.numbers * frames, shape.actions, pictures)
