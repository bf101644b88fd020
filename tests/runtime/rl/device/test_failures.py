"""Failures of a device become sentences; other errors stay unchanged."""

from __future__ import annotations

import pytest
import torch

from runtime.base.errors import FailedError
from runtime.rl.device.accelerator import device_failures

OUT_OF_MEMORY = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.10 GiB of which 1.00 MiB is "
    "free.\nSee documentation"
)
ILLEGAL = "CUDA error: an illegal memory access was encountered\nKernel errors are reported asynchronously"


def test_too_little_memory_says_how_much_and_what_to_lower() -> None:
    with pytest.raises(FailedError) as raised, device_failures():
        raise torch.OutOfMemoryError(OUT_OF_MEMORY)
    sentence = str(raised.value)
    assert "Tried to allocate 20.00 MiB" in sentence
    assert "replay_device" in sentence
    assert "\n" not in sentence


def test_an_error_of_the_device_is_its_first_line() -> None:
    with pytest.raises(FailedError) as raised, device_failures():
        raise torch.AcceleratorError(ILLEGAL)
    assert "illegal memory access was encountered; a restart" in str(raised.value)
    assert "asynchronously" not in str(raised.value)


def test_other_errors_pass() -> None:
    with pytest.raises(RuntimeError, match="shapes differ") as raised, device_failures():
        raise RuntimeError("shapes differ")
    assert not isinstance(raised.value, FailedError)
