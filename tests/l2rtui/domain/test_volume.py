"""Texts of volumes and kept results."""

from __future__ import annotations

from l2rtui.domain.volume import KeptResult


def test_the_folder_of_a_run_that_is_there_goes_with_it():
    assert KeptResult("r", "r", 1, 0.0, "/state/r").is_of_run
    assert not KeptResult("r-1f2e3d4c", "r", 1, 0.0, "/state/r-1f2e3d4c").is_of_run
