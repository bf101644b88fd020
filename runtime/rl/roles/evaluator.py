"""An evaluator: fetch the policy, drive it without exploration from the start line, report it beside chance."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime.envs.base import EpisodeSummary, VectorEnv, attended
from runtime.messages import Evaluation, to_fields
from runtime.metrics import Console, record
from runtime.peer import Peer
from runtime.process import Context, environment_plan, evaluation_options, make_environment
from runtime.stopping import Stop

WAIT_SECONDS: Final = 0.2
STEPS_BETWEEN: Final = 20
"""Steps between two looks at the learner's messages."""
EVALUATOR_SEEDS: Final = 2


@dataclass(frozen=True, slots=True)
class Score:
    """Means over episodes that all began at the start line.

    `laps` are those of all episodes. `clean_lap`: every episode drove at least one, and none left the track; one
    lucky start of many is no proof. `lap_seconds` is of simulated time, of the best lap.
    """

    episodes: int
    return_: float
    progress_metres: float
    laps: int
    clean_lap: bool
    lap_seconds: float | None

    @classmethod
    def of(cls, episodes: Sequence[EpisodeSummary], step_seconds: float) -> Score:
        """Sum up one episode or more. A lap time is the mean over an episode's laps: exact for those of one lap."""
        count = len(episodes)
        lap_times = [each.steps * step_seconds / each.laps for each in episodes if each.laps]
        return cls(
            episodes=count,
            return_=sum(each.return_ for each in episodes) / count,
            progress_metres=sum(each.progress_metres for each in episodes) / count,
            laps=sum(each.laps for each in episodes),
            clean_lap=all(bool(each.laps) and not each.left_track for each in episodes),
            lap_seconds=min(lap_times, default=None),
        )


def run(context: Context, stop: Stop, console: Console) -> None:
    """Evaluate until the learner says that the run is done or `stop` is set. Raises RefusedError."""
    settings = context.settings
    env = make_environment(settings, settings.eval_episodes, evaluation_options(settings))
    plan = environment_plan(settings, env)
    with attended(env, stop.is_set), Peer(context, plan.shape, plan.layout, 0, console) as peer:
        Evaluator(context, env, peer, console).loop(stop)


class Evaluator:
    """The loop of one evaluator process."""

    def __init__(self, context: Context, env: VectorEnv, peer: Peer, console: Console) -> None:
        seeds = np.random.SeedSequence([context.seed, EVALUATOR_SEEDS, context.index]).generate_state(2)
        self._rng = np.random.default_rng(seeds[0])
        self._env_seed = int(seeds[1])
        self._env = env
        self._peer = peer
        self._console = console
        self._period = context.settings.eval_seconds

    def loop(self, stop: Stop) -> None:
        """Measure chance once, then each new policy, at most one in `eval_seconds`."""
        peer, began, seen = self._peer, float("-inf"), 0
        chance = self._drive(self._at_random, stop)
        while not stop.is_set() and peer.finished is None:
            peer.exchange(WAIT_SECONDS)
            if chance is None or time.monotonic() - began < self._period:
                continue
            peer.adopt()
            if peer.policy_version == seen:
                continue
            began, seen = time.monotonic(), peer.policy_version
            score = self._drive(lambda obs: peer.actor.act(obs, None), stop)
            if score is not None:
                self._report(seen, score, chance)
        peer.leave(stop.reason or "the run is done")
        self._console.say(f"evaluator ends: {peer.finished or stop.reason}")

    def _at_random(self, obs: NDArray[Any]) -> NDArray[Any]:
        return self._env.action_space.at_random(len(obs), self._rng)

    def _drive(self, act: Callable[[NDArray[Any]], NDArray[Any]], stop: Stop) -> Score | None:
        """Drive one episode in every copy; None if the process is to end before all are over."""
        env = self._env
        first: dict[int, tuple[EpisodeSummary, int]] = {}
        obs = env.reset(self._env_seed)
        steps = 0
        while len(first) < env.num_envs:
            result = env.step(act(obs))
            obs = result.obs
            steps += 1
            for episode in result.episodes:
                first.setdefault(episode.env, (episode, steps))
            if steps % STEPS_BETWEEN == 0:
                self._peer.exchange(0.0)
                if stop.is_set() or self._peer.finished is not None:
                    return None
        self._peer.env_steps += steps * env.num_envs
        return Score.of([episode for episode, _ in first.values()], env.step_seconds)

    def _report(self, version: int, score: Score, chance: Score) -> None:
        evaluation = Evaluation(
            epoch=0,
            policy_version=version,
            episodes=score.episodes,
            eval_return=score.return_,
            eval_progress=score.progress_metres,
            random_return=chance.return_,
            random_progress=chance.progress_metres,
            progress_ratio=score.progress_metres / chance.progress_metres if chance.progress_metres > 0 else None,
            laps=score.laps,
            clean_lap=score.clean_lap,
            lap_seconds=score.lap_seconds,
        )
        self._peer.report(evaluation)
        fields = {name: value for name, value in to_fields(evaluation).items() if name not in {"kind", "epoch"}}
        self._console.record(record("evaluator", fields))
