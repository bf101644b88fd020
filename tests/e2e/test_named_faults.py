"""Faults of a run on this machine, each named in a sentence and over when the fault is."""

from __future__ import annotations

import psutil
import pytest

from tests.fakes.named_faults import DIVERGES, SPEC, Faults

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(600)]


def processes(pod):
    process = psutil.Process(pod["pid"])
    return [process, *process.children(recursive=True)]


@pytest.fixture
def faults(home):
    return Faults(home.json, home.wait, processes)


def test_what_stops_is_named_and_goes_when_it_is_over(faults, tmp_path):
    faults.begin(tmp_path, SPEC)
    faults.check_stopped_processes()


def test_a_learning_rate_that_makes_nan_is_named(faults, tmp_path):
    faults.begin(tmp_path, DIVERGES)
    faults.named("diverged", "lower the learning rate", run="nan")
