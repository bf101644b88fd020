"""Track geometry against shapes with known answers, and the project's own courses."""

import numpy as np
import pytest

from runtime.tracks.track import COURSES, Track, make_track


def circle(radius: float = 80.0, step: float = 1.0, *, clockwise: bool = False) -> Track:
    angle = np.linspace(0, 2 * np.pi, 4000, endpoint=False) * (-1 if clockwise else 1)
    points = radius * np.column_stack([np.cos(angle), np.sin(angle)])
    return Track.from_centre_line("circle", points, left=5.0, right=6.0, step=step)


@pytest.mark.parametrize(("clockwise", "sign"), [(False, 1.0), (True, -1.0)])
def test_circle_has_its_circumference_and_curvature(clockwise, sign):
    track = circle(clockwise=clockwise)
    assert track.length == pytest.approx(2 * np.pi * 80, rel=1e-4)
    assert track.curvature == pytest.approx(np.full(len(track.curvature), sign / 80), rel=1e-2)
    assert (track.left == 5.0).all()
    assert (track.right == 6.0).all()


def test_projection_finds_distance_offset_and_heading():
    track = circle()
    angle = np.array([0.3, 1.0, 3.0, 6.2])
    offset = np.array([0.0, 4.0, -4.0, 2.0])
    x, y = (80 - offset) * np.cos(angle), (80 - offset) * np.sin(angle)
    place = track.project(x, y, track.locate(x, y))
    assert place.distance == pytest.approx(80 * angle, abs=0.02)
    assert place.offset == pytest.approx(offset, abs=0.01)
    assert np.cos(place.heading - (angle + np.pi / 2)) == pytest.approx(np.ones(4), abs=1e-4)


def test_projection_moves_smoothly_around_the_whole_course():
    """Also off the centre line, where samples inside a bend are close together."""
    track = circle(radius=20.0)
    angles = np.arange(0, 4 * np.pi, 0.005)
    near = track.locate(np.array([16.0]), np.array([0.0]))
    distances = []
    for angle in angles:
        place = track.project(np.array([16 * np.cos(angle)]), np.array([16 * np.sin(angle)]), near)
        near = place.index
        distances.append(place.distance[0])
    gained = np.diff(distances) % track.length
    assert gained == pytest.approx(np.full(len(gained), 20 * 0.005), abs=0.02)


def test_projection_keeps_to_its_part_where_the_course_comes_close_to_itself():
    length, gap = 200.0, 6.0
    there = np.column_stack([np.arange(0, length), np.zeros(int(length))])
    back = np.column_stack([np.arange(length, 0, -1.0), np.full(int(length), gap)])
    track = Track.from_centre_line("there and back", np.vstack([there, back]), left=10.0, right=10.0)
    place = track.project(np.array([100.0]), np.array([4.0]), np.array([98]))
    assert place.offset[0] == pytest.approx(4.0)
    assert place.distance[0] == pytest.approx(100.0)


def test_look_ahead_is_the_mean_curvature_of_each_stretch():
    track = make_track("ridge")
    ahead = track.look_ahead([0.0, 5.0, 20.0, 60.0])
    at = len(track.curvature) - 3
    wrapped = np.concatenate([track.curvature, track.curvature])
    assert ahead.shape == (len(track.curvature), 3)
    assert ahead[at] == pytest.approx(
        [wrapped[at : at + 5].mean(), wrapped[at + 5 : at + 20].mean(), wrapped[at + 20 : at + 60].mean()]
    )


@pytest.mark.parametrize("name", COURSES)
def test_courses_close_smoothly_and_never_fold(name):
    track = make_track(name)
    assert track.length == pytest.approx(COURSES[name].length)
    assert 500 <= track.length <= 1200
    jumps = np.hypot(*(np.roll(track.centre, -1, axis=0) - track.centre).T)
    assert jumps == pytest.approx(np.full(len(jumps), track.step), rel=0.01)
    assert (track.curvature.sum() * track.step) == pytest.approx(2 * np.pi, rel=1e-3)
    assert 1 / np.abs(track.curvature).max() > 1.5 * track.left.max()
    assert np.abs(np.diff(track.curvature, append=track.curvature[:1])).max() < 0.006


@pytest.mark.parametrize("name", COURSES)
def test_courses_keep_their_parts_apart(name):
    track = make_track(name)
    index = np.arange(len(track.curvature))
    apart = np.abs(index[:, None] - index)
    far = np.minimum(apart, len(index) - apart) * track.step > 60
    gaps = np.hypot(*(track.centre[:, None] - track.centre).transpose(2, 0, 1))
    assert gaps[far].min() > 2 * track.left.max()


def test_start_lies_on_a_straight():
    for name in COURSES:
        assert np.abs(make_track(name).look_ahead([0.0, 40.0])[0, 0]) < 0.002


def test_unknown_course_names_the_known_ones():
    with pytest.raises(ValueError, match=r"'mars'; known are meadow, harbour, ridge"):
        make_track("mars")


@pytest.mark.parametrize("points", [[[0.0, 0.0]] * 7, np.zeros((10, 3)), np.full((10, 2), np.nan)])
def test_centre_line_that_is_none_is_refused(points):
    with pytest.raises(ValueError, match="at least 8 finite points"):
        Track.from_centre_line("bad", points, left=5.0, right=5.0)
