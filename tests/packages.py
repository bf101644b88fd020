"""Packages that users may add, such as trackers: a tier of its own has them all (`make test-packages`)."""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest

HAS_ALL = "L2R_HAS_PACKAGES"
"""Variable that the tier sets: a package that is missing there fails the test instead of skipping it."""


def needed(name: str) -> Any:
    """Return an optional package; the test is skipped without it."""
    if os.environ.get(HAS_ALL):
        return importlib.import_module(name)
    return pytest.importorskip(name, reason=f"{name} is not installed")
