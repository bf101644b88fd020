"""Camera images as terminal text keep their shape and colours."""

from __future__ import annotations

from l2rtui.domain.simulator import SHADES, CameraImage, to_ansi, to_cells


def test_an_image_keeps_its_shape_and_its_colours():
    image = CameraImage(4, 2, bytes([255, 0, 0] * 4 + [0, 0, 255] * 4))
    rows = list(to_cells(image, 80, 1))
    assert [len(row) for row in rows] == [4]
    assert rows[0][0] == ((255, 0, 0), (0, 0, 255))
    coloured, *_ = to_ansi(image, 80, 1, has_colours=True)
    assert coloured.startswith("\x1b[38;2;255;0;0;48;2;0;0;255m▀")
    assert coloured.endswith("\x1b[0m")
    shades, *_ = to_ansi(CameraImage(2, 2, bytes([0] * 6 + [255] * 6)), 80, 1, has_colours=False)
    assert "\x1b" not in shades
    assert set(shades) <= set(SHADES)
