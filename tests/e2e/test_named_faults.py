"""Faults of a run on this machine, each named in a sentence, which disappears with the fault."""

from __future__ import annotations

import os
import subprocess
import time
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


CRASHES = """
import ctypes, os
import gymnasium, numpy as np

class Crashing(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(4, np.float32), {}

    def step(self, action):
        self.steps += 1
        if os.environ.get("L2R_ROLE") == "worker" and self.steps == 20:
            STATEMENT
        return np.zeros(4, np.float32), 1.0, False, self.steps % 10 == 0, {}

gymnasium.register("Crashing-v0", entry_point=Crashing)
"""
CRASHING = """
kind: learner-workers
name: faults
program: crashing.py
learner: {resources: {cpu: 1}}
workers: [{name: w, replicas: 1}]
train:
  environment: crashing:Crashing-v0
  algorithm: ppo
  num_envs: 4
  segment_steps: 16
  ppo: {batch_steps: 4096}
"""
CRASH_SECONDS = 20.0
"""Longest time from the first end of a sole worker to its name in `runs`, on cores without other work."""


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("raise TypeError('no wheels')", "last ended with exit 1: TypeError: no wheels"),
        ("os._exit(0)", "its environment is at fault: faults-w-0"),
        ("ctypes.string_at(0)", "was ended by SIGSEGV: a crash of native code"),
        ("os.kill(os.getpid(), 9)", "was ended by SIGKILL: out of memory, or its environment's code"),
    ],
)
def test_a_sole_worker_that_crashes_again_and_again_is_named_with_its_last_words(
    home, tmp_path, statement, sentence
):
    (tmp_path / "crashing.py").write_text(CRASHES.replace("STATEMENT", statement))
    (tmp_path / "crashing.yaml").write_text(CRASHING)
    home.run("launch", "-f", str(tmp_path / "crashing.yaml"), "--yes")
    journal = home.root / "state" / "l2rtui" / "local" / "runs" / "faults" / "events.jsonl"
    home.wait("the first end", lambda: '"Died"' in journal.read_text(), 120)
    began = time.monotonic()
    others = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    home.wait("its name", lambda: sentence in str(home.json("runs")), CRASH_SECONDS * others)
    print(f"named {time.monotonic() - began:.1f} s after its first end, load {others:.1f} per core")
