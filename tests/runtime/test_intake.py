"""What a learner looks at before it stores: layouts, numbers that are not finite, arenas side by side."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.arenas import SLAB_BYTES, Arenas, gather
from runtime.framing import Arena
from runtime.intake import RECENT_EPISODES, FiniteCheck, Lag, Returns
from runtime.layout import Field, Layout
from runtime.messages import Rows, Trajectory

LAYOUT = Layout(
    (
        Field("obs", np.dtype(np.float32), (3,)),
        Field("reward", np.dtype(np.float32)),
        Field("done", np.dtype(np.uint8)),
        Field("value", np.dtype(np.float64)),
        Field("step", np.dtype(np.int64)),
        Field("log_prob", np.dtype(np.float32)),
    )
)


def test_a_layout_says_what_it_is_and_holds_plain_numbers_only() -> None:
    assert LAYOUT.text == "obs:f4[3] reward:f4 done:u1 value:f8 step:i8 log_prob:f4"
    for dtype in (object, "U3", "c8", ">f4", "M8[s]"):
        with pytest.raises(ValueError, match="the exchange carries"):
            _ = Layout((Field("x", np.dtype(dtype)),)).text


def test_columns_of_an_arena_are_views_and_have_exactly_its_size() -> None:
    arena = np.zeros(5 * LAYOUT.item_bytes, dtype=np.uint8)
    columns = LAYOUT.columns(arena, 5)
    columns[0][:] = 1.5
    columns[2][4] = 1
    again = LAYOUT.columns(memoryview(arena.tobytes()), 5)
    assert (again[0] == 1.5).all()
    assert list(again[2]) == [0, 0, 0, 0, 1]
    with pytest.raises(ValueError, match="a segment of 4 transitions"):
        LAYOUT.columns(arena, 4)


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    st.sampled_from([np.nan, np.inf, -np.inf, 3e38, 1.0]),
    st.data(),
)
def test_segments_that_are_not_finite_are_found_one_by_one(
    counts: list[int], value: float, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(counts) - 1))
    name = data.draw(st.sampled_from([0, 1, 3, 5]))
    arena = np.zeros(sum(counts) * LAYOUT.item_bytes, dtype=np.uint8)
    start = sum(counts[:place]) * LAYOUT.item_bytes
    columns = LAYOUT.columns(arena[start : start + counts[place] * LAYOUT.item_bytes], counts[place])
    columns[name].flat[-1] = value
    columns[name].flat[0] = value
    columns[4][:] = -1  # the bits of an integer may look like no float
    with np.errstate(all="ignore"):  # as in the network thread
        found = FiniteCheck(LAYOUT).spoiled(arena.data, counts)
    assert found == (frozenset() if np.isfinite(value) else {place})


def test_arenas_lie_side_by_side_and_are_sent_from_where_they_lie() -> None:
    arenas = Arenas(SLAB_BYTES // 4)
    taken = [arenas.take() for _ in range(5)]
    for number, each in enumerate(taken):
        each.view[:] = bytes([number]) * each.nbytes
    whole = memoryview(gather(taken[1:4]))
    taken[2].view[0] = 77
    assert whole.nbytes == 3 * SLAB_BYTES // 4
    assert whole[SLAB_BYTES // 4] == 77, "no copy"
    for apart in ([taken[0], taken[2]], [taken[3], taken[4]], [taken[1], taken[0]]):
        assert bytes(gather(apart)) == b"".join(each.view for each in apart)
    assert bytes(gather([Arena.of(b"alone")])) == b"alone"
    assert bytes(gather([Arena.of(part) for part in (b"to", bytearray(b"get"), b"her")])) == b"together"


def test_lag_is_told_as_least_mean_and_most() -> None:
    lag = Lag()
    assert lag.figures() == [0, 0.0, 0]
    lag.add(9, Rows.of(Trajectory(8, 5, 7, 0, 0.0, 0.0), Trajectory(8, 6, 8, 0, 0.0, 0.0)))
    assert lag.figures() == [1, 2.5, 4]
    lag.add(9, Rows.of(Trajectory(8, 9, 9, 0, 0.0, 0.0)))
    assert lag.figures() == [0, 10 / 6, 4]


def test_the_mean_return_is_of_the_latest_episodes() -> None:
    returns = Returns()
    returns.add(Rows.of(Trajectory(8, 0, 0, 0, 0.0, 0.0)))
    assert returns.mean() is None
    returns.add(Rows.of(Trajectory(8, 0, 0, 4, 400.0, 0.0)))
    for _ in range(RECENT_EPISODES // 10):
        returns.add(Rows.of(Trajectory(8, 0, 0, 5, 5.0, 0.0), Trajectory(8, 0, 0, 5, 10.0, 0.0)))
    assert returns.mean() == 1.5
