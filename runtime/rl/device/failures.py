"""Device failures as sentences: out of memory, and errors reported by CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from runtime.base.errors import FailedError, first_line


@contextmanager
def device_failures() -> Iterator[None]:
    """Raise FailedError for device errors in the block; other errors pass."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise FailedError(
            f"the device has too little memory: {first_line(error)}; lower the batch, hidden, convolutions or "
            "replay_capacity, set replay_device to host, or place fewer processes on this GPU"
        ) from error
    # A later call reports a kernel's error, and every call after it fails: only a new process helps.
    except torch.AcceleratorError as error:
        raise FailedError(
            f"the device failed: {first_line(error)}; a restart continues from the newest checkpoint"
        ) from error
