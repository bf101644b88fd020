"""Episodes of an evaluation: drives one in each copy of an environment, and computes their score."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime.rl.algos.recurrent.copy_states import CopyStates
from runtime.rl.datasets.recorder import EpisodeRecorder
from runtime.rl.envs.base import EpisodeSummary, StepResult, VectorEnv

_SEEDS: Final = 2
"""Distinguishes evaluations' random numbers from those of other roles with the same run seed and index."""
Act = Callable[[NDArray[Any]], NDArray[Any]]
"""(observations (B, obs_dim)) → actions (B, act_dim)."""


@dataclass(frozen=True, slots=True)
class Score:
    """Means over episodes that all started at the start line.

    `laps` is a sum over all episodes. `clean_lap` means that every episode drove at least one lap and none left the
    track: one lucky start proves little. `lap_seconds` is the best lap in simulated time.
    """

    episodes: int
    return_: float
    progress_metres: float
    laps: int
    clean_lap: bool
    lap_seconds: float | None

    @classmethod
    def of(cls, episodes: Sequence[EpisodeSummary], step_seconds: float) -> Score:
        """Return the score of one or more episodes."""
        count = len(episodes)
        # The mean over an episode's laps, since only its steps are known: exact for episodes with one lap.
        lap_times = [episode.steps * step_seconds / episode.laps for episode in episodes if episode.laps]
        return cls(
            episodes=count,
            return_=sum(episode.return_ for episode in episodes) / count,
            progress_metres=sum(episode.progress_metres for episode in episodes) / count,
            laps=sum(episode.laps for episode in episodes),
            clean_lap=all(bool(episode.laps) and not episode.left_track for episode in episodes),
            lap_seconds=min(lap_times, default=None),
        )


def evaluation_seeds(seed: int, index: int) -> tuple[int, np.random.Generator]:
    """Return an environment seed and a generator for random actions, for evaluator `index` of a run's seed."""
    seeds = np.random.SeedSequence([seed, _SEEDS, index]).generate_state(2)
    return int(seeds[1]), np.random.default_rng(seeds[0])


def drive_episodes(
    env: VectorEnv,
    act: Act,
    seed: int,
    is_ending: Callable[[StepResult], bool],
    states: CopyStates | None = None,
    recorder: EpisodeRecorder | None = None,
) -> list[EpisodeSummary] | None:
    """Drive one episode in every copy, started with `seed`, and return them in the order in which they end.

    `is_ending` is called with each step; if it returns True before all episodes are over, None is returned.
    `states` are the memory states that `act` reads, if any. A `recorder` gets each step.
    """
    first: dict[int, EpisodeSummary] = {}
    obs = env.reset(seed)
    if recorder is not None:
        recorder.reset()
    if states is not None:
        states.reset()
    while len(first) < env.num_envs:
        action = act(obs)
        result = env.step(action)
        if recorder is not None:
            recorder.add(obs, action, result)
        obs = result.obs
        if states is not None:
            states.advance(result.terminated | result.truncated | result.is_lost)
        for episode in result.episodes:
            # Only the first episode of each copy: counting later ones would favour policies with short episodes.
            first.setdefault(episode.env, episode)
        if is_ending(result):
            return None
    return list(first.values())
