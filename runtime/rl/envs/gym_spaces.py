"""Spaces of Gymnasium as the rows of ``runtime.rl.spaces``: what reads an observation, and what makes an action.

An environment is foreign code, so nothing that it gives is taken on trust. Shapes, types and choices of every
observation are compared with its space, at the cost of a few comparisons for all copies together. Bounds and names
of parts are compared at the first steps, and later at one step in `SAMPLED`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from runtime.base.contract import EXIT_ENVIRONMENT
from runtime.base.environments import CHECK_BOUNDS
from runtime.base.errors import EnvironmentFault, NotFiniteError
from runtime.rl.spaces import ActionSpace, Image, ObsSpace

FIRST_STEPS: Final = 64
"""Reads that are compared with the space in full: a fault in the code shows within an episode."""
SAMPLED: Final = 64
"""Later one read in so many is compared in full; `tests.bench.env_checks` measures the cost."""
_MAX_CHANNELS: Final = 4
"""A picture whose first side is this short and whose last is not has its channels in front."""
_TOLERANCE: Final = 1e-5
"""Share of a bound by which a number may exceed it: it may have been computed in another precision."""
_MOST_TEXT: Final = 80
"""Characters of a value in a sentence."""

Convert = Callable[[NDArray[Any]], NDArray[Any]]

_process: Final = [os.getpid()]
"""This process, without a system call: some machines take a microsecond for one."""
os.register_at_fork(after_in_child=lambda: _process.__setitem__(0, os.getpid()))


@dataclass
class _Part:
    """One array of an observation.

    Attributes:
        keys: Where it stands in nested Dict and Tuple spaces.
        convert: From observations (B, ...) to vectors (B, size) or pictures (B, height, width, channels).
    """

    keys: tuple[Any, ...]
    space: Any
    convert: Convert
    is_image: bool = False
    shape: tuple[int, ...] = ()
    kinds: str = "fiub"
    """Kinds of NumPy's types that may be given."""
    low: NDArray[Any] | None = None
    high: NDArray[Any] | None = None
    """Bounds with their tolerance; None for none."""
    is_choice: bool = False
    """Each value is a place in a vector: a wrong one would be another choice, so all are compared."""
    usual: np.dtype[Any] | None = None
    """Type of the latest array."""

    def __post_init__(self) -> None:
        bounds = (self.low, self.high)
        self.is_bounded = all(bound is not None and bool(np.isfinite(bound).all()) for bound in bounds)

    def gathered(self, observations: Sequence[Any] | NDArray[Any]) -> NDArray[Any]:
        """Return the arrays (B, ...) of this part."""
        if self.keys:
            observations = [self.of(obs) for obs in observations]
        array = np.asarray(observations)
        if self.is_choice and array.shape == (len(observations), 1) and not self.shape:
            array = array[:, 0]
        return array

    def checked(self, observations: Sequence[Any] | NDArray[Any], *, is_sampled: bool) -> NDArray[Any]:
        """Return the arrays of this part. ValueError if they are not of the space."""
        array = self.gathered(observations)
        # The type of the array before was right, and NumPy has one object for each of its own types.
        if array.dtype is not self.usual or array.shape[1:] != self.shape:
            if array.shape[1:] != self.shape or array.dtype.kind not in self.kinds:
                raise ValueError(array.shape)
            self.usual = array.dtype
        # Out of the range of a choice or of a byte it would become another number.
        must_hold = self.is_choice or (self.is_image and array.dtype != np.uint8)
        if (is_sampled or must_hold) and not self.is_inside(array):
            raise ValueError(array.dtype)
        return array

    def of(self, obs: Any) -> Any:
        for key in self.keys:
            obs = obs[key]
        return obs

    def is_inside(self, array: NDArray[Any]) -> bool:
        """Say whether all numbers are finite and within the bounds."""
        if self.low is not None and not (array >= self.low).all():
            return False
        if self.high is not None and not (array <= self.high).all():
            return False
        # A comparison with NaN is false, so bounds on both sides leave no number that is not finite.
        return self.is_bounded or array.dtype.kind != "f" or bool(np.isfinite(array).all())

    @property
    def label(self) -> str:
        return "observation" + "".join(f"[{key!r}]" for key in self.keys)


@dataclass
class RowReader:
    """Reader of the observations of a space as rows. ValueError for a space that no network can take.

    Args:
        name: Of the environment, for sentences.
        is_exact: Numbers beyond their bounds are a fault; false where only shapes and types are.
    """

    space: spaces.Space[Any]
    name: str
    is_exact: bool = True
    obs_space: ObsSpace = field(init=False)

    def __post_init__(self) -> None:
        self._parts = list(_parts(self.space, (), self.name))
        sample = [part.convert(part.gathered([self.space.sample()])) for part in self._parts]
        sizes = [array.shape[1] for part, array in zip(self._parts, sample, strict=True) if not part.is_image]
        images = [array.shape[1:] for part, array in zip(self._parts, sample, strict=True) if part.is_image]
        self.obs_space = ObsSpace(sum(sizes), tuple(map(image, images)))
        if not self.obs_space.width:
            raise ValueError(
                f"{self.name}: observations of {self.space} have no number; give one, such as a constant"
            )
        first = self._parts[0] if len(self._parts) == 1 else None
        self._plain = (
            first
            if first is not None and first.convert is _flat and not first.is_choice and not first.keys
            else None
        )
        self._reads_left = FIRST_STEPS if self.is_exact else 0
        self._due = 1
        self._pid = _process[0]

    def read(
        self, observations: Sequence[Any] | NDArray[Any], copies: Sequence[Any] | None = None, noun: str = "copy"
    ) -> NDArray[Any]:
        """Return rows (B, width) of the observations of B copies.

        Raises EnvironmentFault where one is not of the space, and NotFiniteError for infinite numbers and NaN.

        Args:
            copies: Names of these copies in a sentence; None for 0 to B - 1.
            noun: What they are.
        """
        if _process[0] != self._pid:
            self._end_second_process()
        self._due -= 1
        is_sampled = not self._due and self._sample()
        if not is_sampled and (part := self._plain) is not None:
            # The usual case by the shortest way: at 10,000 steps a second each microsecond is a percent.
            try:
                array = np.asarray(observations)
                if array.dtype is part.usual and array.shape[1:] == part.shape:
                    return _flat(array)
            except ValueError:
                pass  # below it gets its sentence
        count = len(observations)
        vectors: list[NDArray[Any]] = []
        images: list[NDArray[Any]] = []
        for part in self._parts:
            try:
                array = part.checked(observations, is_sampled=is_sampled)
            # Whatever a foreign observation raises when it is indexed or becomes an array.
            except Exception as error:
                raise self._fault(observations, copies, noun) from error
            (images if part.is_image else vectors).append(part.convert(array))
        if is_sampled and (where := _first(observations, self._has_wrong_keys)) is not None:
            raise self._fault(observations[where : where + 1], copies and copies[where : where + 1], noun)
        vector = (
            vectors[0] if len(vectors) == 1 else np.concatenate([np.zeros((count, 0), np.float32), *vectors], 1)
        )
        return self.obs_space.pack(vector, images) if images else vector

    def _end_second_process(self) -> NoReturn:
        """End a process that foreign code has forked: it has our sockets, and would send what the first sends."""
        sentence = "returned in a second process too (os.fork), which ends; the first one goes on"
        os.write(2, f"l2r-runtime: the environment's code of {self.name} {sentence}\n".encode())
        os._exit(EXIT_ENVIRONMENT)

    def _sample(self) -> bool:
        """Say when the next read is compared in full, and whether this one is."""
        self._reads_left = max(0, self._reads_left - 1)
        self._due = 1 if self._reads_left else SAMPLED
        return self.is_exact

    def _has_wrong_keys(self, obs: Any) -> bool:
        return bool(self._parts) and bool(self._parts[0].keys) and _wrong_keys(self.space, obs, "") != ""

    def _fault(self, observations: Any, copies: Sequence[Any] | None, noun: str) -> Exception:
        """Return the error that says which observation is not of the space, and how."""
        for number, obs in enumerate(observations):
            whose = f" of {noun} {copies[number] if copies is not None else number}"
            if wrong := _wrong_keys(self.space, obs, whose):
                return EnvironmentFault(f"{self.name}: {wrong}")
            for part in self._parts:
                if (error := self._part_fault(part, part.of(obs), whose)) is not None:
                    return error
        return EnvironmentFault(f"{self.name}: the observations of its copies make no array: they differ in form")

    def _part_fault(self, part: _Part, value: Any, whose: str) -> Exception | None:
        subject, space = f"{self.name}: {part.label}{whose}", _text(part.space)
        try:
            array = part.gathered([_nested(part.keys, value)])
        # Whatever a foreign value raises when it becomes an array.
        except Exception:  # noqa: BLE001
            array = np.asarray([None])
        if array.dtype.kind not in "fiub":
            return EnvironmentFault(f"{subject} is {_shown(value)}; expected numbers of {space}")
        if array.shape[1:] != part.shape:
            return EnvironmentFault(
                f"{subject} has the shape {array.shape[1:]}; expected {part.shape}, that of {space}"
            )
        if array.dtype.kind not in part.kinds:
            return EnvironmentFault(
                f"{subject} is of {array.dtype} (first {_shown(array.ravel()[0])}); expected whole numbers of "
                f"{space}"
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            wrong = array[~np.isfinite(array)][0]
            return NotFiniteError(f"{subject} has {wrong}, which is not finite; it is not used")
        if not part.is_inside(array):
            low = -np.inf if part.low is None else part.low
            high = np.inf if part.high is None else part.high
            beyond = np.atleast_1d(((array < low) | (array > high))[0])
            place = tuple(int(index) for index in np.argwhere(beyond)[0])
            number = np.atleast_1d(array[0])[place]
            at = f" at {list(place)}" if array[0].ndim else ""
            return EnvironmentFault(
                f"{subject} is {_shown(number)}{at}; expected {_bounds(part, place)}, as {space} says"
                + ("" if part.is_choice else f"; widen the space, or set the option {CHECK_BOUNDS}: false")
            )
        return None


def _nested(keys: Sequence[Any], value: Any) -> Any:
    """Return an observation whose part at ``keys`` is ``value``."""
    for key in reversed(keys):
        value = {key: value}
    return value


def _first(observations: Any, is_wrong: Callable[[Any], bool]) -> int | None:
    return next((number for number, obs in enumerate(observations) if is_wrong(obs)), None)


def _wrong_keys(space: Any, obs: Any, whose: str, path: str = "observation") -> str:
    """Return the difference between the parts of an observation and its nested spaces; empty if there is none."""
    if isinstance(space, spaces.Dict):
        if not isinstance(obs, Mapping):
            return f"{path}{whose} is {_shown(obs)}; expected a dict of {', '.join(map(repr, space.spaces))}"
        if set(obs) != set(space.spaces):
            parts_there, parts_due = (
                ", ".join(map(repr, sorted(keys, key=str))) or "none" for keys in (obs, space.spaces)
            )
            return f"{path}{whose} has the parts {parts_there}; expected {parts_due}"
        parts: Iterable[tuple[Any, Any]] = space.spaces.items()
    elif isinstance(space, spaces.Tuple):
        count = len(space.spaces)
        if not isinstance(obs, tuple | list) or len(obs) != count:
            got = f"{len(obs)} parts" if isinstance(obs, tuple | list) else _shown(obs)
            return f"{path}{whose} is {got}; expected a tuple of {count} parts"
        parts = enumerate(space.spaces)
    else:
        return ""
    return next(
        (wrong for key, part in parts if (wrong := _wrong_keys(part, obs[key], whose, f"{path}[{key!r}]"))), ""
    )


def _bounds(part: _Part, place: tuple[int, ...]) -> str:
    low, high = ("?" if bound is None else f"{_at(bound, place):g}" for bound in (part.low, part.high))
    space = part.space
    if isinstance(space, spaces.Box):
        low, high = (f"{_at(bound, place):g}" for bound in (space.low, space.high))
    return f"{low} to {high}"


def _at(bound: Any, place: tuple[int, ...]) -> float:
    array = np.atleast_1d(np.asarray(bound))
    return float(array[place] if array.ndim == len(place) and array.size > 1 else array.ravel()[0])


def _text(space: Any) -> str:
    return " ".join(str(space).split())[:_MOST_TEXT]


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.ndim:
        return f"an array of {value.dtype} of the shape {value.shape}"
    text = " ".join((f"{value:g}" if isinstance(value, float | np.floating) else repr(value)).split())
    if isinstance(value, np.generic) and not isinstance(value, np.floating):
        text = str(value)
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}… ({type(value).__name__})"


def _parts(space: spaces.Space[Any], keys: tuple[Any, ...], name: str) -> Sequence[_Part]:
    """Return the arrays of an observation in the order of their space."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces
        named = list(parts.items()) if isinstance(parts, Mapping) else list(enumerate(parts))
        return [inner for key, part in named for inner in _parts(part, (*keys, key), name)]
    if isinstance(space, spaces.Box):
        is_whole = not np.issubdtype(space.dtype, np.floating)
        low, high = _with_tolerance(space.low, -1.0), _with_tolerance(space.high, 1.0)
        kinds = "iub" if is_whole else "fiub"
        if space.dtype == np.uint8 and len(space.shape) >= 2:
            return [_Part(keys, space, _picture(space.shape), True, space.shape, kinds, low, high)]
        return [_Part(keys, space, _flat, False, space.shape, kinds, low, high)]
    if isinstance(space, spaces.MultiBinary):
        shape = tuple(space.shape)
        return [_Part(keys, space, _flat, False, shape, "fiub", np.array(0), np.array(1), is_choice=True)]
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        counts = np.atleast_1d(space.n if isinstance(space, spaces.Discrete) else space.nvec)
        start = np.asarray(space.start)
        shape, high = tuple(space.shape or ()), start + counts.reshape(start.shape) - 1
        return [_Part(keys, space, _one_hot(counts, start), False, shape, "iu", start, high, is_choice=True)]
    raise ValueError(f"{name}: observations of {space} are not supported; wrap it to give numbers or pictures")


def _with_tolerance(bound: NDArray[Any], sign: float) -> NDArray[Any] | None:
    """Return a bound widened by the tolerance; None if there is none, or the type cannot go beyond."""
    if bound.dtype.kind != "f":
        info = np.iinfo(bound.dtype) if bound.dtype.kind in "iu" else None
        is_natural = (
            info is not None and bound.dtype != np.uint8 and bool((bound == (info.min, info.max)[sign > 0]).all())
        )
        return None if is_natural else bound.astype(np.int64) if bound.dtype != np.uint64 else bound
    if not np.isfinite(bound).any():
        return None
    with np.errstate(over="ignore"):
        widened: NDArray[Any] = bound + sign * _TOLERANCE * np.maximum(np.abs(bound), _TOLERANCE)
    return widened


def _flat(array: NDArray[Any]) -> NDArray[np.float32]:
    """Return vectors of arrays; a copy, for an environment may write into its own again."""
    return array.reshape(len(array), -1).astype(np.float32)


def _one_hot(counts: NDArray[Any], start: NDArray[Any]) -> Convert:
    offsets = np.concatenate([[0], np.cumsum(counts.ravel())[:-1]]).astype(np.int64) - start.ravel()
    size = int(counts.sum())

    def convert(array: NDArray[Any]) -> NDArray[np.float32]:
        rows = np.zeros((len(array), size), np.float32)
        columns = array.reshape(len(array), -1).astype(np.int64) + offsets
        np.put_along_axis(rows, columns, np.float32(1.0), axis=1)
        return rows

    return convert


def image(shape: tuple[int, ...]) -> Image:
    """Return the shape of a picture as one of ours."""
    height, width, channels = shape
    return height, width, channels


def _picture(shape: tuple[int, ...]) -> Convert:
    """Return what brings pictures (B, *shape), or stacks of them, to (B, height, width, channels)."""
    if len(shape) == 2:
        return lambda array: array.astype(np.uint8, copy=False)[..., None]
    # Channel-first images (PyTorch style, and stacks of grey frames) are turned to height, width, channels.
    if len(shape) == 3 and shape[0] <= _MAX_CHANNELS < shape[-1]:  # also grey pictures behind each other
        return lambda array: np.moveaxis(array.astype(np.uint8, copy=False), 1, -1)
    if len(shape) == 3:
        return lambda array: array.astype(np.uint8, copy=False)
    height, width = shape[1:3]
    return lambda array: np.moveaxis(array.astype(np.uint8, copy=False), 1, -2).reshape(
        len(array), height, width, -1
    )


# --- declarations of an environment ---
def space_of(env: Any, kind: str, name: str) -> Any:
    """Return a space of an environment. EnvironmentFault if it has none."""
    try:
        return getattr(env, kind)
    except AttributeError as error:
        raise EnvironmentFault(f"{name} has no {kind}; it must declare one of gymnasium.spaces") from error


def frame_seconds(env: Any) -> float:
    """Return the time of a step by an environment's metadata; 0 if they say none."""
    metadata = getattr(env, "metadata", None)
    frames = metadata.get("render_fps") if isinstance(metadata, Mapping) else None
    return 1.0 / frames if isinstance(frames, int | float) and frames > 0 else 0.0


# --- further results of step and reset ---
def reset_values(result: Any, name: str, whose: str) -> Any:
    """Return the observation of what `reset` has returned. EnvironmentFault for any other form."""
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping):
        return result[0]
    got = _values(result)
    if isinstance(result, tuple) and len(result) == 2:
        got = f"{_shown(result[1])} as the info"
    raise EnvironmentFault(f"{name}: reset of {whose} returned {got}; expected an observation and an info (a dict)")


_NUMBERS: Final = frozenset((float, int, np.float64, np.float32))
_FLAGS: Final = frozenset((bool, np.bool_))


def step_values(result: Any, name: str, whose: str) -> tuple[Any, float, bool, bool, Mapping[str, Any]]:
    """Return the five values of a step. EnvironmentFault for any other form, NotFiniteError for such a reward."""
    try:
        obs, gain, terminated, truncated, info = result
    except (TypeError, ValueError) as error:
        raise EnvironmentFault(
            f"{name}: step of {whose} returned {_values(result)}; expected five: observation, reward, terminated, "
            "truncated, info"
        ) from error
    # By type: the values of nearly all environments are of these, and a call for each would cost time.
    if gain.__class__ not in _NUMBERS or not math.isfinite(gain):  # type: ignore[arg-type]  # one of them
        gain = reward_value(gain, name, whose)
    if terminated.__class__ not in _FLAGS:
        terminated = flag_value(terminated, "terminated", name, whose)
    if truncated.__class__ not in _FLAGS:
        truncated = flag_value(truncated, "truncated", name, whose)
    if info.__class__ is not dict and not isinstance(info, Mapping):
        raise EnvironmentFault(f"{name}: info of {whose} is {_shown(info)}; expected a dict")
    return obs, gain, terminated, truncated, info


def reward_value(reward: Any, name: str, whose: str) -> float:
    """Return a reward, of which some environments make an array of the shape (1,), as a number."""
    array = _scalar(reward)
    if array is None or array.dtype.kind not in "fiub":
        raise EnvironmentFault(f"{name}: reward of {whose} is {_shown(reward)}; expected a number")
    value = float(array)
    if not math.isfinite(value):
        raise NotFiniteError(f"{name}: reward of {whose} is {value}, which is not finite; it is not used")
    return value


def flag_value(flag: Any, what: str, name: str, whose: str) -> bool:
    """Return one of the two ends of a step as true or false."""
    array = _scalar(flag)
    if array is None or array.dtype.kind not in "fiub" or array not in (0, 1):
        raise EnvironmentFault(f"{name}: {what} of {whose} is {_shown(flag)}; expected true or false")
    return bool(array)


def _scalar(value: Any) -> NDArray[Any] | None:
    try:
        array = np.asarray(value)
    # Whatever a foreign value raises when it becomes an array.
    except Exception:  # noqa: BLE001
        return None
    return array.reshape(()) if array.shape in ((), (1,)) else None


def _values(result: Any) -> str:
    if isinstance(result, tuple):
        return f"{len(result)} value{'s' if len(result) != 1 else ''}"
    return _shown(result)


# --- actions ---
def actions(space: spaces.Space[Any], name: str) -> tuple[ActionSpace, Convert]:
    """Return our form of an action space, and what turns our actions, one or rows, into the environment's."""
    if isinstance(space, spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete) and not math.prod(space.shape):
        raise ValueError(f"{name}: actions of {space} have no number; a policy needs at least one to decide")
    if isinstance(space, spaces.Discrete):
        first = int(space.start)
        return ActionSpace(1, (int(space.n),)), lambda action: action[..., 0] + first
    if isinstance(space, spaces.MultiDiscrete):
        choices = tuple(map(int, space.nvec.ravel()))
        start = np.asarray(space.start)
        return ActionSpace(
            len(choices), choices
        ), lambda action: action.reshape(*action.shape[:-1], *space.nvec.shape) + start
    if isinstance(space, spaces.MultiBinary):
        size = int(np.prod(space.shape))
        return ActionSpace(size, (2,) * size), lambda action: action.reshape(
            *action.shape[:-1], *space.shape
        ).astype(np.int8)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return ActionSpace(int(np.prod(space.shape))), _box_action(space)
    raise ValueError(f"{name}: actions of {space} are not supported; wrap it to take numbers or choices")


def _box_action(space: spaces.Box) -> Convert:
    """Return what scales [-1, 1] to a bounded axis.

    An axis without bounds gets the number as it is. One with a single bound gets it moved into the space, by no
    more than it takes: 0 to 2 for Box(0, inf), -1 to 1 for Box(-5, inf).
    """
    low, high = np.asarray(space.low, dtype=np.float64), np.asarray(space.high, dtype=np.float64)
    has_low, has_high = np.isfinite(low), np.isfinite(high)
    bottom = np.where(has_low, low, -1.0)
    bottom = np.where(has_low & ~has_high, np.maximum(low, -1.0), bottom)
    top = np.where(has_high, high, bottom + 2.0)
    top = np.where(has_high & ~has_low, np.minimum(high, 1.0), top)
    bottom = np.where(has_high & ~has_low, top - 2.0, bottom)
    middle, half = bottom / 2 + top / 2, top / 2 - bottom / 2
    ends = [np.asarray(middle + half * sign, dtype=space.dtype) for sign in (-1.0, 1.0)]
    # Large numbers lose digits when they are scaled: then, and only then, an end could lie beyond its bound.
    is_inside = all(bool(((end >= space.low) & (end <= space.high)).all()) for end in ends)

    def act(action: NDArray[Any]) -> NDArray[Any]:
        rows = np.clip(action, -1.0, 1.0).reshape(action.shape[:-1] + space.shape)
        scaled = np.asarray(middle + half * rows, dtype=space.dtype)
        return scaled if is_inside else np.clip(scaled, space.low, space.high)

    return act
