"""Processes by pid and start time, and by their mark: read from /proc, and through psutil elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from l2rtui.backends.local import processes
from l2rtui.backends.local.records import Proc


@pytest.fixture(params=["proc", "psutil"], autouse=True)
def _reader(request, monkeypatch):
    if request.param == "psutil":
        monkeypatch.setattr(processes, "IS_LINUX", False)


@pytest.fixture
def marked_child(tmp_path):
    folder = str(tmp_path / "runs" / "run")
    environ = {
        **os.environ,
        "L2R_LOCAL_RUN": folder,
        "L2R_RUN": "run",
        "L2R_RUN_ID": "u",
        "L2R_POD": "p",
        "L2R_POD_ID": "i",
    }
    with subprocess.Popen(["sleep", "600"], env=environ, start_new_session=True) as child:
        while not psutil.Process(child.pid).environ():
            pass  # in the midst of exec()
        yield folder, child
        child.kill()


def test_a_process_is_named_by_when_it_started():
    me = processes.identify(os.getpid())
    assert processes.is_alive(me)
    assert not processes.is_alive(None)
    earlier = Proc(me.pid, "earlier")
    assert not processes.is_alive(earlier)
    assert not processes.signal_process(earlier, signal.SIGKILL)
    processes.signal_group(earlier, signal.SIGKILL)


def test_the_dead_and_the_undead_are_not_alive():
    with subprocess.Popen(["true"]) as child:
        process = psutil.Process(child.pid)
        while process.status() != psutil.STATUS_ZOMBIE:
            pass
        assert processes.identify(child.pid) == Proc(child.pid, "ended")
    assert processes.start_of(child.pid) is None
    assert not processes.signal_process(Proc(child.pid, "ended"), 0)
    processes.signal_group(Proc(child.pid, "ended"), signal.SIGKILL)


def test_marks_are_read(marked_child):
    folder, child = marked_child
    (found,) = processes.marked(lambda one: one.folder == folder)
    assert found == processes.Marked(processes.identify(child.pid), "sleep 600", folder, "run", "u", "p", "i")
    assert not [one for one in processes.marked(lambda _: True) if one.proc.pid == os.getpid()]


def test_what_is_marked_can_be_killed(marked_child):
    folder, child = marked_child
    assert [one.proc.pid for one in processes.kill_marked(lambda one: one.folder == folder)] == [child.pid]
    assert child.wait() == -signal.SIGKILL
    assert processes.kill_marked(lambda one: one.folder == folder) == []


def test_a_group_is_signalled_as_long_as_its_leader_is_known(marked_child):
    _, child = marked_child
    processes.signal_group(processes.identify(child.pid), signal.SIGTERM)
    assert child.wait() == -signal.SIGTERM


def test_a_process_in_the_midst_of_exec_is_not_missed(tmp_path, monkeypatch):
    """Popen returns when exec() has closed its pipe; the new program has no environment yet."""
    monkeypatch.setattr(processes, "IS_LINUX", sys.platform == "linux")
    for _ in range(50):
        environ = {**os.environ, "L2R_LOCAL_RUN": str(tmp_path)}
        with subprocess.Popen(["sleep", "600"], env=environ) as child:
            found = processes.marked(lambda one: one.folder == str(tmp_path))
            child.kill()
        assert [one.proc.pid for one in found] == [child.pid]
