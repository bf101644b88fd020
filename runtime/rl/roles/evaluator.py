"""Evaluator: drive the newest policy without exploration from the start line, beside the random policy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime.base.metrics import Console, record
from runtime.base.signals import Stop
from runtime.exchange.learner_client import LearnerClient
from runtime.exchange.protocol.messages import EvaluationReport
from runtime.rl.algos.actor import NumpyActor
from runtime.rl.envs.base import EpisodeSummary, VectorEnv, closing_env
from runtime.rl.roles.launch_context import Context, environment_plan, evaluation_options, make_environment

WAIT_SECONDS: Final = 0.2
STEPS_BETWEEN: Final = 20
"""Steps between two calls of `LearnerClient.exchange`, which must come at least once a second."""
EVALUATOR_SEEDS: Final = 2
"""Separates an evaluator's random numbers from those of other roles with the same run seed and index."""


@dataclass(frozen=True, slots=True)
class Score:
    """Means over episodes that all began at the start line.

    `laps` is a sum over all episodes. `clean_lap` means that every episode drove at least one lap and none left the
    track: one lucky start of many is no proof. `lap_seconds` is the best lap in simulated time.
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
        # The mean over the laps of an episode, since only its steps are known: exact for episodes of one lap.
        lap_times = [episode.steps * step_seconds / episode.laps for episode in episodes if episode.laps]
        return cls(
            episodes=count,
            return_=sum(episode.return_ for episode in episodes) / count,
            progress_metres=sum(episode.progress_metres for episode in episodes) / count,
            laps=sum(episode.laps for episode in episodes),
            clean_lap=all(bool(episode.laps) and not episode.left_track for episode in episodes),
            lap_seconds=min(lap_times, default=None),
        )


def run(context: Context, stop: Stop, console: Console) -> None:
    """Evaluate until the learner says that the run is done or `stop` is set. Raises PeerRefusedError."""
    settings = context.settings
    env = make_environment(settings, settings.eval_episodes, evaluation_options(settings))
    plan = environment_plan(settings, env)
    actor = NumpyActor(plan.shape)
    with closing_env(env, stop.is_set), LearnerClient(context, actor, plan.layout, 0, console) as peer:
        Evaluator(context, env, peer, console).loop(stop)


class Evaluator:
    """The loop of one evaluator process."""

    def __init__(self, context: Context, env: VectorEnv, peer: LearnerClient[NumpyActor], console: Console) -> None:
        seeds = np.random.SeedSequence([context.seed, EVALUATOR_SEEDS, context.index]).generate_state(2)
        self._rng = np.random.default_rng(seeds[0])
        self._env_seed = int(seeds[1])
        self._env = env
        self._peer = peer
        self._console = console
        self._period = context.settings.eval_seconds

    def loop(self, stop: Stop) -> None:
        """Evaluate the random policy once, then each new version, at most one in `eval_seconds`."""
        peer, began, evaluated_version = self._peer, float("-inf"), 0
        chance = self._drive(self._at_random, stop)
        while not stop.is_set() and peer.session.done is None:
            peer.exchange(WAIT_SECONDS)
            if chance is None or time.monotonic() - began < self._period:
                continue
            peer.use_newest_weights()
            if peer.policy_version == evaluated_version:
                continue
            # From the beginning of an evaluation, so that long episodes do not add to the period.
            began, evaluated_version = time.monotonic(), peer.policy_version
            score = self._drive(lambda obs: peer.actor.act(obs, None), stop)
            if score is not None:
                self._report(evaluated_version, score, chance)
        peer.leave(stop.reason or "the run is done")
        self._console.say(f"evaluator ends: {peer.session.done or stop.reason}")

    def _at_random(self, obs: NDArray[Any]) -> NDArray[Any]:
        return self._env.action_space.at_random(len(obs), self._rng)

    def _drive(self, act: Callable[[NDArray[Any]], NDArray[Any]], stop: Stop) -> Score | None:
        """Drive one episode in every copy; return None if the process is to end before all are over."""
        env = self._env
        first: dict[int, EpisodeSummary] = {}
        obs = env.reset(self._env_seed)
        steps = 0
        while len(first) < env.num_envs:
            result = env.step(act(obs))
            obs = result.obs
            steps += 1
            for episode in result.episodes:
                # Only the first episode of each copy: later ones would favour policies whose episodes are short.
                first.setdefault(episode.env, episode)
            if steps % STEPS_BETWEEN == 0:
                self._peer.exchange(0.0)
                if stop.is_set() or self._peer.session.done is not None:
                    return None
        self._peer.env_steps += steps * env.num_envs
        return Score.of(list(first.values()), env.step_seconds)

    def _report(self, version: int, score: Score, chance: Score) -> None:
        evaluation = EvaluationReport(
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
        # Both ways: the learner records it with its env steps, and this log has it even without a learner.
        self._peer.send_evaluation(evaluation)
        self._console.record(record("evaluator", evaluation.record_fields()))
