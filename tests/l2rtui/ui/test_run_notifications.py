"""Notifications of learning: once for each change, of one owner's runs, and none for what was so at the start."""

from __future__ import annotations

import pytest

from l2rtui.domain.runstatus import Learning, LearningState
from l2rtui.domain.snapshot import ClusterSnapshot, RunView
from l2rtui.ui.state.notices import RunNotifications

SNAPSHOT = ClusterSnapshot(runs={"a": RunView("a", "mine", "e", "me"), "b": RunView("b", "theirs", "e", "you")})


def states(state: Learning) -> dict[str, LearningState]:
    return {uid: LearningState(state, 0.0, "why") for uid in ("a", "b", "gone")}


@pytest.mark.parametrize(
    ("sequence", "sentences"),
    [
        (["stalled"], []),
        # The newest record of a log is old at first: what was never reported is not taken back.
        (["stalled", "live"], []),
        (["unknown", "stalled", "stalled"], []),
        (["live", "stalled", "stalled"], ["mine is stalled: why"]),
        (["starting", "starved", "live", "live"], ["mine is starved: why", "mine learns again"]),
        (["live", "diverged", "slow"], ["mine is diverged: why", "mine learns again"]),
        (["live", "slow", "live", "done"], []),
        # A connection that comes back brings no news of what was so before.
        (["live", "stalled", "unknown", "stalled", "live"], ["mine is stalled: why", "mine learns again"]),
        (["live", "unknown", "stalled"], ["mine is stalled: why"]),
        (["live", "stalled", "starting", "live"], ["mine is stalled: why", "mine learns again"]),
    ],
)
def test_learning_that_stops_and_goes_on_is_reported_once(sequence, sentences):
    notifications = RunNotifications("me")
    reported = [sentence for word in sequence for sentence in notifications.learn(SNAPSHOT, states(Learning(word)))]
    assert reported == sentences
