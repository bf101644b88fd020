"""scikit-learn's digits: 1,797 real handwritten digits of 8 x 8 grey values, small enough to include in the code.

`digits.csv.gz` is the file of that name in scikit-learn (since 0.9, unchanged; BSD licence): the test set of the
UCI "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak (1998, CC BY 4.0). Including it keeps
the 150 MB of scikit-learn and SciPy out of an image.
"""

from __future__ import annotations

import gzip
import io
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

import numpy as np
from numpy.typing import NDArray

SIDE: Final = 8
BRIGHTEST: Final = 16
TEST_COUNT: Final = 360
"""Number of images in the test set, always the same ones, about a fifth of each digit."""


@dataclass(frozen=True, slots=True)
class Digits:
    """Grey values from 0 to 16, (count, 8, 8), and their digits."""

    pictures: NDArray[np.uint8]
    labels: NDArray[np.intp]

    def scaled(self) -> NDArray[np.float32]:
        """Return the images as rows of numbers from 0 to 1, (count, 64)."""
        return self.pictures.reshape(len(self.pictures), -1).astype(np.float32) / np.float32(BRIGHTEST)


def load() -> tuple[Digits, Digits]:
    """Return the images for training and for testing."""
    packed = files("runtime.jobs.datasets").joinpath("digits.csv.gz").read_bytes()
    rows = np.loadtxt(io.BytesIO(gzip.decompress(packed)), delimiter=",", dtype=np.uint8)
    # The file is sorted by its few writers: shuffled, so that both parts contain all of them.
    rows = rows[np.random.default_rng(0).permutation(len(rows))]
    pictures, labels = rows[:, :-1].reshape(-1, SIDE, SIDE), rows[:, -1].astype(np.intp)
    return Digits(pictures[TEST_COUNT:], labels[TEST_COUNT:]), Digits(pictures[:TEST_COUNT], labels[:TEST_COUNT])
