"""Limits of a run: their notation, near and reached limits, and the derived deadline."""

from __future__ import annotations

import json

import pytest

from runtime.base.durations import duration_text, parse_duration
from runtime.base.limits import (
    Limits,
    Usage,
    deadline_label,
    limits_of,
    notices,
    worst_notice,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), (90, 90), ("30m", 1800), ("12h", 43_200), ("1h30m", 5400), ("2d", 172_800), ("1.5 h", 5400)],
)
def test_durations_are_read_as_people_write_them(text, seconds):
    assert parse_duration(text) == seconds
    assert parse_duration("0s", allows_zero=True) == 0


WRONG = ["", "12x", "h", "-3m", 0, -1, True, None, "inf", float("nan"), "9999999d", "1h-2m"]


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_duration_is_refused_with_a_sentence(text):
    with pytest.raises(ValueError, match="is not a duration: write seconds"):
        parse_duration(text)


def test_durations_are_written_without_empty_parts():
    texts = [duration_text(seconds) for seconds in (2.5, 60, 5400, 43_200, 90_061)]
    assert texts == ["2.5 s", "1 min", "1 h 30 min", "12 h", "25 h 1 min 1 s"]


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ({"wal": "1h"}, "unknown limit wal; the limits are wall, idle, no_progress, gpu_hours"),
        ({"idle": "soon"}, "idle: 'soon' is not a duration"),
        ({"gpu_hours": "many"}, "gpu_hours: 'many' is not a number of hours"),
        ({"gpu_hours": 0}, "gpu_hours: 0 is not a number of hours"),
        ({"gpu_hours": True}, "gpu_hours: True is not a number of hours"),
    ],
)
def test_a_wrong_limit_is_named(written, sentence):
    with pytest.raises(ValueError, match=sentence.replace("(", r"\(")):
        limits_of(written)


def test_limits_travel_as_text_and_fill_up_from_defaults():
    limits = limits_of({"wall": "12h", "gpu_hours": 50})
    assert Limits.parse(limits.text(gpus=2)) == (limits, 2)
    assert json.loads(limits.text(2)) == {"wall": 43_200, "gpu_hours": 50, "gpus": 2}
    assert Limits().text(gpus=4) == ""
    assert Limits.parse("") == (Limits(), 0)
    assert Limits(idle=5).over(limits) == Limits(wall=43_200, idle=5, gpu_hours=50)
    assert Limits(idle=5, wall=1, no_progress=3).of_learner == ("idle", "no_progress")


@pytest.mark.parametrize("text", ["[]", '{"wall":"x"}', '{"wall":null}', "{", '{"walls":3}', "[" * 100_000])
def test_a_variable_that_holds_no_limits_is_refused(text):
    with pytest.raises(ValueError, match="are no limits"):
        Limits.parse(text)


def test_a_limit_is_near_at_nine_tenths_and_reached_at_its_value():
    limits = Limits(wall=100, idle=10, no_progress=1000, gpu_hours=4)
    assert worst_notice(limits, Usage(wall=89, idle=8, no_progress=899, gpu_hours=3)) is None
    near = worst_notice(limits, Usage(wall=93, idle=9))
    assert near is not None
    assert not near.is_reached
    assert near.sentence == "limit near: 93 % of limit wall 1 min 40 s"
    reached = worst_notice(limits, Usage(wall=99, gpu_hours=4))
    assert reached is not None
    assert reached.is_reached
    assert reached.sentence == "ended by limit 4 GPU-hours"
    assert [notice.name for notice in notices(limits, Usage(100, 10, 1000, 4))] == [
        "wall",
        "idle",
        "no_progress",
        "gpu_hours",
    ]


def test_the_deadline_is_the_earlier_of_wall_and_gpu_hours():
    limits = Limits(wall=7200, gpu_hours=2)
    assert (limits.deadline_seconds(0), limits.deadline_seconds(2)) == (7200, 3600)
    assert (deadline_label(limits, 0), deadline_label(limits, 2)) == ("limit wall 2 h", "limit 2 GPU-hours")
    assert Limits(idle=3).deadline_seconds(1) is None
    assert deadline_label(Limits(idle=3), 1) == ""
