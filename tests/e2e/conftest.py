"""The program from a user's view: real processes, a separate state directory, and a count of leftovers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

DEADLINE_SECONDS = 120.0


class Home:
    """One user's environment: run verbs in it, inspect it from outside, count the processes that belong to it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.env = {
            **os.environ,
            "XDG_STATE_HOME": str(root / "state"),
            "XDG_CONFIG_HOME": str(root / "config"),
            "L2RTUI_BACKEND": "local",
            "PYTHONWARNINGS": "",
        }

    def run(self, *words: str, code: int = 0) -> str:
        """Run a verb to its end, check its exit code, return its standard output."""
        done = subprocess.run(
            [sys.executable, "-m", "l2rtui", *words],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
        assert done.returncode == code, (
            f"l2rtui {' '.join(words)} gave {done.returncode}:\n{done.stdout}\n{done.stderr}"
        )
        assert "Traceback" not in done.stderr
        return done.stdout

    def json(self, *words: str) -> Any:
        """Run a verb with ``-o json``."""
        return json.loads(self.run(*words, "-o", "json"))

    def wait(self, what: str, condition: Callable[[], Any], seconds: float = DEADLINE_SECONDS) -> Any:
        """Wait until the condition returns a true value; fail with ``what`` if it never does."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if found := condition():
                return found
            time.sleep(0.2)
        pytest.fail(f"{what}: not within {seconds:g} s\n{self.run('pods', '-o', 'wide')}")

    def metrics(self, run: str) -> dict[str, Any]:
        """The run's metrics; empty if there are none yet."""
        done = subprocess.run(
            [sys.executable, "-m", "l2rtui", "metrics", run, "-o", "json"],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
        return dict(json.loads(done.stdout)) if done.returncode == 0 else {}

    def processes(self) -> list[psutil.Process]:
        """Every process on the machine that was started in this environment, found only by its variables."""
        found = []
        for process in psutil.process_iter():
            try:
                if (
                    process.pid != os.getpid()
                    and process.environ().get("XDG_STATE_HOME") == self.env["XDG_STATE_HOME"]
                ):
                    found.append(process)
            except psutil.Error:
                continue
        return found


@pytest.fixture
def home(tmp_path):
    home = Home(tmp_path)
    yield home
    home.run("destroy", "--all-mine", "--yes", "--purge", "--grace", "2")
    left = [" ".join(process.cmdline()) for process in home.processes()]
    for process in home.processes():
        process.kill()
    assert left == []
