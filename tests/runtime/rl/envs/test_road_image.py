"""Images of the road: their contents match the track."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.rl.envs.racing_rules import FAR, FELT, HALF_WIDTH, NEAR, OPENING, SHAPE, SIDE, RacingOptions, View
from runtime.rl.envs.registry import make_vector_env
from runtime.tracks.track import COURSES, Track, make_track


@pytest.fixture(scope="module", params=sorted(COURSES))
def track(request) -> Track:
    return make_track(request.param)


def on(track: Track, rows: np.ndarray, offset: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    heading = track.heading[rows]
    return (
        track.centre[rows, 0] - offset * np.sin(heading),
        track.centre[rows, 1] + offset * np.cos(heading),
        heading,
    )


def test_each_pixel_is_road_where_the_track_has_road(track):
    view, rng = View.of(track), np.random.default_rng(5)
    x, y, yaw = on(track, rng.integers(0, len(track.curvature), 40), 2.0)
    yaw = yaw + rng.uniform(-1.0, 1.0, 40)
    pictures = view.render(x, y, yaw)[..., 0]
    ahead = np.geomspace(FAR, NEAR, SIDE)[:, None] - NEAR
    left = np.linspace(1.0, -1.0, SIDE) * (HALF_WIDTH + OPENING * ahead)
    for car in range(40):
        east = x[car] + ahead * np.cos(yaw[car]) - left * np.sin(yaw[car])
        north = y[car] + ahead * np.sin(yaw[car]) + left * np.cos(yaw[car])
        gaps = np.hypot(
            east.ravel()[:, None] - track.centre[:, 0], north.ravel()[:, None] - track.centre[:, 1]
        ).min(axis=1)
        sure = abs(gaps - track.left[0]) > 1.0  # a pixel of the map and the step between samples
        assert ((gaps < track.left[0]) == (pictures[car].ravel() > 127))[sure].all()


def test_left_is_left_and_far_is_up():
    line = np.column_stack([np.cos(t := np.linspace(0, 2 * np.pi, 200, endpoint=False)), np.sin(t)]) * 60.0
    ring = Track.from_centre_line("ring", line, left=6.0, right=6.0)  # counter-clockwise: a bend to the left
    picture = View.of(ring).render(*on(ring, np.array([0])))[0, :, :, 0]
    assert picture[-1, SIDE // 2 - 3 : SIDE // 2 + 3].min() == 255
    assert picture[-1, 0] == picture[-1, -1] == 0
    middle = picture[: SIDE // 2] > 127
    columns = np.broadcast_to(np.arange(SIDE), middle.shape)[middle]
    assert columns.mean() < SIDE / 2 - 4, "the road ahead goes to the left"
    turned = View.of(ring).render(
        *(at + extra for at, extra in zip(on(ring, np.array([0])), (0, 0, np.pi), strict=True))
    )
    assert (turned[0, : SIDE // 2, :, 0] > 127).any()
    assert np.broadcast_to(np.arange(SIDE), middle.shape)[turned[0, : SIDE // 2, :, 0] > 127].mean() > SIDE / 2 + 4


def test_far_from_the_course_there_is_no_road(track):
    away = np.array([1e6, -1e6, 1e6])
    assert not View.of(track).render(away, -away, np.zeros(3)).any()


def test_what_is_seen_changes_nothing_of_what_happens():
    place, view = (make_vector_env("racing", 5, options={"observation": each}) for each in ("place", "view"))
    felt, pictures = view.obs_space.split(view.reset(3))
    np.testing.assert_array_equal(felt, place.reset(3)[:, FELT])
    assert pictures[0].shape == (5, *SHAPE)
    rng = np.random.default_rng(1)
    for _ in range(120):
        action = rng.uniform(-1, 1, (5, 2)).astype(np.float32)
        ours, theirs = view.step(action), place.step(action)
        np.testing.assert_array_equal(ours.reward, theirs.reward)
        assert ours.episodes == theirs.episodes
        np.testing.assert_array_equal(view.obs_space.split(ours.obs)[0], theirs.obs[:, FELT])
        np.testing.assert_array_equal(view.obs_space.split(ours.final_obs)[0], theirs.final_obs[:, FELT])


def test_an_unknown_observation_is_named():
    with pytest.raises(ValueError, match="observation is 'camera'; it may be place or view"):
        RacingOptions.from_mapping({"observation": "camera"})
