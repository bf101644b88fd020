"""Tests that need a graphics card are skipped, with the reason, if torch finds none."""

from __future__ import annotations

import pytest

from tests.runtime.conftest import no_leaks, run, short_folder, warm_zmq

__all__ = ["no_leaks", "run", "short_folder", "warm_zmq"]
"""Fixtures of runs as real processes."""


@pytest.fixture(scope="session", autouse=True)
def context() -> None:
    """Create CUDA's context, which keeps two pipes, before the first test counts its descriptors."""
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        torch.ones(1, device="cuda").sum().item()


@pytest.fixture(autouse=True)
def graphics_card() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device here")
