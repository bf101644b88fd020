"""What a worker and an evaluator need from an environment: many copies stepped at once, arrays in and out.

The shape is Gymnasium's (``terminated`` and ``truncated`` apart), cut down to what a rollout loop reads. Copies
that end are reset within the same step; ``final_obs`` still holds what the copy saw before, because that is the
``next_obs`` of the stored transition. Gymnasium's own vector API would hand the same facts over in dictionaries
of objects, which costs more per step than the racing environment itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from runtime.sim.errors import StartError
from runtime.spaces import ActionSpace, ObsSpace


@dataclass(frozen=True, slots=True)
class EpisodeSummary:
    """One finished episode."""

    env: int
    """Index of the copy, from 0."""
    steps: int
    return_: float
    """Undiscounted sum of rewards."""
    progress_metres: float = 0.0
    """Distance along the track since the start, negative when driven backwards; 0 where there is no track."""
    laps: int = 0
    """Whole laps driven from the point of the start."""
    left_track: bool = False


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step of all copies gave; B is the number of copies."""

    obs: NDArray[Any]
    """(B, obs_space.width), after the reset of those that ended: what to act on next. Never written again."""
    reward: NDArray[np.float32]
    """(B,)"""
    terminated: NDArray[np.bool_]
    """(B,) the episode ended by its own rules: nothing more can be earned."""
    truncated: NDArray[np.bool_]
    """(B,) the episode was cut: what could still be earned is to be estimated from ``final_obs``."""
    final_obs: NDArray[Any]
    """(B, obs_space.width), before any reset: the ``next_obs`` of the transition."""
    episodes: tuple[EpisodeSummary, ...]
    """The episodes that ended at this step."""
    is_lost: bool = False
    """Something failed that is not part of the task, for example a simulator: nothing is to be learned from this
    step. ``obs`` is that of the next one all the same."""


class VectorEnv(Protocol):
    """``num_envs`` copies of one environment, stepped together."""

    num_envs: int
    obs_space: ObsSpace
    action_space: ActionSpace
    step_seconds: float
    """Simulated seconds in one step; 0 where time means nothing."""

    def reset(self, seed: int) -> NDArray[Any]:
        """Start every copy anew and return (B, obs_space.width); the same seed gives the same episodes."""
        ...

    def step(self, action: NDArray[Any]) -> StepResult:
        """Apply (B, action_space.size) actions; numbers beyond [-1, 1] are clipped."""
        ...


@runtime_checkable
class Attended(Protocol):
    """What an environment has besides where it holds processes of its own: simulators."""

    def close(self) -> None:
        """End them."""
        ...

    def report(self) -> Mapping[str, Any]:
        """What a worker's metric records say of them; see ``runtime.contract``."""
        ...

    def heed(self, is_stopping: Callable[[], bool]) -> None:
        """Ask this wherever it waits for long, and raise an error instead of waiting on when it says yes."""
        ...


@contextmanager
def attended(env: VectorEnv, is_stopping: Callable[[], bool]) -> Iterator[None]:
    """End what the environment holds when the block ends, and the block itself when a start is given up to stop."""
    if isinstance(env, Attended):
        env.heed(is_stopping)
    try:
        yield
    except StartError:
        if not is_stopping():
            raise
    finally:
        if isinstance(env, Attended):
            env.close()


def _racing(num_envs: int, options: Mapping[str, Any]) -> VectorEnv:
    from runtime.envs.racing import RacingOptions, RacingVectorEnv

    return RacingVectorEnv(num_envs, RacingOptions.from_mapping(options))


def _digits(num_envs: int, options: Mapping[str, Any]) -> VectorEnv:
    from runtime.envs.digits import DigitsVectorEnv

    for name in options:
        raise ValueError(f"digits has no option {name!r}; it has none")
    return DigitsVectorEnv(num_envs)


def _l2r(num_envs: int, options: Mapping[str, Any]) -> VectorEnv:
    from runtime.envs.l2r import L2ROptions, L2RVectorEnv

    return L2RVectorEnv(num_envs, L2ROptions.from_mapping(options))


VECTOR_ENVS: Final[Mapping[str, Callable[[int, Mapping[str, Any]], VectorEnv]]] = {
    "racing": _racing,
    "l2r": _l2r,
    "digits": _digits,
}
"""Name in a spec to factory; the module of an environment is imported when it is made."""
EVALUATION_OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "racing": {"start": "line", "laps": 1},
    "l2r": {"start": "line", "laps": 1},
}
"""Options for evaluation that are taken where a spec states none, by environment."""


def make_vector_env(name: str, num_envs: int, *, options: Mapping[str, Any]) -> VectorEnv:
    """Make ``num_envs`` copies of the environment ``name``: one of ours, or one that Gymnasium knows by its id.

    Raises ValueError for an unknown name, for an option that the environment does not know or cannot take, and
    for fewer than one copy.
    """
    if num_envs < 1:
        raise ValueError(f"num_envs is {num_envs}; an environment needs at least 1 copy")
    if name in VECTOR_ENVS:
        return VECTOR_ENVS[name](num_envs, options)
    from runtime.envs.classic import CLASSIC

    if name in CLASSIC and not options:
        return CLASSIC[name](num_envs)
    from runtime.envs.gym import GymVectorEnv

    return GymVectorEnv(name, num_envs, options, known=sorted(VECTOR_ENVS))
