"""Parallel coordinates of a sweep: positions on axes, labels, lines by their results, and hostile names."""

from __future__ import annotations

import math
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from l2rtui.domain.experiments.parallel_axes import number_axis, setting_axes
from l2rtui.domain.experiments.parallel_chart import parallel_chart
from l2rtui.domain.experiments.trial_results import TrialRun, trial_results
from l2rtui.domain.sweeps.trial import trial_of

SVG = "{http://www.w3.org/2000/svg}"


def results_of(*trials):
    """Results of trials, each with its settings and the mean return of its one seed."""
    return trial_results(
        TrialRun(f"r-t{number}", trial_of(number, settings), 0, "done", final)
        for number, (settings, final) in enumerate(trials)
    )


def picture(*trials, title="hunt"):
    return ET.fromstring(parallel_chart(title, results_of(*trials)))  # noqa: S314  (our own text)


def texts(root):
    return [text.text for text in root.iter(f"{SVG}text")]


def points(line):
    return [tuple(map(float, point.split(","))) for point in line.get("points").split()]


def test_numbers_over_decades_lie_on_a_logarithm_and_others_evenly():
    learning_rates = number_axis("lr", [1e-4, 1e-3, 1e-2, None])
    assert learning_rates.shares == (0.0, pytest.approx(0.5), 1.0, None)
    assert learning_rates.label == "lr (log)"
    assert [label for _, label in learning_rates.ticks] == ["0.0001", "0.001", "0.01"]
    epochs = number_axis("epochs", [2, 4, 6])
    assert (epochs.label, epochs.shares) == ("epochs", (0.0, 0.5, 1.0))
    assert number_axis("zero", [0.0, 5.0, 100.0]).label == "zero"
    assert number_axis("same", [3.0, 3.0]).shares == (0.5, 0.5)


def test_of_many_numbers_the_ends_and_the_round_ones_between_are_marked():
    assert [label for _, label in number_axis("lr", [n / 1e4 for n in range(2, 300)]).ticks] == [
        *("0.0002", "0.001", "0.01", "0.0299")
    ]
    assert [label for _, label in number_axis("n", [*range(-3, 43)]).ticks] == ["-3", "0", "10", "20", "30", "42"]
    tiny = number_axis("n", [n * 1e-320 for n in range(30)])  # such a range contains no round number
    assert [place for place, _ in tiny.ticks] == [0.0, 1.0]
    wide = number_axis("n", [1.7e308 * (n / 15) for n in range(-15, 16)])
    assert wide.shares[0::15] == (0.0, 0.5, 1.0)


def test_a_whole_number_beyond_those_with_a_point_is_a_word():
    (axis,) = setting_axes(results_of(({"n": 10**400}, 1.0), ({"n": 5}, 2.0)))
    assert [label for _, label in axis.ticks] == [str(10**400), "5"]


def test_words_lists_and_truth_values_lie_evenly_in_the_order_of_the_trials():
    results = results_of(
        ({"a": "relu", "b": [64, 64], "c": True}, 1.0),
        ({"a": "tanh", "b": 8, "c": False}, 3.0),
        ({"a": "gelu", "b": 8, "c": True}, 2.0),
    )
    words, mixed, flags = setting_axes(results)
    assert [label for _, label in words.ticks] == ["relu", "tanh", "gelu"]
    assert words.shares == (0.5, 1.0, 0.0)  # of the trials from best to worst
    assert [label for _, label in mixed.ticks] == ["[64, 64]", "8"]
    assert [label for _, label in flags.ticks] == ["true", "false"]


def test_a_line_goes_through_every_axis_and_the_best_is_last_darkest_and_widest():
    root = picture(
        ({"x.lr": 1e-4, "x.n": 1}, 5.0), ({"x.lr": 1e-2, "x.n": 2}, 500.0), ({"x.lr": 1e-3, "x.n": 1}, 90.0)
    )
    lines = root.findall(f"{SVG}polyline")
    assert [line.find(f"{SVG}title").text.split(":")[0] for line in lines] == ["t0", "t2", "t1"]
    assert all(len(points(line)) == 3 for line in lines)
    widths = [float(line.get("stroke-width")) for line in lines]
    shades = [sum(bytes.fromhex(line.get("stroke")[1:])) for line in lines]
    assert widths == sorted(set(widths))
    assert shades == sorted(set(shades), reverse=True)
    tops = [points(line)[-1][1] for line in lines]
    assert tops == sorted(tops, reverse=True)
    assert {"hunt", "lr (log)", "n", "mean return", "t1"} <= set(texts(root))


def test_a_trial_without_a_return_is_dotted_and_ends_before_the_result():
    root = picture(({"lr": 1, "n": 1}, None), ({"lr": 2, "n": 2}, 4.0))
    dotted, drawn = root.findall(f"{SVG}polyline")
    assert dotted.get("stroke-dasharray")
    assert (len(points(dotted)), len(points(drawn))) == (2, 3)
    assert any("1 without a return dotted" in text for text in texts(root))
    assert "no value" in texts(picture(({"lr": 1}, None), ({"lr": 2}, math.nan)))


def test_a_trial_without_a_setting_has_a_gap_there():
    root = picture(({"a": 1, "b": 1, "c": 1, "d": 1}, 1.0), ({"a": 2, "b": 2, "d": 2}, 2.0))
    assert sorted(len(points(line)) for line in root.findall(f"{SVG}polyline")) == [2, 2, 5]


def test_hostile_names_are_text():
    hostile = "</text><script>alert(1)</script>\x1b[31m&\u202e"
    root = picture(({hostile: hostile, "n": 1}, 1.0), ({hostile: "b", "n": 2}, 2.0), title=hostile)
    assert {element.tag.removeprefix(SVG) for element in root.iter()} == {
        *("svg", "rect", "text", "line", "polyline", "title")
    }
    assert not any("\x1b" in (element.text or "") for element in root.iter())


SETTINGS = st.dictionaries(
    st.sampled_from(["a", "b.c", "d.c"]),
    st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(), st.booleans()),
)
TRIALS = st.lists(st.tuples(SETTINGS, st.one_of(st.none(), st.floats())), min_size=1, max_size=14)


@given(TRIALS)
def test_any_values_give_a_picture_that_is_well_formed_and_lies_within_its_frame(trials):
    root = picture(*trials)
    width, height = float(root.get("width")), float(root.get("height"))
    for line in root.findall(f"{SVG}polyline"):
        assert all(0 <= x <= width and 0 <= y <= height for x, y in points(line))


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30))
def test_ticks_stand_apart_and_shares_are_in_the_order_of_the_values(values):
    axis = number_axis("x", values)
    assert all(-1e-9 <= share <= 1 + 1e-9 for share in axis.shares)
    pairs = sorted(zip(values, axis.shares, strict=True))
    assert all(first[1] <= second[1] + 1e-9 for first, second in pairwise(pairs))
    places = [share for share, _ in axis.ticks]
    assert places == sorted(places)
    assert len(axis.ticks) <= 18
