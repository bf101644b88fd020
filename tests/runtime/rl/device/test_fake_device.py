"""Updates and rollouts keep all their tensors on the learner's device; see `fake_device`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

backends = pytest.importorskip("torch.utils.backend_registration")


@pytest.mark.process
@pytest.mark.timeout(300)
def test_updates_and_rollouts_leave_no_tensor_on_the_host() -> None:
    if not hasattr(backends, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this torch has no device types that are made in Python")
    argv = [sys.executable, "-m", "tests.runtime.rl.device.fake_device"]
    root = Path(__file__).parents[4]
    ended = subprocess.run(argv, cwd=root, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.endswith("all on the device\n")
