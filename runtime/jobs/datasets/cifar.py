"""CIFAR-10's binary files: records of one byte for the class and 3,072 for the image, 32 x 32, plane by plane.

`data_batch_1.bin` to `data_batch_5.bin` are for training, `test_batch.bin` for testing; `batches.meta.txt` contains
the classes, one per line. Files are mapped and not read: all processes of a node share the pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from runtime.base.atomic_files import write_atomic
from runtime.base.errors import FailedError
from runtime.jobs.datasets import digits

SIDE: Final = 32
RECORD_BYTES: Final = 1 + 3 * SIDE * SIDE
META: Final = "batches.meta.txt"
ARCHIVE_FOLDER: Final = "cifar-10-batches-bin"
"""Folder in the data set's archive."""
_BATCHES: Final = 5


@dataclass(frozen=True, slots=True)
class Pictures:
    """Records of one or more files, (count, 3073) each."""

    files: tuple[NDArray[np.uint8], ...]

    def __len__(self) -> int:
        return sum(map(len, self.files))

    def rows_at(self, indices: NDArray[np.intp]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Return the images at these indices, (count, 3, 32, 32), and their classes."""
        records = np.empty((len(indices), RECORD_BYTES), dtype=np.uint8)
        first = 0
        for records_of_file in self.files:
            here = (indices >= first) & (indices < first + len(records_of_file))
            records[here] = records_of_file[indices[here] - first]
            first += len(records_of_file)
        return records[:, 1:].reshape(-1, 3, SIDE, SIDE), records[:, 0].astype(np.int64)


def find(folder: Path) -> Path:
    """Return the folder with the files: this one or the archive's folder in it. Raises FailedError."""
    for candidate in (folder, folder / ARCHIVE_FOLDER):
        if any(candidate.glob("*_batch*.bin")):
            return candidate
    raise FailedError(
        f"{folder} holds no data_batch_1.bin; `l2r-runtime fetch digits {folder}` makes some, or fetch CIFAR-10's "
        "binary archive"
    )


def training(folder: Path | None) -> Pictures:
    """Return the training images; without a folder, scikit-learn's digits. Raises FailedError."""
    if folder is None:
        return Pictures((_records(digits.load()[0]),))
    paths = sorted(find(folder).glob("data_batch_*.bin"))
    if not paths:
        raise FailedError(f"{folder} holds no data_batch_1.bin")
    return Pictures(tuple(_map(path) for path in paths))


def testing(folder: Path | None) -> Pictures:
    """Return the test images; without a folder, scikit-learn's digits. Raises FailedError."""
    if folder is None:
        return Pictures((_records(digits.load()[1]),))
    return Pictures((_map(find(folder) / "test_batch.bin"),))


def classes(folder: Path | None) -> tuple[str, ...]:
    """Return the names of the classes; their numbers if they have no names."""
    lines: list[str] = []
    try:
        lines = [] if folder is None else (find(folder) / META).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        pass
    return tuple(line.strip() for line in lines if line.strip()) or tuple(map(str, range(10)))


def _map(path: Path) -> NDArray[np.uint8]:
    try:
        size = path.stat().st_size
        if not size or size % RECORD_BYTES:
            raise FailedError(f"{path} is not in CIFAR-10's binary format: {size} bytes are no whole records")
        # Mapped: all processes of a node share one copy in the page cache.
        return np.memmap(path, dtype=np.uint8, mode="r", shape=(size // RECORD_BYTES, RECORD_BYTES))
    except OSError as error:
        raise FailedError(f"{path} cannot be read: {error.strerror}") from error


def write_digits(folder: Path) -> int:
    """Write scikit-learn's digits in this format, with four times the width and height, and return the bytes
    written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    train, test = digits.load()
    parts = {"test_batch.bin": _records(test)}
    for number, records in enumerate(np.array_split(_records(train), _BATCHES), start=1):
        parts[f"data_batch_{number}.bin"] = records
    for name, records in parts.items():
        write_atomic(folder / name, records.tobytes())
    write_atomic(folder / META, "".join(f"{digit}\n" for digit in range(10)).encode())
    return sum(records.nbytes for records in parts.values())


def _records(data: digits.Digits) -> NDArray[np.uint8]:
    zoom = SIDE // digits.SIDE
    grey = (data.pictures.astype(np.float32) * (255 / digits.BRIGHTEST)).round().astype(np.uint8)
    planes = grey.repeat(zoom, axis=1).repeat(zoom, axis=2).reshape(len(grey), 1, -1).repeat(3, axis=1)
    return np.concatenate([data.labels[:, None].astype(np.uint8), planes.reshape(len(grey), -1)], axis=1)
