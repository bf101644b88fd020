"""What a learner's record names as the bound of its run."""

from __future__ import annotations

import pytest

from runtime.rl.roles.metrics_log import bound_by


@pytest.mark.parametrize(
    ("idle", "collecting", "network", "bound"),
    [
        (0.1, 0.0, 0.3, ("update", 0.9)),
        (0.7, 0.0, 0.3, ("workers", 0.7)),
        (0.0, 0.75, 0.0, ("environment", 0.75)),
        (0.0, 0.25, 0.0, ("update", 0.75)),
        (0.9, 0.0, 0.95, ("network thread", 0.95)),  # it waits for a thread that cannot do more
    ],
)
def test_the_largest_share_of_a_learners_time_bounds_it(
    idle: float, collecting: float, network: float, bound: tuple[str, float]
) -> None:
    part, share = bound_by(idle, collecting, network)
    assert (part, share) == (bound[0], pytest.approx(bound[1]))
