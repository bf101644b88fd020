"""Rate limiter between collection and learning."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runtime.rl.roles.rate_limiter import RateLimiter


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
