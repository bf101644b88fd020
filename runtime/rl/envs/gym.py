"""Any environment that Gymnasium knows by its id, many copies in one process.

Spaces are flattened to the rows of ``runtime.rl.spaces``: numbers into a vector, pictures as they are, choices of a
Discrete observation as one-hot numbers, Dict and Tuple part by part. Copies are stepped one after the other; those
that bring a vectorisation, and slow ones, are in ``runtime.rl.envs.gym_vector``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import gymnasium
import numpy as np
from numpy.typing import NDArray

from runtime.base.environments import WRAPPERS
from runtime.rl.envs.base import EpisodeSummary, StepResult
from runtime.rl.envs.gym_spaces import RowReader, actions
from runtime.rl.envs.wrappers import wrapped

LOST: Final = "simulator_lost"
"""Key of an info by which an environment says that its simulator failed: the step is not the policy's doing."""
FRAMES: Final = "frame_stack"
"""Option that is not the environment's own, as its wrappers: how many observations are seen at once."""


class GymVectorEnv:
    """Copies of a Gymnasium environment; see ``runtime.rl.envs.base.VectorEnv`` for the methods."""

    def __init__(
        self, name: str, num_envs: int, options: Mapping[str, Any], *, known_names: Sequence[str] = ()
    ) -> None:
        """Make the copies. ValueError for an unknown id, a wrong option, or a space that no network can take."""
        self.num_envs = num_envs
        self._envs = [make_env(name, options, known_names) for _ in range(num_envs)]
        first = self._envs[0]
        self._rows = RowReader(first.observation_space, name)
        self.obs_space = self._rows.obs_space
        self.action_space, self._act = actions(first.action_space, name)
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
        return self._rows.read([env.reset(seed=seed + number)[0] for number, env in enumerate(self._envs)])

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
        final_obs = obs_rows = self._rows.read(observations)
        if ended:
            # Only now a copy: most steps end no episode, and then one array serves as both.
            obs_rows = final_obs.copy()
            obs_rows[ended] = self._rows.read([self._envs[number].reset()[0] for number in ended])
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


def _summary(env: int, steps: int, return_: float, progress: float, info: Mapping[str, Any]) -> EpisodeSummary:
    """Return the summary of an episode whose last info may tell laps and measures, as Learn-to-Race's does."""
    # Those of others may be anything under these names.
    laps, metrics = info.get("laps", 0), info.get("metrics", {})
    laps = laps if type(laps) is int else 0
    numbers = metrics.items() if isinstance(metrics, Mapping) else ()
    measures = {str(name): float(value) for name, value in numbers if isinstance(value, int | float)}
    left_track = info.get("oob", info.get("left_track")) is True
    return EpisodeSummary(env, steps, return_, progress, laps, left_track, measures)


def make_env(name: str, options: Mapping[str, Any], known_names: Sequence[str]) -> gymnasium.Env[Any, Any]:
    """Make one copy in its wrappers. ValueError for an unknown id, and for an option that it does not take."""
    env_options = dict(options)
    frames, wrappers = env_options.pop(FRAMES, 1), env_options.pop(WRAPPERS, ())
    if type(frames) is not int or frames < 1:
        raise ValueError(f"{name}: {FRAMES} is {frames!r}; it must be a whole number from 1")
    with sentences(name, env_options, known_names):
        env: gymnasium.Env[Any, Any] = gymnasium.make(name, disable_env_checker=True, **env_options)
    env = wrapped(env, wrappers, name)
    return gymnasium.wrappers.FrameStackObservation(env, frames) if frames > 1 else env


@contextmanager
def sentences(name: str, options: Mapping[str, Any], known_names: Sequence[str]) -> Iterator[None]:
    """Turn what fails while Gymnasium makes an environment into ValueError with a sentence."""
    try:
        yield
    except gymnasium.error.DependencyNotInstalled as error:
        raise ValueError(f"{name} needs a package that is not installed: {error}") from error
    except gymnasium.error.Error as error:
        ours = f"; besides Gymnasium's ids there are {', '.join(known_names)}" if known_names else ""
        raise ValueError(f"unknown environment {name!r}: {error}{ours}") from error
    except (TypeError, ModuleNotFoundError) as error:
        raise ValueError(f"{name} cannot be made with the options {dict(options)}: {error}") from error
