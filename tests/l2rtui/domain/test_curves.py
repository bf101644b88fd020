"""Curves of runs: nothing is lost over their length, and memory stays small; statistics, scales, SVG and CSV."""

from __future__ import annotations

import csv
import io
import math
from array import array
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from l2rtui.domain.curves.chart import (
    ChartSettings,
    CurveGroup,
    Grid,
    SeedCurve,
    bridge,
    chart,
    figures_of,
    grouped,
    over_seeds,
    resample,
    smooth,
)
from l2rtui.domain.curves.export import csv_text, svg_text
from l2rtui.domain.curves.run_curve import MAX_FIGURES, MAX_VALUE, Axis, CurveRecord, RecordBatch, RunCurve
from l2rtui.domain.curves.scale import (
    LABEL_CHARS,
    number_label,
    position_scale,
    span_label,
    usual_values,
    value_scale,
)
from l2rtui.domain.experiments import bootstrap_interval

NAN = math.nan
START = 1.7e9


def record(number, *, start=START, **figures):
    return CurveRecord(start + number, 100.0 * number, 10.0 * number, figures)


def curve_of(values, capacity=8, *, start=START):
    curve = RunCurve(capacity)
    for number, value in enumerate(values):
        figures = {} if math.isnan(value) else {"return": value}
        curve.add(record(number, start=start, **figures))
    return curve


def batch_of(values):
    numbers = range(len(values))
    return RecordBatch(
        array("d", [100.0 * number for number in numbers]),
        array("d", [START + number for number in numbers]),
        array("d", [10.0 * number for number in numbers]),
        {"return": array("d", values)},
    )


VALUES = st.lists(st.floats(-1e6, 1e6, width=32) | st.just(NAN), max_size=400)


# --- storage ---------------------------------------------------------------------------------------------------
@given(VALUES)
def test_no_record_and_no_extreme_value_is_lost(values):
    curve = curve_of(values)
    buckets = curve.buckets("return")
    finite = [value for value in values if not math.isnan(value)]
    assert sum(buckets.counts) == len(finite)
    assert sum(buckets.sums) == pytest.approx(sum(finite), abs=1e-3)
    assert min(buckets.lows, default=math.inf) == min(finite, default=math.inf)
    assert max(buckets.highs, default=-math.inf) == max(finite, default=-math.inf)
    assert curve.num_records == len(values)


@given(VALUES, st.integers(1, 50))
def test_records_in_batches_are_stored_as_single_ones_are(values, size):
    single, batched = curve_of(values), RunCurve(8)
    everything = batch_of(values)
    for first in range(0, len(values), size):
        part = slice(first, first + size)
        figures = {name: column[part] for name, column in everything.figures.items()}
        batched.add_all(RecordBatch(*(column[part] for column in everything[:3]), figures))
    assert batched.num_records == single.num_records
    assert (batched.first, batched.last) == (single.first, single.last)
    for axis in Axis:
        assert batched.positions(axis) == single.positions(axis)
    assert batched.buckets("return").counts == single.buckets("return").counts
    assert batched.buckets("return").lows == single.buckets("return").lows


def test_memory_grows_with_the_logarithm_of_the_length():
    curve, sizes = RunCurve(), []
    day = batch_of([float(number % 100) for number in range(86_400)])
    for days in range(4):
        shift = 86_400.0 * days
        moved = [
            array("d", [value + factor * shift for value in column])
            for column, factor in zip(day[:3], (100, 1, 10), strict=True)
        ]
        curve.add_all(RecordBatch(*moved, day.figures))
        sizes.append(curve.num_buckets)
    assert curve.num_records == 4 * 86_400
    assert sizes[0] <= 512 * 9
    assert sizes[3] - sizes[0] <= 2 * 512  # two further levels for four times the length
    assert sum(curve.buckets("return").counts) == 4 * 86_400


def test_a_log_that_is_read_again_adds_nothing():
    curve = curve_of([1.0, 2.0, 3.0])
    assert curve.add(record(1, **{"return": 9.0})) is False
    curve.add_all(batch_of([9.0, 9.0, 9.0]))
    assert sum(curve.buckets("return").sums) == 6.0
    curve.add_all(batch_of([9.0, 9.0, 9.0, 4.0]))
    assert sum(curve.buckets("return").sums) == 10.0


def test_a_clock_that_is_set_back_and_lost_updates_wait_at_their_highest_value():
    curve = RunCurve()
    for time, steps, updates in ((100.0, 10.0, 5.0), (40.0, 20.0, 3.0), (101.0, 30.0, 6.0)):
        assert curve.add(CurveRecord(time, steps, updates, {}))
    assert list(curve.positions(Axis.TIME)) == [100.0, 100.0, 101.0]
    assert list(curve.positions(Axis.UPDATES)) == [5.0, 5.0, 6.0]
    assert list(curve.positions(Axis.ENV_STEPS)) == [10.0, 20.0, 30.0]


def test_a_figure_that_comes_later_counts_no_records_before_it():
    curve = RunCurve(4)
    for number in range(40):
        curve.add(record(number, **({"loss": 1.0} if number >= 30 else {})))
    assert curve.figures == ("loss",)
    assert sum(curve.buckets("loss").counts) == 10
    assert len(curve.buckets("loss").counts) == len(curve.positions(Axis.TIME))
    assert sum(curve.buckets("nothing").counts) == 0
    assert len(curve.buckets("nothing").counts) == curve.num_buckets


def test_a_figure_that_is_no_number_any_more_stays_apart_from_zero():
    curve = curve_of([1.0, NAN, math.inf, 10 * MAX_VALUE, 2.0])
    assert list(curve.buckets("return").counts) == [1, 0, 0, 0, 1]


def test_a_hostile_log_of_many_names_is_bounded():
    curve = RunCurve()
    curve.add(record(0, **{f"f{number}": 1.0 for number in range(1000)}))
    curve.add(record(1, other=1.0))
    assert len(curve.figures) == MAX_FIGURES


def test_an_empty_curve_has_no_positions():
    curve = RunCurve()
    assert (curve.first, curve.last, curve.num_buckets, curve.figures) == ({}, {}, 0, ())
    assert list(curve.positions(Axis.TIME)) == []


def test_a_curve_that_was_read_back_continues_with_the_records_that_came_meanwhile():
    live = curve_of([float(number) for number in range(100)])
    older = curve_of([float(number) for number in range(90)])
    older.continue_with(live)
    older.continue_with(live)
    assert older.last == live.last
    assert older.positions(Axis.ENV_STEPS)[-1] == 9900.0
    assert older.num_records == 100
    gaps = curve_of([NAN] * 20)
    gaps.continue_with(curve_of([NAN] * 30))
    assert gaps.num_records > 20
    assert gaps.figures == ()


# --- columns ---------------------------------------------------------------------------------------------------
def test_a_column_is_the_mean_of_its_records_with_the_least_and_the_greatest():
    curve = curve_of([0.0, 10.0, 20.0, 30.0], capacity=256)
    columns = resample(curve, "return", Grid(Axis.ENV_STEPS, 0.0, 300.0, 2))
    assert columns.means == [5.0, 25.0]
    assert (columns.lows, columns.highs, columns.counts) == ([0.0, 20.0], [10.0, 30.0], [2, 2])


def test_time_is_counted_from_an_origin_and_columns_without_records_are_empty():
    curve = curve_of([1.0, NAN, 3.0], capacity=256)
    columns = resample(curve, "return", Grid(Axis.TIME, 0.0, 6.0, 6), START)
    assert columns.counts == [1, 0, 1, 0, 0, 0]
    assert math.isnan(columns.means[1])
    assert Grid(Axis.TIME, 0.0, 6.0, 6).centre(0) == 0.5


@given(VALUES.filter(len), st.integers(1, 60))
def test_resampling_loses_no_record_either(values, num):
    curve = curve_of(values)
    high = max(1.0, curve.last[Axis.ENV_STEPS])
    columns = resample(curve, "return", Grid(Axis.ENV_STEPS, 0.0, high, num))
    assert sum(columns.counts) == sum(not math.isnan(value) for value in values)


def test_smoothing_starts_at_the_first_value_and_comes_close_after_its_time_constant():
    smoothed = smooth([0.0, *([1.0] * 10)], 10.0)
    assert smoothed[0] == 0.0
    assert smoothed[-1] == pytest.approx(1 - math.exp(-1))
    assert smooth([5.0] * 4, 3.0) == pytest.approx([5.0] * 4)


def test_smoothing_counts_a_gap_as_so_many_steps():
    gap = smooth([0.0, NAN, NAN, 1.0], 10.0)
    assert math.isnan(gap[1])
    assert gap[3] == pytest.approx(1 - math.exp(-0.3))
    assert smooth([0.0, 1.0], 1e-9)[1] == 1.0


def test_gaps_are_bridged_between_values_and_not_beyond_them():
    assert bridge([NAN, 1.0, NAN, NAN, 4.0, NAN])[1:5] == [1.0, 2.0, 3.0, 4.0]
    assert all(map(math.isnan, bridge([NAN, 1.0, NAN])[::2]))
    assert bridge([]) == []


def test_the_mean_over_seeds_counts_only_those_that_came_so_far():
    columns = over_seeds([[1.0, 3.0, NAN], [3.0, NAN, 7.0], [2.0, 2.0, NAN]])
    assert columns.means == [2.0, pytest.approx((3 + 5 + 2) / 3), 7.0]
    assert columns.counts == [3, 3, 1]
    assert (columns.lows[0], columns.highs[0]) == bootstrap_interval((1.0, 3.0, 2.0)) == (1.0, 3.0)
    assert columns.lows[2] == columns.highs[2] == 7.0
    assert math.isnan(over_seeds([[NAN], [NAN]]).means[0])


def test_the_interval_of_many_seeds_is_drawn_at_some_columns_and_encloses_the_mean_at_all():
    runs = [[float(seed * column) for column in range(100)] for seed in range(9)]
    runs[0][60:] = [NAN] * 40  # one ends early
    columns = over_seeds(runs)
    assert all(map(float.__le__, columns.lows, columns.means))
    assert all(map(float.__le__, columns.means, columns.highs))
    for column in (0, 60, 99):
        values = tuple(run[column] for run in runs if not math.isnan(run[column]))
        assert (columns.lows[column], columns.highs[column]) == pytest.approx(bootstrap_interval(values))


def test_the_newest_column_is_the_mean_of_as_many_records_as_the_others():
    values = [500.0 + 100.0 * (-1) ** number for number in range(101)]  # 600, 400, 600, …
    columns = resample(curve_of(values, capacity=256), "return", Grid(Axis.ENV_STEPS, 0.0, 12_000.0, 12))
    assert columns.counts == [10] * 10 + [1, 0], "one record only has come to the newest column"
    assert columns.means[:10] == [500.0] * 10
    assert columns.means[10] == pytest.approx(500.0, abs=20.0)


# --- scales ----------------------------------------------------------------------------------------------------
@given(
    st.lists(st.floats(-1e30, 1e30), min_size=1, max_size=8),
    st.integers(2, 12),
)
def test_a_scale_of_values_holds_them_all_between_few_round_ticks(values, most_ticks):
    scale = value_scale(values, most_ticks)
    assert scale is not None
    slack = (scale.high - scale.low) * 1e-9
    assert scale.low - slack <= min(values)
    assert max(values) <= scale.high + slack
    assert len(scale.ticks) <= max(3, most_ticks)
    assert all(len(label) <= LABEL_CHARS for _, label in scale.ticks)


def test_ticks_are_round_and_told_apart():
    def labels(*values, most=5):
        scale = value_scale(values, most)
        return [label for _, label in scale.ticks] if scale else None

    assert labels(0.0, 45.3) == ["0", "20", "40", "60"]
    assert labels(-4.0, 2e6) == ["-1M", "0", "1M", "2M"]
    assert labels(1234567.0, 1234569.0)[0] == "1234567.0"
    assert labels(-1.0, 1.0, most=4) == ["-1", "0", "1"]
    assert labels(-1.234, 1900.0, most=3) == ["0", "1,000"]
    assert labels(0.216, 1897.0, most=3) == ["500", "1,500"]
    assert labels(41.2345, 42.8, most=2) == ["41.5", "42.5"]
    assert labels(3.0, 3.0 + 1e-14) == labels(3.0)
    assert labels(NAN, math.inf) is None
    assert labels(0.0) == ["-0.5", "0", "0.5"]


@pytest.mark.parametrize(
    ("value", "step", "label"),
    [
        (0.0, 1.0, "0"),
        (2500.0, 500.0, "2,500"),
        (25_000.0, 5000.0, "25k"),
        (1.2e9, 0.2e9, "1.2G"),
        (3e15, 1e15, "3,000T"),
        (1e30, 1e29, "1e+30"),
        (0.00001, 0.00001, "0.00001"),
        (1e-12, 1e-12, "1e-12"),
    ],
)
def test_numbers_are_short(value, step, label):
    assert number_label(value, step) == label


def test_positions_have_ticks_inside_their_limits_at_round_numbers_and_times():
    assert [label for _, label in position_scale(0.0, 150e6, 6).ticks] == ["0", "50M", "100M", "150M"]
    hours = position_scale(0.0, 86_400.0, 6, is_time=True)
    assert [label for _, label in hours.ticks] == ["0", "4h", "8h", "12h", "16h", "20h", "1d"]
    days = position_scale(0.0, 40 * 86_400.0, 5, is_time=True)
    assert [label for _, label in days.ticks] == ["0", "10d", "20d", "30d", "40d"]
    assert [value for value, _ in position_scale(30.0, 700.0, 6, is_time=True).ticks] == [120, 240, 360, 480, 600]
    assert position_scale(5.0, 5.0, 3).high == 6.0


def test_spans_are_written_in_two_units_at_most():
    assert [span_label(value) for value in (0.2, 7, 90, 3600, 3605, 93_600, 2 * 86_400 + 59)] == [
        "0", "7s", "1m30s", "1h", "1h", "1d2h", "2d",
    ]  # fmt: skip


# --- charts ----------------------------------------------------------------------------------------------------
def seed(name, values, **fields):
    return SeedCurve(name, curve_of(values, 256, start=fields.pop("start", START)), **fields)


def test_runs_of_different_length_share_their_scales():
    groups = grouped(
        [seed("a", [0.0, 10.0]), seed("b", [float(number) for number in range(100)])], by_experiment=False
    )
    drawn = chart(groups, "return", ChartSettings(), 100, (6, 6))
    assert drawn.x.low == 0.0
    assert drawn.x.high >= 9900.0
    assert drawn.y is not None
    assert drawn.y.high >= 99.0
    a, b = drawn.lines
    assert a.last is not None
    assert b.last is not None
    assert a.last < b.last
    assert a.at(99) == 10.0
    assert [line.has_spread for line in drawn.lines] == [False, False]
    assert drawn.label == "return"


def test_seeds_of_an_experiment_are_one_line_with_their_deviation():
    runs = [seed(f"s{number}", [float(number)] * 50, seed=number, experiment="e") for number in range(3)]
    (group,) = grouped(runs, by_experiment=True)
    assert group.title == "e (mean of 3 seeds, 95% interval)"
    drawn = chart([group], "return", ChartSettings(), 10, (6, 6))
    (line,) = drawn.lines
    assert line.is_mean
    assert line.columns.means[4] == 1.0
    assert (line.columns.lows[4], line.columns.highs[4], line.columns.counts[4]) == (0.0, 2.0, 3)
    apart = grouped(runs, by_experiment=False)
    assert [group.title for group in apart] == ["s0", "s1", "s2"]


def test_time_begins_at_the_launch_and_without_a_sane_one_at_the_first_record():
    values = [1.0] * 60
    after_launch = seed("a", values, launched=START - 30.0)
    clock_behind = seed("b", values, launched=START + 1000.0)
    unknown = seed("c", values)
    assert after_launch.origin(Axis.TIME) == START - 30.0
    assert clock_behind.origin(Axis.TIME) == unknown.origin(Axis.TIME) == START
    assert after_launch.origin(Axis.UPDATES) == 0.0
    drawn = chart([CurveGroup("a", (after_launch,))], "return", ChartSettings(Axis.TIME), 90, (6, 6))
    first = next(number for number, value in enumerate(drawn.lines[0].columns.means) if not math.isnan(value))
    assert drawn.grid.centre(first) == pytest.approx(30.0, abs=1.5)


def test_a_window_is_the_newest_part_and_a_resumed_run_does_not_begin_at_zero():
    run = seed("a", [float(number) for number in range(1000)])
    drawn = chart([CurveGroup("a", (run,))], "return", ChartSettings(window=4), 50, (6, 6))
    assert drawn.x.low == pytest.approx(0.75 * 99_900)
    resumed = RunCurve()
    for number in range(1000, 1100):
        resumed.add(record(number, **{"return": 1.0}))
    drawn = chart([CurveGroup("r", (SeedCurve("r", resumed),))], "return", ChartSettings(), 50, (6, 6))
    assert drawn.x.low == 100_000.0


def test_behind_a_smoothed_line_alone_stands_what_was_smoothed_away():
    run = seed("a", [float(number % 2) for number in range(200)])
    smoothed = chart([CurveGroup("a", (run,))], "return", ChartSettings(smoothing=0.1), 20, (6, 6))
    (line,) = smoothed.lines
    assert line.has_spread
    assert (line.columns.lows[10], line.columns.highs[10]) == (0.0, 1.0)
    assert 0.0 < line.columns.means[-1] < 1.0
    several = chart(
        grouped([run, seed("b", [1.0])], by_experiment=False), "return", ChartSettings(smoothing=0.1), 20, (6, 6)
    )
    assert not any(line.has_spread for line in several.lines)


def test_runs_without_records_leave_an_empty_chart():
    groups = [CurveGroup("a", (SeedCurve("a", RunCurve()),)), CurveGroup("b", ())]
    drawn = chart(groups, "return", ChartSettings(), 10, (6, 6))
    assert drawn.y is None
    assert [line.last for line in drawn.lines] == [None, None]
    assert drawn.lines[0].at(5) is None
    assert figures_of(groups) == ()
    at_start = chart([CurveGroup("a", (seed("a", [1.0]),))], "return", ChartSettings(), 10, (6, 6))
    assert at_start.x.high > at_start.x.low


def test_figures_come_in_the_order_of_charts_and_unknown_ones_last():
    curve = RunCurve()
    curve.add(record(0, zeal=1.0, policy_lag=1.0, **{"return": 1.0}))
    group = CurveGroup("a", (SeedCurve("a", curve),))
    assert figures_of([group]) == ("return", "policy_lag", "zeal")
    assert chart([group], "zeal", ChartSettings(), 10, (6, 6)).label == "zeal"


def test_what_is_drawn_is_said():
    assert ChartSettings().facts == ("over env steps", "not smoothed", "")
    facts = ChartSettings(Axis.TIME, 0.02, 4).facts
    assert facts == ("over time since launch", "EMA over 2% of axis", "newest 1/4")


# --- export ----------------------------------------------------------------------------------------------------
def test_a_table_has_every_record_in_one_row_or_another():
    run = SeedCurve("a,b", curve_of([float(number) for number in range(50)] + [NAN]), 3, "e")
    text = csv_text([run, SeedCurve("none", RunCurve())])
    rows = list(csv.DictReader(io.StringIO(text)))
    assert sum(int(row["records"]) for row in rows) == 51
    assert {(row["run"], row["experiment"], row["seed"]) for row in rows} == {("a,b", "e", "3")}
    assert (rows[-1]["env_steps"], rows[-1]["time"], rows[-1]["updates"]) == ("5000", f"{START + 50:.3f}", "500")
    assert rows[-1]["return"] == rows[-1]["return_min"] == ""
    total = sum(int(row["records"]) * float(row["return"]) for row in rows if row["return"])
    assert total == pytest.approx(sum(range(50)), rel=1e-3)
    assert min(float(row["return_min"]) for row in rows if row["return"]) == 0.0


def test_a_table_of_runs_with_different_figures_leaves_cells_empty():
    other = RunCurve()
    other.add(record(0, loss=2.0))
    rows = list(csv.DictReader(io.StringIO(csv_text([seed("a", [1.0]), SeedCurve("b", other)]))))
    assert (rows[0]["loss"], rows[1]["return"], rows[1]["loss"]) == ("", "", "2")


def parsed(text):
    return ET.fromstring(text)  # noqa: S314  (our own text)


def test_an_outlier_does_not_flatten_the_rest_and_is_marked_at_the_edge():
    rates = [6880.0, *(500.0 + number % 7 for number in range(60))]
    assert max(usual_values(rates)) == 506.0
    assert usual_values([1.0, 100.0]) == [1.0, 100.0], "two values are no distribution"
    rising = [float(number) for number in range(100)]
    assert usual_values(rising) == rising
    scale = value_scale(usual_values(rates), 5)
    assert scale is not None
    assert (scale.share(6880.0) > 1, scale.clipped_share(6880.0)) == (True, 1.0)
    assert math.isnan(scale.clipped_share(math.nan))


SVG = "{http://www.w3.org/2000/svg}"


def test_a_picture_is_well_formed_whatever_a_run_is_named_and_has_a_line_for_each_group():
    runs = [seed(f"s{number}<&\x1b", [1.0, 2.0, 3.0], experiment="e") for number in range(20)]
    groups = grouped(runs, by_experiment=False)
    root = parsed(svg_text(groups, ChartSettings()))
    lines = root.findall(f".//{SVG}polyline")
    assert len(lines) == 20
    assert len({(line.get("stroke"), line.get("stroke-dasharray")) for line in lines}) == 20
    assert any(text.text == "s0<&" for text in root.iter(f"{SVG}text"))
    assert not root.findall(f".//{SVG}polygon")


def test_a_picture_of_seeds_has_their_spread_and_all_figures():
    runs = []
    for number in range(2):
        curve = RunCurve()
        for at in range(30):
            curve.add(record(at, loss=1.0, **{"return": float(number)}))
        runs.append(SeedCurve(f"s{number}", curve, number, "e"))
    groups = grouped(runs, by_experiment=True)
    root = parsed(svg_text(groups, ChartSettings(Axis.UPDATES, 0.02)))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"return", "loss", "updates", "e (mean of 2 seeds, 95% interval)"} <= set(texts)
    assert "over updates, EMA over 2% of axis" in texts
    assert len(root.findall(f".//{SVG}polygon")) == 2


def test_a_picture_of_a_figure_without_values_says_so():
    group = CurveGroup("a", (seed("a", [1.0]),))
    root = parsed(svg_text([group], ChartSettings(), ("loss",)))
    assert "no value" in [text.text for text in root.iter(f"{SVG}text")]
