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

from runtime.base.environments import CHECK_BOUNDS, FRAME_STACK, WRAPPERS, unknown_id
from runtime.rl.envs.base import EpisodeSummary, StepResult, close_all
from runtime.rl.envs.gym_spaces import RowReader, actions, frame_seconds, reset_values, space_of, step_values
from runtime.rl.envs.wrappers import wrapped

LOST: Final = "simulator_lost"
"""Key of an info by which an environment says that its simulator failed: the step is not the policy's doing."""


class GymVectorEnv:
    """Copies of a Gymnasium environment; see ``runtime.rl.envs.base.VectorEnv`` for the methods."""

    def __init__(
        self, name: str, num_envs: int, options: Mapping[str, Any], *, known_names: Sequence[str] = ()
    ) -> None:
        """Make the copies. ValueError for an unknown id, a wrong option, or a space that no network can take."""
        self.num_envs, self._name = num_envs, name
        self.envs: list[gymnasium.Env[Any, Any]] = []
        try:
            self.envs += (make_env(name, options, known_names) for _ in range(num_envs))
            first = self.envs[0]
            for number, env in enumerate(self.envs):
                check_alike(name, number, env, first)
            self._rows = RowReader(first.observation_space, name, is_exact=has_exact_bounds(first, options))
            self.action_space, self._act = actions(first.action_space, name)
        except BaseException:
            self.close()
            raise
        self.obs_space = self._rows.obs_space
        self.step_seconds = frame_seconds(first)
        self._whose = [f"copy {number}" for number in range(num_envs)]
        self._steps = np.zeros(num_envs, dtype=np.int64)
        self._return = np.zeros(num_envs)
        self._progress = np.zeros(num_envs)

    def reset(self, seed: int) -> NDArray[Any]:
        """Reset every copy."""
        self._steps[:] = 0
        self._return[:] = 0.0
        self._progress[:] = 0.0
        return self._rows.read([self._begin(number, seed + number) for number in range(self.num_envs)])

    def _begin(self, number: int, seed: int | None = None) -> Any:
        """Reset a copy and return its observation."""
        return reset_values(self.envs[number].reset(seed=seed), self._name, self._whose[number])

    def step(self, action: NDArray[Any]) -> StepResult:
        """Advance every copy by one step, and reset those that ended.

        If one copy says ``simulator_lost`` in its info, the step of all counts as lost, and that episode as never
        begun.
        """
        count = self.num_envs
        reward = np.zeros(count, dtype=np.float32)
        terminated, truncated = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)
        observations: list[Any] = []
        episodes: list[EpisodeSummary] = []
        ended: list[int] = []
        lost: set[int] = set()
        infos: dict[int, Mapping[str, Any]] = {}
        name, whose = self._name, self._whose
        for number, env in enumerate(self.envs):
            result = env.step(self._act(action[number]))
            obs, gain, terminal, cut, info = step_values(result, name, whose[number])
            observations.append(obs)
            reward[number] = gain
            # Some environments report both in one step; the end by the rules wins, so that no value is
            # bootstrapped.
            terminated[number], truncated[number] = terminal, cut and not terminal
            self._return[number] += gain
            progress = info.get("progress_metres", 0.0)
            # An attribute of a foreign environment may have any value under this name.
            self._progress[number] = progress if isinstance(progress, int | float) else 0.0
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
            obs_rows[ended] = self._rows.read([self._begin(number) for number in ended], ended)
            for number in ended:
                return_, progress = float(self._return[number]), float(self._progress[number])
                if number not in lost:
                    episodes.append(_summary(number, int(self._steps[number]), return_, progress, infos[number]))
                self._steps[number], self._return[number] = 0, 0.0
        return StepResult(obs_rows, reward, terminated, truncated, final_obs, tuple(episodes), is_lost=bool(lost))

    def close(self) -> None:
        """Close every copy."""
        close_all(self.envs, self._name)
        self.envs = []

    def render(self) -> NDArray[np.uint8] | None:
        """Return the picture (height, width, 3) of the first copy; None where it was made without one.

        ValueError if that needs a package that is not installed.
        """
        try:
            picture = self.envs[0].render()
        except gymnasium.error.DependencyNotInstalled as error:
            raise ValueError(f"its pictures need a package that is not installed: {error}") from error
        return np.asarray(picture, dtype=np.uint8) if isinstance(picture, np.ndarray) else None


def _summary(env: int, steps: int, return_: float, progress: float, info: Mapping[str, Any]) -> EpisodeSummary:
    """Return the summary of an episode whose last info may tell laps and measures, as Learn-to-Race's does."""
    # Attributes of foreign environments may have any value under these names.
    laps, metrics = info.get("laps", 0), info.get("metrics", {})
    laps = laps if type(laps) is int else 0
    numbers = metrics.items() if isinstance(metrics, Mapping) else ()
    measures = {str(name): float(value) for name, value in numbers if isinstance(value, int | float)}
    left_track = info.get("oob", info.get("left_track")) is True
    return EpisodeSummary(env, steps, return_, progress, laps, left_track, measures)


def make_env(name: str, options: Mapping[str, Any], known_names: Sequence[str]) -> gymnasium.Env[Any, Any]:
    """Make one copy in its wrappers. ValueError for an unknown id, and for an option that it does not take."""
    env_options = dict(options)
    frames, wrappers = env_options.pop(FRAME_STACK, 1), env_options.pop(WRAPPERS, ())
    if type(exact := env_options.pop(CHECK_BOUNDS, True)) is not bool:
        raise ValueError(f"{name}: {CHECK_BOUNDS} is {exact!r}; it must be true or false")
    if type(frames) is not int or frames < 1:
        raise ValueError(f"{name}: {FRAME_STACK} is {frames!r}; it must be a whole number from 1")
    with sentences(name, env_options, known_names):
        env: gymnasium.Env[Any, Any] = gymnasium.make(name, disable_env_checker=True, **env_options)
    if not wrappers and frames == 1:
        return env
    try:
        # Wrappers take what they get for granted, and would hide whose fault it is.
        env = wrapped(CheckedEnv(env, name, is_exact=has_exact_bounds(env, options)), wrappers, name)
        return gymnasium.wrappers.FrameStackObservation(env, frames) if frames > 1 else env
    except BaseException:
        env.close()
        raise


class CheckedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Environment whose answers are compared with its spaces where others come between it and the rows."""

    def __init__(self, env: gymnasium.Env[Any, Any], name: str, *, is_exact: bool) -> None:
        super().__init__(env)
        self._name = name
        # Wrappers may stand around a space that no network can take, and make another one of it.
        try:
            space = space_of(env, "observation_space", name)
            self._rows: RowReader | None = RowReader(space, name, is_exact=is_exact)
        except ValueError:
            self._rows = None

    def reset(self, **options: Any) -> tuple[Any, Any]:
        """Start an episode."""
        result = self.env.reset(**options)
        self._check(reset_values(result, self._name, "a copy"))
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Any]:
        """Take a step."""
        values = step_values(self.env.step(action), self._name, "a copy")
        self._check(values[0])
        return values

    def _check(self, obs: Any) -> None:
        if self._rows is not None:
            self._rows.read([obs], ["its own"], "an instance,")


def has_exact_bounds(env: gymnasium.Env[Any, Any], options: Mapping[str, Any]) -> bool:
    """Return False if numbers may exceed the bounds of their space.

    They do in some of Gymnasium's own environments, whose bounds are no more than usual values: LunarLander's.
    """
    entry = env.spec.entry_point if env.spec is not None else None
    is_gymnasiums = isinstance(entry, str) and entry.startswith("gymnasium.envs.")
    return bool(options.get(CHECK_BOUNDS, not is_gymnasiums))


def check_alike(name: str, number: int, env: Any, first: Any) -> None:
    """Raise ValueError unless a copy has the spaces of the first one: one policy acts for all."""
    for kind in ("observation_space", "action_space"):
        own, others = space_of(env, kind, name), space_of(first, kind, name)
        if own != others:
            raise ValueError(
                f"{name}: {kind} of copy {number} is {own}, and that of copy 0 {others}; one policy acts for all "
                "copies, so they must be alike"
            )


@contextmanager
def sentences(name: str, options: Mapping[str, Any], known_names: Sequence[str]) -> Iterator[None]:
    """Turn what fails while Gymnasium makes an environment into ValueError with a sentence."""
    try:
        yield
    except gymnasium.error.DependencyNotInstalled as error:
        raise ValueError(f"{name} needs a package that is not installed: {error}") from error
    except gymnasium.error.UnregisteredEnv as error:
        ours = f"; besides Gymnasium's ids there are {', '.join(known_names)}" if known_names else ""
        raise ValueError(f"{unknown_id(name, error)}{ours}") from error
    except (gymnasium.error.Error, TypeError, ModuleNotFoundError) as error:
        raise ValueError(f"{name} cannot be made with the options {dict(options)}: {error}") from error
