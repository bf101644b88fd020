"""Rate limiter between collection and learning."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runtime.rl.roles.rate_limiter import RateLimiter, delay_after_resume, warmup_after_resume


@given(
    st.integers(0, 100),
    st.floats(0.01, 4.0),
    st.integers(1, 500),
    st.lists(st.tuples(st.booleans(), st.integers(1, 64)), max_size=200),
)
def test_neither_side_runs_away_and_one_of_them_can_always_go(
    warmup: int, ratio: float, band: int, turns: list[tuple[bool, int]]
) -> None:
    limiter = RateLimiter(warmup, ratio, band)
    steps = updates = 0
    for learns, count in turns:
        assert limiter.allows_update(steps, updates) or steps < limiter.ceiling(updates)
        if learns and limiter.allows_update(steps, updates):
            updates += 1
        elif steps < limiter.ceiling(updates):
            steps += min(count, limiter.ceiling(updates) - steps)
        assert updates <= max(0.0, (steps - warmup) * ratio)
        assert steps <= warmup + (updates + 1) / ratio + 1 + band


@given(
    st.integers(0, 5_000),
    st.sampled_from([1 / 16, 0.25, 1.0, 2.0]),
    st.integers(0, 40_000),
    st.integers(0, 100),
    st.integers(1, 3_000),
)
def test_a_resumed_run_collects_what_it_lacks_and_then_goes_on_at_its_ratio(
    warmup: int, ratio: float, env_steps: int, behind: int, missing: int
) -> None:
    """Work due before the restart is not made up for in a burst."""
    updates = max(0, int((env_steps - warmup) * ratio) - behind)
    delay = delay_after_resume(missing, env_steps, updates, warmup, ratio)
    limiter = RateLimiter(warmup + delay, ratio, 256)
    assert not limiter.allows_update(env_steps + missing - 1, updates)
    for later in (0, 1, 16, 100, 1_000):
        done = updates
        while limiter.allows_update(env_steps + missing + later, done):
            done += 1
        assert (later - 1) * ratio - 1 <= done - updates <= later * ratio + 1
    assert limiter.ceiling(updates) >= env_steps + missing, "the warm-up is not held up by the ceiling"


def test_the_warm_up_of_a_resume_is_that_of_the_start_and_never_more_than_the_replay_has() -> None:
    assert warmup_after_resume(5_000, 500_000, 600) == 4_400
    assert warmup_after_resume(5_000, 1_000, 600) == 400
    assert warmup_after_resume(5_000, 500_000, 9_000) == 0
    assert warmup_after_resume(0, 500_000, 0) == 1, "nothing cannot be drawn from"
