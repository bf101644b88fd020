"""What a worker and an evaluator need from an environment: many copies stepped at once, arrays in and out.

The shape is Gymnasium's (``terminated`` and ``truncated`` apart), cut down to what a rollout loop reads. Copies
that end are reset within the same step; ``final_obs`` still holds what the copy saw before, because that is the
``next_obs`` of the stored transition. Gymnasium's own vector API would hand the same facts over in dictionaries
of objects, which costs more per step than the racing environment itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class EpisodeSummary:
    """One finished episode."""

    env: int
    """Index of the copy, from 0."""
    steps: int
    return_: float
    """Undiscounted sum of rewards."""
    progress_metres: float
    """Distance along the track since the start, negative when driven backwards."""
    laps: int
    """Whole laps driven from the point of the start."""
    left_track: bool


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step of all copies gave; B is the number of copies."""

    obs: NDArray[np.float32]
    """(B, obs_dim), after the reset of those that ended: what to act on next."""
    reward: NDArray[np.float32]
    """(B,)"""
    terminated: NDArray[np.bool_]
    """(B,) the episode ended by its own rules: nothing more can be earned."""
    truncated: NDArray[np.bool_]
    """(B,) the episode was cut: what could still be earned is to be estimated from ``final_obs``."""
    final_obs: NDArray[np.float32]
    """(B, obs_dim), before any reset: the ``next_obs`` of the transition."""
    episodes: tuple[EpisodeSummary, ...]
    """The episodes that ended at this step."""


class VectorEnv(Protocol):
    """``num_envs`` copies of one environment, stepped together."""

    num_envs: int
    obs_dim: int
    act_dim: int
    step_seconds: float
    """Simulated seconds in one step."""

    def reset(self, seed: int) -> NDArray[np.float32]:
        """Start every copy anew and return (B, obs_dim); the same seed gives the same episodes."""
        ...

    def step(self, action: NDArray[np.float32]) -> StepResult:
        """Apply (B, act_dim) actions in [-1, 1]; values beyond are clipped."""
        ...


def _racing(num_envs: int, options: Mapping[str, Any]) -> VectorEnv:
    from runtime.envs.racing import RacingOptions, RacingVectorEnv

    return RacingVectorEnv(num_envs, RacingOptions.from_mapping(options))


VECTOR_ENVS: Final[Mapping[str, Callable[[int, Mapping[str, Any]], VectorEnv]]] = {"racing": _racing}
"""Name in a spec to factory; the module of an environment is imported when it is made."""


def make_vector_env(name: str, num_envs: int, *, options: Mapping[str, Any]) -> VectorEnv:
    """Make ``num_envs`` copies of the environment ``name``.

    Raises ValueError for an unknown name, for an option that the environment does not know or cannot take, and
    for fewer than one copy.
    """
    if num_envs < 1:
        raise ValueError(f"num_envs is {num_envs}; an environment needs at least 1 copy")
    if name not in VECTOR_ENVS:
        raise ValueError(f"unknown environment {name!r}; known are {', '.join(sorted(VECTOR_ENVS))}")
    return VECTOR_ENVS[name](num_envs, options)
