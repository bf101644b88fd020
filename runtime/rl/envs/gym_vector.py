"""Environments that bring a vectorisation: Gymnasium's vector entry points, EnvPool, and a process for each copy.

Their copies must begin anew within the step in which they end (`StepResult`), which Gymnasium calls same-step. One
that wants to be told (mode disabled; EnvPool by the numbers of the copies) is told. One that gives its next step up
for it (next-step) would put a step into each episode that never was: its copies are stepped one after the other.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from multiprocessing import parent_process
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.utils import iterate
from numpy.typing import NDArray

from runtime.base.contract import EXIT_INTERRUPTED
from runtime.base.environments import CHECK_BOUNDS, ENVPOOL, FRAME_STACK, PROCESSES, WRAPPERS
from runtime.base.errors import EnvironmentFault, NotFiniteError
from runtime.rl.envs.base import EpisodeSummary, StepResult, VectorEnv, close_all
from runtime.rl.envs.gym import LOST, CheckedEnv, GymVectorEnv, has_exact_bounds, make_env, sentences
from runtime.rl.envs.gym_spaces import RowReader, actions, frame_seconds, space_of
from runtime.sim.wire.errors import StartError

Observations = NDArray[Any] | list[Any]
"""One for each copy."""
Stepped = tuple[Observations, NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], Observations, Mapping[str, Any]]
"""Observations after resets, rewards, terminated, truncated, observations before resets, infos."""


class Copies(Protocol):
    """Copies of an environment that begin anew within a step."""

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    """Both of one copy."""
    step_seconds: float

    def reset(self, seed: int) -> Observations:
        """Reset every copy."""

    def step(self, action: NDArray[Any]) -> Stepped:
        """Advance every copy by one step."""

    def render(self) -> Any:
        """Return a picture of the first copy, or None."""

    def close(self) -> None:
        """End processes and threads."""


class CopiesEnv:
    """`num_envs` copies that others vectorised; see ``runtime.rl.envs.base.VectorEnv`` for the methods."""

    def __init__(self, name: str, num_envs: int, copies: Copies, *, is_exact: bool = True) -> None:
        self.num_envs, self._name = num_envs, name
        self._copies = copies
        self._rows = RowReader(copies.observation_space, name, is_exact=is_exact)
        self.obs_space = self._rows.obs_space
        self.action_space, self._act = actions(copies.action_space, name)
        self.step_seconds = copies.step_seconds
        self._steps = np.zeros(num_envs, dtype=np.int64)
        self._return = np.zeros(num_envs)

    def reset(self, seed: int) -> NDArray[Any]:
        """Reset every copy."""
        self._steps[:] = 0
        self._return[:] = 0.0
        return self._rows.read(self._copies.reset(seed))

    def step(self, action: NDArray[Any]) -> StepResult:
        """Advance every copy by one step; copies that ended have been reset."""
        current, reward, terminated, truncated, final, info = self._copies.step(self._act(action))
        reward = of_each(self._name, "rewards", reward, self.num_envs, np.float64)
        if not np.isfinite(reward).all():
            number = int(np.flatnonzero(~np.isfinite(reward))[0])
            raise NotFiniteError(
                f"{self._name}: reward of copy {number} is {reward[number]}, which is not finite; it is not used"
            )
        # Some environments report both in one step; the end by the rules wins, so that no value is bootstrapped.
        truncated = truncated & ~terminated
        self._steps += 1
        self._return += reward
        final_obs = obs = self._rows.read(final)
        episodes: list[EpisodeSummary] = []
        is_lost = LOST in info or LOST in info.get("final_info", {})
        ended = np.flatnonzero(terminated | truncated)
        if len(ended):
            obs = self._rows.read(current)
            if not is_lost:
                episodes = [EpisodeSummary(int(i), int(self._steps[i]), float(self._return[i])) for i in ended]
            self._steps[ended], self._return[ended] = 0, 0.0
        gains = reward.astype(np.float32)
        return StepResult(obs, gains, terminated, truncated, final_obs, tuple(episodes), is_lost=is_lost)

    def render(self) -> NDArray[np.uint8] | None:
        """Return the picture (height, width, 3) of the first copy; None if there is none."""
        picture = self._copies.render()
        return np.asarray(picture, dtype=np.uint8) if isinstance(picture, np.ndarray) else None

    def close(self) -> None:
        """End processes and threads."""
        close_all([self._copies], self._name)

    def report(self) -> Mapping[str, Any]:
        """Return nothing: these processes are no simulators with records of their own."""
        return {}

    def heed(self, is_stopping: Callable[[], bool]) -> None:
        """Return: no wait is longer than a step."""


def of_each(name: str, what: str, values: Any, count: int, dtype: Any) -> NDArray[Any]:
    """Return one value of each copy. EnvironmentFault for an array of another shape or type."""
    array = np.asarray(values)
    if array.shape == (count, 1):
        array = array[:, 0]
    if array.shape != (count,) or array.dtype.kind not in "fiub":
        raise EnvironmentFault(
            f"{name}: {what} are of {array.dtype} and the shape {array.shape}; expected one of each of {count} "
            "copies"
        )
    return array.astype(dtype)


class GymnasiumCopies:
    """Copies behind Gymnasium's vector interface, made at the first reset: a learner reads only the spaces."""

    def __init__(
        self,
        name: str,
        sample: gymnasium.Env[Any, Any] | gymnasium.vector.VectorEnv[Any, Any, Any],
        make: Callable[[], Any],
    ) -> None:
        """`sample` has the spaces, and is closed; `make` returns the vector environment."""
        self._name = name
        is_vector = isinstance(sample, gymnasium.vector.VectorEnv)
        prefix = "single_" if is_vector else ""
        self.observation_space = space_of(sample, f"{prefix}observation_space", name)
        self.action_space = space_of(sample, f"{prefix}action_space", name)
        self.step_seconds = frame_seconds(sample)
        self._make = make
        self._env: Any = None
        sample.close()

    def reset(self, seed: int) -> Observations:
        """Reset every copy."""
        if self._env is None:
            self._env = self._make()
        return self._each(self._env.reset(seed=seed)[0])

    def step(self, action: NDArray[Any]) -> Stepped:
        """Advance every copy by one step. StartError if a process of a copy has ended."""
        try:
            result = self._env.step(action)
        except (EOFError, ConnectionError) as error:
            raise StartError(f"a process of env_processes has ended: {type(error).__name__}") from error
        if not isinstance(result, tuple) or len(result) != 5 or not isinstance(result[4], Mapping):
            raise EnvironmentFault(
                f"{self._name}: step returned other values than the five: observations, rewards, terminated, "
                "truncated, infos (a dict)"
            )
        obs, reward, terminated, truncated, info = result
        count = self._env.num_envs
        terminated = of_each(self._name, "terminated", terminated, count, np.bool_)
        truncated = of_each(self._name, "truncated", truncated, count, np.bool_)
        final = current = self._each(obs)
        ended = terminated | truncated
        if ended.any():
            if self._env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP:
                final = list(current)
                for number in np.flatnonzero(ended):
                    final[number] = info["final_obs"][number]
            else:
                fresh, current = self._each(self._env.reset(options={"reset_mask": ended})[0]), list(current)
                for number in np.flatnonzero(ended):
                    current[number] = fresh[number]
        return current, reward, terminated, truncated, final, info

    def render(self) -> Any:
        """Return a picture of the first copy, or None."""
        pictures = self._env.render()
        return pictures[0] if isinstance(pictures, Sequence) and pictures else None

    def close(self) -> None:
        """End the processes."""
        if self._env is not None:
            self._env.close()

    def _each(self, obs: Any) -> Observations:
        return obs if isinstance(obs, np.ndarray) else list(iterate(self._env.observation_space, obs))


class EnvPoolCopies:
    """Copies of EnvPool, which takes its seed when it is made."""

    step_seconds = 0.0

    def __init__(self, name: str, num_envs: int, options: Mapping[str, Any]) -> None:
        """ValueError where it is not installed, does not know the id, or does not take an option."""
        try:
            import envpool
        except ImportError as error:
            raise ValueError(f"{name} needs a package that is not installed; pip install envpool") from error
        self._id = name.removeprefix(ENVPOOL)
        self._num_envs = num_envs
        self._options = dict(options)
        for option in {"num_envs", "seed", "batch_size", FRAME_STACK, WRAPPERS, PROCESSES} & set(options):
            raise ValueError(
                f"{name} cannot take the option {option}; EnvPool has options of its own, or it is set here"
            )
        self._pool = envpool
        try:
            spec = envpool.make_spec(self._id, **self._options)
        # Its own code decides what it takes, partly by assertions; a sentence says which environment it was.
        except Exception as error:
            raise ValueError(f"{name} cannot be made with the options {self._options}: {error}") from error
        self.observation_space = spec.gymnasium_observation_space
        self.action_space = spec.gymnasium_action_space
        self._env: Any = None

    def reset(self, seed: int) -> Observations:
        """Reset every copy, in a new pool."""
        self.close()
        self._env = self._pool.make_gymnasium(self._id, num_envs=self._num_envs, seed=seed, **self._options)
        return self._each(self._env.reset()[0], self._num_envs)

    def step(self, action: NDArray[Any]) -> Stepped:
        """Advance every copy by one step."""
        obs, reward, terminated, truncated, info = self._env.step(action)
        final = current = self._each(obs, self._num_envs)
        ended = np.flatnonzero(terminated | truncated)
        if len(ended):
            # Told here, their next step is one of the new episode.
            fresh, current = self._each(self._env.reset(ended)[0], len(ended)), list(current)
            for at, number in enumerate(ended):
                current[number] = fresh[at]
        return current, reward, terminated, truncated, final, info

    def render(self) -> Any:
        """Return None: pictures are drawn only by some, and on a screen."""
        return None

    def close(self) -> None:
        """End the threads."""
        if self._env is not None:
            self._env.close()
            self._env = None

    def _each(self, obs: Any, count: int) -> Observations:
        if isinstance(obs, np.ndarray):
            return obs
        return list(iterate(gymnasium.vector.utils.batch_space(self.observation_space, count), obs))


def make_gym_env(name: str, num_envs: int, options: Mapping[str, Any], known_names: Sequence[str]) -> VectorEnv:
    """Make copies of an environment of Gymnasium or EnvPool. ValueError for what cannot be made."""
    if name.startswith(ENVPOOL):
        return CopiesEnv(name, num_envs, EnvPoolCopies(name, num_envs, options), is_exact=False)
    plain = dict(options)
    has_processes = plain.pop(PROCESSES, False)
    is_exact = plain.get(CHECK_BOUNDS, True)
    if type(has_processes) is not bool:
        raise ValueError(f"{name}: {PROCESSES} is {has_processes!r}; it must be true or false")
    if has_processes:
        # Each process compares its own copy: data of other processes already fit.
        return CopiesEnv(name, num_envs, _in_processes(name, num_envs, plain, known_names), is_exact=False)
    copies = _own_vectorisation(name, num_envs, plain, known_names)
    if copies is None:
        return GymVectorEnv(name, num_envs, plain, known_names=known_names)
    return CopiesEnv(name, num_envs, copies, is_exact=is_exact)


def _in_processes(name: str, num_envs: int, options: Mapping[str, Any], known_names: Sequence[str]) -> Copies:
    def make() -> gymnasium.Env[Any, Any]:
        if parent_process() is not None:
            # The supervisor's SIGTERM reaches the whole group: this process, too, closes its copy before it ends.
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_INTERRUPTED))
        env = make_env(name, options, known_names)
        return CheckedEnv(env, name, is_exact=has_exact_bounds(env, options))

    def vector() -> AsyncVectorEnv[Any, Any]:
        # Processes that begin afresh: a copy of this one would hold its sockets and threads.
        return AsyncVectorEnv([make] * num_envs, context="spawn", autoreset_mode=AutoresetMode.SAME_STEP)

    return GymnasiumCopies(name, make(), vector)


def _own_vectorisation(
    name: str, num_envs: int, options: Mapping[str, Any], known_names: Sequence[str]
) -> Copies | None:
    """Return copies by the environment's vector entry point; None where it has none, or none that fits."""
    if FRAME_STACK in options or WRAPPERS in options:  # both stand around single copies
        return None
    options = {key: value for key, value in options.items() if key != CHECK_BOUNDS}
    with sentences(name, options, known_names):
        module, _, gymnasium_id = name.rpartition(":")
        if module:
            import_module(module)  # registers it
        spec = gymnasium.registry.get(gymnasium_id)
        if spec is None or spec.vector_entry_point is None:
            return None
        vector = gymnasium.make_vec(name, num_envs, "vector_entry_point", **options)
    mode = vector.metadata.get("autoreset_mode")
    if mode in (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED):
        return GymnasiumCopies(
            name, vector, lambda: gymnasium.make_vec(name, num_envs, "vector_entry_point", **options)
        )
    vector.close()
    if spec.entry_point is None:
        raise ValueError(
            f"{name} begins episodes anew in the step after their end (autoreset mode {mode}), which is not "
            "supported; it must do so in the same step, or on demand"
        )
    return None
