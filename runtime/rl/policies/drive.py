"""`l2r-runtime drive`: runs episodes of a saved policy without exploration, scores them, and films the first."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from runtime.base import contract
from runtime.base.errors import InterruptedWorkError
from runtime.base.metrics import record
from runtime.base.signals import Stop
from runtime.rl.algos.actor import CopyStates, NumpyActor
from runtime.rl.checkpoints.saved_policy import SavedRun, open_run, say_aside
from runtime.rl.datasets.recorder import EpisodeRecorder
from runtime.rl.envs.base import EpisodeSummary, MeasuresEpisodes, StepResult, VectorEnv, bare, closing_env
from runtime.rl.policies.film import Film
from runtime.rl.roles.evaluator import Score, drive_episodes, evaluation_seeds
from runtime.rl.roles.launch_context import environment_plan, evaluation_options, make_environment


def drive(options: argparse.Namespace, config: str, stop: Stop) -> int:
    """Drive with the given options, print the score, and return the exit code.

    Raises SetupError, SettingsError, OSError, and InterruptedWorkError if `stop` is set before all episodes are
    done.
    """
    run = open_run(options.checkpoint, config, say_aside)
    count = options.episodes or run.settings.eval_episodes
    seed = run.seed if options.seed is None else options.seed
    film = None if options.video is None else Film(run.settings.environment)
    # No more simultaneous copies than the run's evaluator had: each may be a simulator.
    copies = min(count, run.settings.eval_episodes)
    extra = {**evaluation_options(run.settings), **(film.environment_options if film is not None else {})}
    env = make_environment(run.settings, copies, extra)
    recording = (
        nullcontext() if options.record is None else EpisodeRecorder(options.record, env, run.settings.environment)
    )
    with closing_env(env, stop.is_set), recording as recorder:
        episodes = _drive(run, env, count, seed, film, stop, recorder)
    if len(episodes) < count:
        raise InterruptedWorkError(f"ended by {stop.reason} after {len(episodes)} of {count} episodes")
    figures = score_fields(episodes, env.step_seconds)
    if film is not None:
        film.write(options.video, env.step_seconds)
        figures["video"] = str(options.video)
    if recorder is not None:
        figures["recorded_episodes"] = recorder.episodes
    head = {"checkpoint": run.checkpoint.name, "environment": run.settings.environment, "seed": seed}
    print(record("drive", {**head, **figures}) if options.json else _table(run, figures))
    return contract.EXIT_DONE


def _drive(
    run: SavedRun,
    env: VectorEnv,
    count: int,
    seed: int,
    film: Film | None,
    stop: Stop,
    recorder: EpisodeRecorder | None,
) -> list[EpisodeSummary]:
    """Return `count` episodes; fewer if `stop` was set."""
    plan = environment_plan(run.settings, env)
    actor = NumpyActor(plan.shape)
    actor.load(run.weights(plan))
    states = CopyStates(actor, env.num_envs)
    source = bare(env)
    if isinstance(source, MeasuresEpisodes):
        source.measure()

    def is_ending(result: StepResult) -> bool:
        if film is not None:
            film.add(env, result)
        return stop.is_set()

    driven: list[EpisodeSummary] = []
    # The seed of the run's evaluator 0 first, so that both start in the same way.
    while len(driven) < count:
        first_seed = evaluation_seeds(seed, len(driven))[0]
        episodes = drive_episodes(env, lambda obs: states.act(obs, None), first_seed, is_ending, states, recorder)
        if episodes is None:
            break
        driven += episodes
    return driven[:count]


def score_fields(episodes: Sequence[EpisodeSummary], step_seconds: float) -> dict[str, Any]:
    """Return the evaluation figures of these episodes, the spread of their returns, and means of metrics."""
    score = Score.of(episodes, step_seconds)
    returns = np.array([episode.return_ for episode in episodes])
    fields: dict[str, Any] = {
        "episodes": score.episodes,
        "return": score.return_,
        "return_std": float(returns.std()),
        "return_min": float(returns.min()),
        "return_max": float(returns.max()),
        "steps": float(np.mean([episode.steps for episode in episodes])),
    }
    if any(episode.progress_metres or episode.metrics for episode in episodes):
        names = ("progress_metres", "laps", "clean_lap", "lap_seconds")
        fields |= {name: getattr(score, name) for name in names}
    return {**fields, **({"metrics": metrics} if (metrics := _means(episodes)) else {})}


def _means(episodes: Sequence[EpisodeSummary]) -> dict[str, float]:
    """Return the mean of each metric over the episodes that have it."""
    names = dict.fromkeys(name for episode in episodes for name in episode.metrics)
    values = {name: [episode.metrics[name] for episode in episodes if name in episode.metrics] for name in names}
    return {name: float(np.mean(numbers)) for name, numbers in values.items()}


def _table(run: SavedRun, figures: Mapping[str, Any]) -> str:
    evaluated = run.made.get("eval_return")
    lines = [f"{run.checkpoint.name}: {run.settings.algorithm} in {run.settings.environment}"]
    rows = {**figures, **figures.get("metrics", {})}
    rows.pop("metrics", None)
    if evaluated is not None:
        rows["eval_return"] = evaluated  # the last evaluation before the checkpoint
    return "\n".join(lines + [f"{name:28} {_text(value)}" for name, value in rows.items()])


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
