"""Checks of a learner before it stores: layouts, non-finite numbers, adjacent arenas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.exchange.protocol.framing import SegmentArena
from runtime.exchange.protocol.messages import SegmentRows, Trajectory
from runtime.exchange.protocol.segment_schema import Layout, SegmentField
from runtime.exchange.segments import (
    RECENT_EPISODES,
    SLAB_BYTES,
    EpisodeReturns,
    FiniteCheck,
    PolicyLag,
    SegmentAllocator,
    SegmentBundle,
    gather,
)

LAYOUT = Layout(
    (
        SegmentField("obs", np.dtype(np.float32), (3,)),
        SegmentField("reward", np.dtype(np.float32)),
        SegmentField("done", np.dtype(np.uint8)),
        SegmentField("value", np.dtype(np.float64)),
        SegmentField("step", np.dtype(np.int64)),
        SegmentField("log_prob", np.dtype(np.float32)),
    )
)


def test_a_layout_says_what_it_is_and_holds_plain_numbers_only() -> None:
    assert LAYOUT.text == "obs:f4[3] reward:f4 done:u1 value:f8 step:i8 log_prob:f4"
    for dtype in (object, "U3", "c8", ">f4", "M8[s]"):
        with pytest.raises(ValueError, match="the exchange carries"):
            _ = Layout((SegmentField("x", np.dtype(dtype)),)).text


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
    index = data.draw(st.integers(0, len(counts) - 1))
    name = data.draw(st.sampled_from([0, 1, 3, 5]))
    arena = np.zeros(sum(counts) * LAYOUT.item_bytes, dtype=np.uint8)
    start = sum(counts[:index]) * LAYOUT.item_bytes
    columns = LAYOUT.columns(arena[start : start + counts[index] * LAYOUT.item_bytes], counts[index])
    columns[name].flat[-1] = value
    columns[name].flat[0] = value
    columns[4][:] = -1  # the bits of an integer may be an invalid float
    rows = SegmentRows(tuple(Trajectory(count, 0, 0, 0, 0.0, 0.0) for count in counts))
    bundle = SegmentBundle.of(LAYOUT, arena.data, rows.columns)
    assert bundle is not None
    with np.errstate(all="ignore"):  # as in the network thread
        non_finite = FiniteCheck(LAYOUT).non_finite_segments(bundle)
    assert non_finite == (frozenset() if np.isfinite(value) else {index})


def test_arenas_lie_side_by_side_and_are_sent_from_where_they_lie() -> None:
    arenas = SegmentAllocator(SLAB_BYTES // 4)
    allocated = [arenas.allocate() for _ in range(5)]
    for number, arena in enumerate(allocated):
        arena.view[:] = bytes([number]) * arena.nbytes
    joined = memoryview(gather(allocated[1:4]))
    allocated[2].view[0] = 77
    assert joined.nbytes == 3 * SLAB_BYTES // 4
    assert joined[SLAB_BYTES // 4] == 77, "no copy"
    for apart in ([allocated[0], allocated[2]], [allocated[3], allocated[4]], [allocated[1], allocated[0]]):
        assert bytes(gather(apart)) == b"".join(arena.view for arena in apart)
    assert bytes(gather([SegmentArena.of(b"alone")])) == b"alone"
    assert bytes(gather([SegmentArena.of(part) for part in (b"to", bytearray(b"get"), b"her")])) == b"together"


def test_lag_is_told_as_least_mean_and_most() -> None:
    lag = PolicyLag()
    assert lag.min_mean_max() == [0, 0.0, 0]
    lag.add(9, SegmentRows((Trajectory(8, 5, 7, 0, 0.0, 0.0), Trajectory(8, 6, 8, 0, 0.0, 0.0))))
    assert lag.min_mean_max() == [1, 2.5, 4]
    lag.add(9, SegmentRows((Trajectory(8, 9, 9, 0, 0.0, 0.0),)))
    assert lag.min_mean_max() == [0, 10 / 6, 4]


def test_the_mean_return_is_of_the_latest_episodes() -> None:
    returns = EpisodeReturns()
    returns.add(SegmentRows((Trajectory(8, 0, 0, 0, 0.0, 0.0),)))
    assert returns.mean() is None
    returns.add(SegmentRows((Trajectory(8, 0, 0, 4, 400.0, 0.0),)))
    for _ in range(RECENT_EPISODES // 10):
        returns.add(SegmentRows((Trajectory(8, 0, 0, 5, 5.0, 0.0), Trajectory(8, 0, 0, 5, 10.0, 0.0))))
    assert returns.mean() == 1.5


@pytest.mark.parametrize("gap", [0, 9])
def test_runs_of_equal_segments_have_the_columns_of_each(gap: int) -> None:
    field = LAYOUT.fields[0]
    layout = Layout((field, LAYOUT.fields[2]), tail=SegmentField("obs", field.dtype, field.shape_tail))
    counts, tails = (4, 4, 4, 2, 2, 4), (2, 2, 3, 2, 2, 2)
    sizes = [layout.segment_bytes(count, tail) for count, tail in zip(counts, tails, strict=True)]
    slot = max(sizes) + gap if gap else 0
    arena = np.random.default_rng(0).integers(0, 100, slot * len(counts) or sum(sizes), dtype=np.uint8)
    rows = [Trajectory(count, 0, 0, 0, 0.0, 0.0, tail) for count, tail in zip(counts, tails, strict=True)]
    bundle = SegmentBundle.of(layout, arena.data, SegmentRows(tuple(rows)).columns, slot)
    assert bundle is not None
    parts = bundle.uniform_parts()
    assert [len(part) for part in parts] == [2, 1, 2, 1]
    assert all(part.uniform_parts() == (part,) for part in parts)
    split = [tuple(column[number] for column in part.columns()) for part in parts for number in range(len(part))]
    for columns, expected in zip(split, bundle.segments(), strict=True):
        for column, values in zip(columns, expected, strict=True):
            assert column.tobytes() == values.tobytes()
