"""Scores of an evaluation's episodes."""

from __future__ import annotations

import pytest

from runtime.rl.envs.base import EpisodeSummary
from runtime.rl.roles.evaluator import Score


def episode(laps: int, *, left_track: bool = False, steps: int = 400) -> EpisodeSummary:
    return EpisodeSummary(0, steps, 10.0 * laps, 860.0 * laps, laps, left_track)


def test_a_score_is_the_mean_over_the_episodes() -> None:
    score = Score.of([episode(2, steps=900), episode(1), episode(0, left_track=True)], 0.1)
    assert (score.episodes, score.laps) == (3, 3)
    assert (score.return_, score.progress_metres) == (10.0, 860.0)
    assert score.lap_seconds == pytest.approx(40.0)


@pytest.mark.parametrize(
    ("episodes", "clean"),
    [
        ([episode(1), episode(2)], True),
        ([episode(1), episode(0)], False),
        ([episode(1), episode(1, left_track=True)], False),
        ([episode(0)], False),
    ],
)
def test_a_lap_is_clean_only_if_every_episode_drove_one_and_none_left_the_track(
    episodes: list[EpisodeSummary], clean: bool
) -> None:
    assert Score.of(episodes, 0.1).clean_lap is clean
