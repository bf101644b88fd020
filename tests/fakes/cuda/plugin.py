"""Plugin of pytest: tests that need a card run on the simulated device, here and in all their processes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.fakes.cuda import library  # noqa: F401  isort: skip  before torch
from tests.fakes.cuda.accesses import RACES
from tests.fakes.cuda.simulation import install

install()
_children = str(Path(__file__).with_name("children"))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_children, os.environ.get("PYTHONPATH")]))


@pytest.fixture(autouse=True)
def no_race():
    """Fail if a race was found, even if the thread or process that caused it ignored it."""
    with tempfile.NamedTemporaryFile(prefix="l2r-races-") as file, pytest.MonkeyPatch.context() as patch:
        patch.setenv(RACES, file.name)
        yield
        assert Path(file.name).read_text(encoding="utf-8") == ""
