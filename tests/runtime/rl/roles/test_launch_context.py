"""Numerical threads of a run's processes, limited before the libraries are imported."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.base import contract

START = """
import os, sys
from runtime.rl.roles.launch_context import Context, bound_numeric_threads
bound_numeric_threads(Context.from_environment(os.environ, sys.argv[1]))
assert not {"numpy", "torch"} & set(sys.modules), "imported before its threads were bounded"
import numpy
numpy.ones((512, 512)) @ numpy.ones((512, 512))
print(len(os.listdir("/proc/self/task")))
"""
WAITING = """
import time
from runtime.rl.roles.launch_context import set_numeric_threads
set_numeric_threads(2)
import torch
torch.set_num_threads(2)
rows, used = torch.ones(200_000), 0.0
for _ in range(40):
    rows.exp_().fill_(0.5)
    begun = time.process_time()
    time.sleep(0.01)
    used += time.process_time() - begun
print(used)
"""
COMMAND = """
import os, sys
from runtime.cli import main
code = main(sys.argv[1:])
assert code and "numpy" in sys.modules, "it has not come as far as its imports"
import numpy
numpy.ones((512, 512)) @ numpy.ones((512, 512))
print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
@pytest.mark.parametrize("role", ["learner", "worker", "evaluator"])
@pytest.mark.parametrize(
    "settings",
    [
        {"environment": "CartPole-v1", "algorithm": "impala"},
        {"environment": "racing", "encoder": {"name": "vae", "weights": "MISSING"}},
        {"environment": "l2r", "num_envs": 1},
    ],
    ids=lambda settings: settings["environment"],
)
@pytest.mark.process
def test_numerical_libraries_start_with_the_threads_of_the_process(role, settings, tmp_path):
    environ = {
        **{name: value for name, value in os.environ.items() if not name.endswith("_THREADS")},
        contract.ENV_RUN: "r",
        contract.ENV_RUN_ID: "r-1",
        contract.ENV_POD: "p-0",
        contract.ENV_ROLE: role,
        contract.ENV_INDEX: "0",
        contract.ENV_SEED: "0",
        contract.ENV_ENDPOINT: f"ipc://{tmp_path}",
        contract.ENV_DIR: str(tmp_path / "run"),
        contract.ENV_CONFIG: json.dumps({**settings, "threads": 1}).replace("MISSING", str(tmp_path / "missing")),
    }
    done = subprocess.run(
        [sys.executable, "-c", START, role], env=environ, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
@pytest.mark.parametrize("command", ["ps", "ps-worker", "drive /none", "encode x --policy /none"])
@pytest.mark.process
def test_commands_that_compute_beside_others_have_one_thread(command):
    environ = {name: value for name, value in os.environ.items() if not name.endswith("_THREADS")}
    argv = [sys.executable, "-c", COMMAND, *command.split()]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr


@pytest.mark.process
def test_threads_that_wait_leave_the_cores_to_others():
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    argv = [sys.executable, "-c", WAITING]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # CPU seconds while idle: spinning threads of OpenMP use 0.2, sleeping ones 0.002.
    assert float(done.stdout) < 0.05
