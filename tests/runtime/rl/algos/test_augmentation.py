"""Random shifts of images: the movement, its size, and that everything else is unchanged."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from runtime.rl.algos.actor import ActorShape
from runtime.rl.algos.off_policy.sac import random_shift, shifted
from runtime.rl.spaces import ActionSpace, ObsSpace

SPACE = ObsSpace(2, ((6, 8, 3), (5, 5, 1)))
SHAPE = ActorShape.of(SPACE, ActionSpace(2), (8,), head="squashed", convolutions=((2, 3, 1),))


@pytest.mark.parametrize("offset", [(0, 0), (2, -1), (-3, 3), (-2, 2)])
def test_a_shift_is_that_of_a_padded_picture(offset: tuple[int, int]) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    padded = np.pad(picture, ((3, 3), (3, 3), (0, 0)), mode="edge")
    down, across = 3 + offset[0], 3 + offset[1]
    expected = padded[down : down + 6, across : across + 8]
    assert (shifted(torch.from_numpy(picture)[None], torch.tensor([offset]))[0].numpy() == expected).all()


def test_numbers_stay_and_each_picture_moves_its_own_way() -> None:
    rng = np.random.default_rng(1)
    vector = rng.standard_normal((64, 2), dtype=np.float32)
    # Each pixel of the first holds its row and column, so that the image shows the shift.
    place = np.broadcast_to(np.arange(48).reshape(6, 8, 1), (64, 6, 8, 3)).astype(np.uint8)
    rows = torch.from_numpy(SPACE.pack(vector, [place, rng.integers(0, 256, (64, 5, 5, 1), dtype=np.uint8)]))
    moved = random_shift(SHAPE, rows, 2, torch.Generator().manual_seed(0))
    numbers, pictures = SPACE.split(moved.numpy())
    assert (numbers == vector).all()
    middle = pictures[0][:, 3, 4, 0].astype(int)
    down, across = middle // 8 - 3, middle % 8 - 4
    assert set(down) == set(across) == {-2, -1, 0, 1, 2}
    assert len({*zip(down, across, strict=True)}) > 15, "down and across are drawn apart"


def test_without_pixels_or_pictures_nothing_changes() -> None:
    generator = torch.Generator()
    before = generator.get_state()
    rows = torch.zeros((3, SHAPE.obs_dim), dtype=torch.uint8)
    assert random_shift(SHAPE, rows, 0, generator) is rows
    numbers = ActorShape.of(ObsSpace(4), ActionSpace(2), (8,), head="squashed")
    assert random_shift(numbers, torch.zeros(3, 4), 4, generator).shape == (3, 4)
    assert (generator.get_state() == before).all()
