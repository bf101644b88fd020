"""A dataset as a learner's data source: everything is put into the replay before the first update."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from runtime.base.errors import SetupError
from runtime.exchange.learner_server import LearnerServer
from runtime.rl.algos.plan import Plan
from runtime.rl.buffers.replay import Replay
from runtime.rl.buffers.ring_index import GOES_ON, TERMINATED, TRUNCATED
from runtime.rl.datasets.episode_files import Episode, dataset_files, open_episodes


def fill_replay(replay: Replay, plan: Plan, folder: str, say: Callable[[str], None]) -> None:
    """Put all recorded episodes of ``folder`` into ``replay``.

    Skips an unreadable file with a sentence. Raises SetupError if nothing is left, if the spaces differ from the
    environment's, or if the replay is too small.
    """
    episodes = 0
    for path in dataset_files(folder):
        try:
            file = open_episodes(path)
        except ValueError as error:
            say(f"left out: {error}")
            continue
        try:
            if (file.facts.obs, file.facts.action) != (plan.shape.obs_space, plan.action_space):
                raise SetupError(
                    f"{path} was recorded in {file.facts.environment}, whose observations or actions are not those "
                    "of this run's environment"
                )
            if len(replay) + file.steps > replay.capacity:
                raise SetupError(
                    f"{folder} has more than replay_capacity = {replay.capacity} transitions; raise it, or take "
                    "fewer files"
                )
            for episode in file.read():
                replay.put(_columns(episode))
                episodes += 1
        except ValueError as error:
            say(f"left out the rest: {error}")
        finally:
            file.close()
    if not episodes:
        raise SetupError(f"no episode in {folder} can be read")
    say(f"dataset {folder}: {episodes} episodes, {len(replay)} transitions")


def _columns(episode: Episode) -> tuple[np.ndarray, ...]:
    """Return an episode as a segment of one copy; see `runtime.rl.buffers.ring_index`."""
    ended = np.full(len(episode), GOES_ON, dtype=np.uint8)
    ended[-1] = TERMINATED if episode.terminated else TRUNCATED
    tail = episode.obs[-1:] if episode.terminated else episode.obs[[-1, -1]]
    return episode.obs[:-1], episode.action, episode.reward, ended, tail


class DatasetSource:
    """Data source without workers: an update never waits."""

    def __init__(self, exchange: LearnerServer) -> None:
        self._exchange = exchange

    def await_data(self, updates: int, timeout_seconds: float) -> bool:  # noqa: ARG002  (nothing to wait for)
        """Return True. Raises RuntimeError if the exchange with the evaluators has failed."""
        self._exchange.await_data(updates, 0.0)
        return True
