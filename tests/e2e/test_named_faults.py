"""Faults of a run on this machine, each named in a sentence, which disappears with the fault."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from functools import partial

import psutil
import pytest

from tests.fakes.named_faults import DIVERGES, FULL, ON_VOLUME, SEEN_STOPS, SPEC, Faults, filled, small_disk

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(600)]


def processes(pod):
    process = psutil.Process(pod["pid"])
    return [process, *process.children(recursive=True)]


@pytest.fixture
def faults(home):
    return Faults(home.json, home.wait, processes)


def test_what_stops_is_named_and_goes_when_it_is_over(faults, tmp_path):
    faults.begin(tmp_path, SPEC)
    faults.check_stopped_processes(SEEN_STOPS)


def test_a_learning_rate_that_makes_nan_is_named(home, faults, tmp_path):
    faults.begin(tmp_path, DIVERGES)
    faults.check_not_finite(lambda pod: home.run("logs", pod))


def test_a_disk_that_is_full_at_a_checkpoint_is_named_until_there_is_room(home, faults, tmp_path):
    folder = home.root / "state" / "l2rtui" / "local" / "volumes" / "l2r-data"
    folder.mkdir(parents=True, mode=0o700)
    full, part = partial(filled, folder), FULL
    with ExitStack() as stack:
        try:
            stack.enter_context(small_disk(folder))
        except subprocess.CalledProcessError:  # not root: files end too early, as on a disk that fills up
            full, part = faults.files_cut_short, "File too large"
        faults.begin(tmp_path, SPEC, more=ON_VOLUME)
        faults.check_full_disk(full, part)
        home.run("destroy", "faults", "--yes", "--grace", "1")


def test_files_that_end_too_early_at_a_checkpoint_are_named(faults, tmp_path):
    faults.begin(tmp_path, SPEC)
    faults.check_full_disk(faults.files_cut_short, "File too large")
