"""Vector environment interface: many copies stepped together, arrays in and out.

The shape is Gymnasium's (``terminated`` and ``truncated`` apart), cut down to what a rollout loop reads. Copies
that end are reset within the same step; ``final_obs`` still has the observation before the reset, because that is
the ``next_obs`` of the stored transition. Gymnasium's own vector API passes the same facts in dictionaries of
objects, which costs more per step than the racing environment itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from runtime.base.errors import unexpected_reason
from runtime.rl.spaces import ActionSpace, ObsSpace
from runtime.sim.wire.errors import StartError


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
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Further measures of the task by name, where an environment has any."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of one step of all copies; B is the number of copies."""

    obs: NDArray[Any]
    """(B, obs_space.width), after the reset of those that ended: what to act on next. Never written again."""
    reward: NDArray[np.float32]
    """(B,)"""
    terminated: NDArray[np.bool_]
    """(B,) the episode ended by the rules of the task: no reward can follow."""
    truncated: NDArray[np.bool_]
    """(B,) the episode was cut: the value of ``final_obs`` estimates what would have followed."""
    final_obs: NDArray[Any]
    """(B, obs_space.width), before any reset: the ``next_obs`` of the transition. Never written again."""
    episodes: tuple[EpisodeSummary, ...]
    """The episodes that ended at this step."""
    absent: NDArray[np.bool_] | None = None
    """(B,) copies that took no step, an agent whose game goes on without it: their rows are padding, terminated and
    without reward. None where all took one."""
    is_lost: bool = False
    """Something outside the task failed, for example a simulator: this step must not be learned from. ``obs`` is
    still that of the next step."""


class VectorEnv(Protocol):
    """``num_envs`` copies of one environment, stepped together."""

    num_envs: int
    obs_space: ObsSpace
    action_space: ActionSpace
    step_seconds: float
    """Simulated seconds in one step; 0 where time means nothing."""

    def reset(self, seed: int) -> NDArray[Any]:
        """Reset every copy and return (B, obs_space.width); the same seed gives the same episodes."""

    def step(self, action: NDArray[Any]) -> StepResult:
        """Apply (B, action_space.size) actions; numbers beyond [-1, 1] are clipped."""


@runtime_checkable
class Wrapper(Protocol):
    """Environment that changes the observations of another."""

    wrapped: VectorEnv


def bare(env: VectorEnv) -> VectorEnv:
    """Return the environment without its wrapper: the object that has the further interfaces below."""
    return env.wrapped if isinstance(env, Wrapper) else env


@runtime_checkable
class MeasuresEpisodes(Protocol):
    """Further interface of environments that can measure more of an episode than training needs."""

    def measure(self) -> None:
        """Fill `EpisodeSummary.metrics` from the next `reset` on."""


@runtime_checkable
class HoldsCopies(Protocol):
    """Further interface of environments whose copies have to be closed, as foreign ones do."""

    def close(self) -> None:
        """Close every copy, and end the processes that it holds."""


@runtime_checkable
class HoldsProcesses(HoldsCopies, Protocol):
    """Further interface of environments that hold processes of their own (simulators)."""

    def report(self) -> Mapping[str, Any]:
        """Return the fields of a worker's metric records about them; see ``runtime.base.contract``."""

    def heed(self, is_stopping: Callable[[], bool]) -> None:
        """Poll ``is_stopping`` in every long wait, and raise StartError instead of waiting on when it is true."""


@contextmanager
def closing_env(env: VectorEnv, is_stopping: Callable[[], bool]) -> Iterator[None]:
    """Close the environment when the block ends; a start that is given up in order to stop ends the block."""
    source = bare(env)
    if isinstance(source, HoldsProcesses):
        source.heed(is_stopping)
    try:
        yield
    except StartError:
        if not is_stopping():
            raise
    finally:
        if isinstance(source, HoldsCopies):
            source.close()


def close_all(copies: Iterable[Any], name: str) -> None:
    """Close every copy; errors are printed and ignored."""
    for number, copy in enumerate(copies):
        try:
            if callable(close := getattr(copy, "close", None)):
                close()
        # Foreign code, at the end of all work; sys.exit in it would replace the exit code.
        except BaseException as error:  # noqa: BLE001
            print(f"{name}: close of copy {number} failed: {unexpected_reason(error)}", file=sys.stderr)
