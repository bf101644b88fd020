"""Camera images: cropping, shrinking, unchanged parts, and refused options."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from runtime.rl.envs.l2r_options import CameraPicture, area_weights, read_cameras
from runtime.sim.wire.errors import LostError

FRAME = np.random.default_rng(0).integers(0, 256, (12, 16, 3), dtype=np.uint8)
SMALL = {"Width": 16, "Height": 12}


def picture(name: str = "CameraFrontRGB", **options: Any) -> CameraPicture:
    return CameraPicture.from_mapping(name, {**SMALL, **options})


def test_a_frame_becomes_rgb() -> None:
    plain = picture()
    assert plain.shape == (12, 16, 3)
    assert (plain.read(FRAME) == FRAME[..., ::-1]).all()


def test_a_crop_cuts_top_bottom_left_and_right() -> None:
    cut = picture(crop=[1, 2, 3, 4])
    assert cut.shape == (9, 9, 3)
    assert (cut.read(FRAME) == FRAME[1:10, 3:12, ::-1]).all()


def test_half_the_size_is_the_mean_of_four_pixels() -> None:
    means = FRAME.reshape(6, 2, 8, 2, 3).mean(axis=(1, 3))[..., ::-1]
    assert np.abs(picture(resize=[6, 8]).read(FRAME) - means).max() <= 0.5


def test_pixels_count_by_the_area_that_a_new_one_covers() -> None:
    assert area_weights(3, 2) == pytest.approx(np.array([[2, 1, 0], [0, 1, 2]]) / 3)
    assert area_weights(2, 3) == pytest.approx(np.array([[1, 0], [0.5, 0.5], [0, 1]]))
    assert area_weights(384, 84).sum(axis=1) == pytest.approx(1.0)


@pytest.mark.parametrize("resize", [None, [6, 8]])
def test_grey_is_the_luma_of_the_colours(resize: list[int] | None) -> None:
    seen = picture(grey=True, resize=resize).read(FRAME).astype(float)
    colours = FRAME.astype(float) if resize is None else FRAME.reshape(6, 2, 8, 2, 3).mean(axis=(1, 3))
    luma = 0.299 * colours[..., 2] + 0.587 * colours[..., 1] + 0.114 * colours[..., 0]
    assert seen.shape == (*colours.shape[:2], 1)
    assert np.abs(seen[..., 0] - luma).max() <= 0.51


def test_classes_of_a_segmentation_are_not_mixed() -> None:
    classes = np.zeros((12, 16, 3), dtype=np.uint8)
    classes[:, 7:] = 200
    assert set(np.unique(picture("CameraFrontSegm", resize=[5, 6]).read(classes))) == {0, 200}


def test_a_frame_of_another_size_is_a_lost_simulator() -> None:
    with pytest.raises(LostError, match=r"CameraFrontRGB sends images of \(6, 8, 3\)"):
        picture().read(FRAME[:6, :8])


@pytest.mark.parametrize(
    ("cameras", "sentence"),
    [
        ("CameraFrontRGB", "must be a list of names"),
        (["CameraTop"], "there is no camera 'CameraTop'"),
        ({"CameraFrontRGB": 3}, "must be an object of options"),
        ({"CameraFrontRGB": {"width": 3}}, "has no option 'width'"),
        ({"CameraFrontRGB": {"Width": 0}}, "from 1 to 4096"),
        ({"CameraFrontRGB": {"grey": 1}}, "must be true or false"),
        ({"CameraFrontRGB": {"crop": [1, 2]}}, r"must be \[top, bottom, left, right\]"),
        ({"CameraFrontRGB": {"crop": [200, 184, 0, 0]}}, "leaves nothing of 384 x 512"),
        ({"CameraFrontRGB": {"resize": [0, 8]}}, r"must be \[height, width\], whole numbers from 1"),
    ],
)
def test_options_that_cannot_be_are_refused(cameras: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_cameras(cameras)
