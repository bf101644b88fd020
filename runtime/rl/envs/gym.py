"""Any environment that Gymnasium knows by its id, many copies in one process.

Spaces are flattened to the rows of ``runtime.rl.spaces``: numbers into a vector, pictures as they are, choices of a
Discrete observation as one-hot numbers, Dict and Tuple part by part. Copies are stepped one after the other: an
environment that is slow enough to profit from processes of its own gets them as workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from runtime.base.environments import WRAPPERS
from runtime.rl.envs.base import EpisodeSummary, StepResult
from runtime.rl.envs.wrappers import wrapped
from runtime.rl.spaces import ActionSpace, Image, ObsSpace

LOST: Final = "simulator_lost"
"""Key of an info by which an environment says that its simulator failed: the step is not the policy's doing."""
FRAMES: Final = "frame_stack"
"""Option that is not the environment's own, as its wrappers: how many observations are seen at once."""
_MAX_CHANNELS: Final = 4
"""A picture whose first side is this short and whose last is not has its channels in front."""

Read = Callable[[Any], NDArray[Any]]


class GymVectorEnv:
    """Copies of a Gymnasium environment; see ``runtime.rl.envs.base.VectorEnv`` for the methods."""

    def __init__(
        self, name: str, num_envs: int, options: Mapping[str, Any], *, known_names: Sequence[str] = ()
    ) -> None:
        """Make the copies. ValueError for an unknown id, a wrong option, or a space that no network can take."""
        self.num_envs = num_envs
        self._envs = [_make(name, options, known_names) for _ in range(num_envs)]
        first = self._envs[0]
        self._vectors, self._images = _readers(first.observation_space, name)
        sizes = [np.asarray(read(first.observation_space.sample())).size for read in self._vectors]
        images = [read(first.observation_space.sample()).shape for read in self._images]
        self.obs_space = ObsSpace(sum(sizes), tuple(_image(shape) for shape in images))
        self.action_space, self._act = _actions(first.action_space, name)
        frames = first.metadata.get("render_fps")
        self.step_seconds = 1.0 / frames if frames else 0.0
        self._steps = np.zeros(num_envs, dtype=np.int64)
        self._return = np.zeros(num_envs)
        self._progress = np.zeros(num_envs)

    def reset(self, seed: int) -> NDArray[Any]:
        """Start every copy anew."""
        self._steps[:] = 0
        self._return[:] = 0.0
        self._progress[:] = 0.0
        return self._rows([env.reset(seed=seed + number)[0] for number, env in enumerate(self._envs)])

    def step(self, action: NDArray[Any]) -> StepResult:
        """Advance every copy by one step, and begin anew with those that end.

        If one copy says ``simulator_lost`` in its info, the step of all counts as lost, and that episode as never
        begun.
        """
        count = self.num_envs
        reward = np.empty(count, dtype=np.float32)
        terminated, truncated = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)
        observations: list[Any] = []
        episodes: list[EpisodeSummary] = []
        ended: list[int] = []
        lost: set[int] = set()
        infos: dict[int, Mapping[str, Any]] = {}
        for number, env in enumerate(self._envs):
            obs, gain, terminal, cut, info = env.step(self._act(action[number]))
            observations.append(obs)
            reward[number] = gain
            # Some environments report both at once; the end by the rules wins, so that no value is bootstrapped.
            terminated[number], truncated[number] = terminal, cut and not terminal
            self._return[number] += gain
            self._progress[number] = info.get("progress_metres", 0.0)
            if LOST in info:
                lost.add(number)
            if terminal or cut:
                ended.append(number)
                infos[number] = info
        self._steps += 1
        final_obs = obs_rows = self._rows(observations)
        if ended:
            # Only now a copy: most steps end no episode, and then one array serves as both.
            obs_rows = final_obs.copy()
            obs_rows[ended] = self._rows([self._envs[number].reset()[0] for number in ended])
            for number in ended:
                return_, progress = float(self._return[number]), float(self._progress[number])
                if number not in lost:
                    episodes.append(_summary(number, int(self._steps[number]), return_, progress, infos[number]))
                self._steps[number], self._return[number] = 0, 0.0
        return StepResult(obs_rows, reward, terminated, truncated, final_obs, tuple(episodes), is_lost=bool(lost))

    def render(self) -> NDArray[np.uint8] | None:
        """Return the picture (height, width, 3) of the first copy; None where it was made without one.

        ValueError if that needs a package that is not installed.
        """
        try:
            picture = self._envs[0].render()
        except gymnasium.error.DependencyNotInstalled as error:
            raise ValueError(f"its pictures need a package that is not installed: {error}") from error
        return np.asarray(picture, dtype=np.uint8) if isinstance(picture, np.ndarray) else None

    def _rows(self, observations: Sequence[Any]) -> NDArray[Any]:
        count = len(observations)
        vector = np.empty((count, self.obs_space.vector), dtype=np.float32)
        column = 0
        for read in self._vectors:
            parts = np.stack([np.asarray(read(obs), dtype=np.float32).ravel() for obs in observations])
            vector[:, column : column + parts.shape[1]] = parts
            column += parts.shape[1]
        if not self._images:
            return vector
        return self.obs_space.pack(vector, [np.stack([read(obs) for obs in observations]) for read in self._images])


def _summary(env: int, steps: int, return_: float, progress: float, info: Mapping[str, Any]) -> EpisodeSummary:
    """Return the summary of an episode whose last info may tell laps and measures, as Learn-to-Race's does."""
    # Those of others may be anything under these names.
    laps, metrics = info.get("laps", 0), info.get("metrics", {})
    laps = laps if type(laps) is int else 0
    numbers = metrics.items() if isinstance(metrics, Mapping) else ()
    measures = {str(name): float(value) for name, value in numbers if isinstance(value, int | float)}
    left_track = info.get("oob", info.get("left_track")) is True
    return EpisodeSummary(env, steps, return_, progress, laps, left_track, measures)


def _make(name: str, options: Mapping[str, Any], known_names: Sequence[str]) -> gymnasium.Env[Any, Any]:
    env_options = dict(options)
    frames, wrappers = env_options.pop(FRAMES, 1), env_options.pop(WRAPPERS, ())
    if type(frames) is not int or frames < 1:
        raise ValueError(f"{name}: {FRAMES} is {frames!r}; it must be a whole number from 1")
    try:
        env: gymnasium.Env[Any, Any] = gymnasium.make(name, disable_env_checker=True, **env_options)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ValueError(f"{name} needs a package that is not installed: {error}") from error
    except gymnasium.error.Error as error:
        ours = f"; besides Gymnasium's ids there are {', '.join(known_names)}" if known_names else ""
        raise ValueError(f"unknown environment {name!r}: {error}{ours}") from error
    except (TypeError, ModuleNotFoundError) as error:
        raise ValueError(f"{name} cannot be made with the options {env_options}: {error}") from error
    env = wrapped(env, wrappers, name)
    return gymnasium.wrappers.FrameStackObservation(env, frames) if frames > 1 else env


def _readers(space: spaces.Space[Any], name: str) -> tuple[list[Read], list[Read]]:
    """Return what reads the vectors of an observation, and what reads its images."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces
        named = list(parts.items()) if isinstance(parts, Mapping) else list(enumerate(parts))
        vectors: list[Read] = []
        images: list[Read] = []
        for key, part in named:
            inner_vectors, inner_images = _readers(part, name)
            vectors += [_at(key, read) for read in inner_vectors]
            images += [_at(key, read) for read in inner_images]
        return vectors, images
    if isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) >= 2:
        return [], [_picture(space.shape)]
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return [lambda obs: obs], []
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return [lambda obs: np.asarray(spaces.utils.flatten(space, obs))], []
    raise ValueError(f"{name}: observations of {space} are not supported; wrap it to give numbers or pictures")


def _at(key: Any, read: Read) -> Read:
    return lambda obs: read(obs[key])


def _image(shape: tuple[int, ...]) -> Image:
    height, width, channels = shape
    return height, width, channels


def _picture(shape: tuple[int, ...]) -> Read:
    """Return what brings a picture of ``shape``, or a stack of them, to height, width, channels."""
    if len(shape) == 2:
        return lambda obs: np.asarray(obs)[..., None]
    # Channel-first images (PyTorch style, and stacks of grey frames) are turned to height, width, channels.
    if len(shape) == 3 and shape[0] <= _MAX_CHANNELS < shape[-1]:  # also grey pictures behind each other
        return lambda obs: np.moveaxis(np.asarray(obs), 0, -1)
    if len(shape) == 3:
        return np.asarray
    height, width = shape[1:3]
    return lambda obs: np.moveaxis(np.asarray(obs), 0, -2).reshape(height, width, -1)


def _actions(space: spaces.Space[Any], name: str) -> tuple[ActionSpace, Read]:
    """Return our form of an action space, and what turns one of our actions into one of the environment's."""
    if isinstance(space, spaces.Discrete):
        first = int(space.start)
        return ActionSpace(1, (int(space.n),)), lambda action: action[0] + first
    if isinstance(space, spaces.MultiDiscrete):
        choices = tuple(map(int, space.nvec.ravel()))
        return ActionSpace(len(choices), choices), lambda action: action.reshape(space.nvec.shape)
    if isinstance(space, spaces.MultiBinary):
        size = int(np.prod(space.shape))
        return ActionSpace(size, (2,) * size), lambda action: action.reshape(space.shape).astype(np.int8)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        low, high = np.asarray(space.low, dtype=np.float64), np.asarray(space.high, dtype=np.float64)
        # A bounded axis is scaled from [-1, 1]; an unbounded one is passed on as it is.
        bounded = np.isfinite(low) & np.isfinite(high)
        middle = np.where(bounded, (np.where(bounded, low, 0.0) + np.where(bounded, high, 0.0)) / 2, 0.0)
        half = np.where(bounded, (np.where(bounded, high, 0.0) - np.where(bounded, low, 0.0)) / 2, 1.0)

        def act(action: NDArray[Any]) -> NDArray[Any]:
            scaled = middle + half * np.clip(action, -1.0, 1.0).reshape(space.shape)
            return np.asarray(scaled, dtype=space.dtype)

        return ActionSpace(int(np.prod(space.shape))), act
    raise ValueError(f"{name}: actions of {space} are not supported; wrap it to take numbers or choices")
