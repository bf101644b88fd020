"""SIGTERM, grace period and SIGKILL against real processes, as a destroy without a supervisor uses them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from l2rtui.backends.local import process_scan
from l2rtui.backends.local.process_scan import TaggedProcess
from l2rtui.backends.local.supervision import supervised_process

pytestmark = pytest.mark.process

DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
POLITE = "import time; print('up', flush=True); time.sleep(600)"


@contextmanager
def child(program: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A tagged process that has installed its handlers."""
    environ = {**os.environ, process_scan.ENV_FOLDER: str(folder)}
    argv = [sys.executable, "-S", "-E", "-c", program]
    with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        try:
            yield process
        finally:
            process.kill()


def tagged(folder: Path) -> list[TaggedProcess]:
    return process_scan.find_tagged(lambda process: process.folder == str(folder))


def test_processes_that_end_on_sigterm_are_not_waited_for(tmp_path):
    with child(POLITE, tmp_path) as process:
        supervised_process.terminate_all(tagged(tmp_path), 600.0)
        assert process.wait() == -15


def test_a_deaf_process_outlives_its_grace_period_and_not_sigkill(tmp_path):
    with child(DEAF, tmp_path) as process:
        began = time.monotonic()
        supervised_process.terminate_all(tagged(tmp_path), 0.05)
        assert time.monotonic() - began >= 0.05
        assert process.poll() is None
        assert (
            supervised_process.kill_remaining(lambda tagged_process: tagged_process.folder == str(tmp_path), ())
            == {}
        )
        assert process.wait() == -9
    assert tagged(tmp_path) == []


def test_a_recorded_process_is_killed_although_it_has_no_tag(tmp_path):
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        identity = process_scan.identify(process.pid)
        assert (
            supervised_process.kill_remaining(
                lambda tagged_process: tagged_process.folder == str(tmp_path), {identity}
            )
            == {}
        )
        assert process.wait() == -9


def test_a_later_process_with_a_recorded_pid_is_left_alone(tmp_path):
    with child(POLITE, tmp_path / "other") as process:
        earlier = process_scan.ProcessIdentity(process.pid, "earlier")
        assert (
            supervised_process.kill_remaining(
                lambda tagged_process: tagged_process.folder == str(tmp_path), {earlier}
            )
            == {}
        )
        assert process.poll() is None
