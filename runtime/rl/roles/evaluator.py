"""Evaluator: drives the newest policy without exploration from the start line, and the random policy for
comparison; and the episodes that score any policy, one in each copy of an environment.
"""

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
from runtime.rl.algos.actor import CopyStates, NumpyActor
from runtime.rl.datasets.recorder import EpisodeRecorder
from runtime.rl.envs.base import EpisodeSummary, StepResult, VectorEnv, closing_env
from runtime.rl.roles.launch_context import Context, environment_plan, evaluation_options, make_environment
from runtime.rl.roles.step_watch import StepWatch

WAIT_SECONDS: Final = 0.2
STEPS_BETWEEN: Final = 20
"""Steps between two calls of `LearnerClient.exchange`, where they are quick."""
EXCHANGE_SECONDS: Final = 0.5
"""Time between two calls where they are slow: the learner needs a sign of life once a second."""


def run(context: Context, stop: Stop, console: Console) -> None:
    """Evaluate until the learner reports that the run is done or `stop` is set. Raises PeerRefusedError."""
    settings = context.settings
    env = make_environment(settings, settings.eval_episodes, evaluation_options(settings))
    stop.keep()
    with closing_env(env, stop.is_set):
        plan = environment_plan(settings, env)
        actor = NumpyActor(plan.shape)
        with LearnerClient(context, actor, plan.layout, 0, console) as peer:
            Evaluator(context, env, peer, console).loop(stop)


class Evaluator:
    """Main loop of an evaluator process."""

    def __init__(self, context: Context, env: VectorEnv, peer: LearnerClient[NumpyActor], console: Console) -> None:
        environment = context.settings.environment
        self._watch = StepWatch(environment, lambda: peer.exchange(0.0), lambda: None, console)
        self._env_seed, self._rng = evaluation_seeds(context.seed, context.index)
        self._env = env
        self._peer = peer
        self._states = CopyStates(peer.actor, env.num_envs)
        self._console = console
        self._period = context.settings.eval_seconds

    def loop(self, stop: Stop) -> None:
        """Evaluate the random policy once, then each new version, at most one in `eval_seconds`."""
        with self._watch:
            self._loop(stop)

    def _loop(self, stop: Stop) -> None:
        peer, began, evaluated_version = self._peer, float("-inf"), 0
        chance = self._drive(self._at_random, stop)
        stop.keep()
        while not stop.is_set() and peer.session.done is None:
            peer.exchange(WAIT_SECONDS)
            if chance is None or time.monotonic() - began < self._period:
                continue
            peer.use_newest_weights()
            if peer.policy_version == evaluated_version:
                continue
            # Measured from the start of an evaluation, so that long episodes do not extend the period.
            began, evaluated_version = time.monotonic(), peer.policy_version
            score = self._drive(lambda obs: self._states.act(obs, None), stop, self._states)
            if score is not None:
                self._report(evaluated_version, score, chance)
        peer.leave(stop.reason or "the run is done")
        self._console.say(f"evaluator ends: {peer.session.done or stop.reason}")

    def _at_random(self, obs: NDArray[Any]) -> NDArray[Any]:
        return self._env.action_space.at_random(len(obs), self._rng)

    def _drive(self, act: Act, stop: Stop, states: CopyStates | None = None) -> Score | None:
        """Drive one episode in every copy; return None if the process is to end before all are over."""
        steps, exchanged = 0, time.monotonic()

        def is_ending(_: StepResult) -> bool:
            nonlocal steps, exchanged
            steps += 1
            now = time.monotonic()
            if steps % STEPS_BETWEEN and now - exchanged < EXCHANGE_SECONDS:
                return False
            exchanged = now
            with self._watch.own():
                self._peer.exchange(0.0)
            return stop.is_set() or self._peer.session.done is not None

        with self._watch.foreign():
            episodes = drive_episodes(self._env, act, self._env_seed, is_ending, states)
        if episodes is None:
            return None
        self._peer.env_steps += steps * self._env.num_envs
        return Score.of(episodes, self._env.step_seconds)

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
        # Both: the learner records it with its env steps, and this log has it even without a learner.
        self._peer.send_evaluation(evaluation)
        self._console.record(record("evaluator", evaluation.record_fields()))


_SEEDS: Final = 2
"""Distinguishes evaluations' random numbers from other roles' with the same run seed and index."""
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
