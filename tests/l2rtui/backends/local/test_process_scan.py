"""Processes by pid and start time, and by their mark: read from /proc, and through psutil elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from l2rtui.backends.local import process_scan
from l2rtui.backends.local.state_files import ProcessIdentity
from l2rtui.backends.local.supervision import supervised_process

pytestmark = pytest.mark.process


@pytest.fixture(params=["proc", "psutil"], autouse=True)
def _reader(request, monkeypatch):
    if request.param == "psutil":
        monkeypatch.setattr(process_scan, "IS_LINUX", False)


@pytest.fixture
def tagged_child(tmp_path):
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
            pass  # during exec()
        yield folder, child
        child.kill()


def test_a_process_is_named_by_when_it_started():
    me = process_scan.identify(os.getpid())
    assert process_scan.is_alive(me)
    assert not process_scan.is_alive(None)
    earlier = ProcessIdentity(me.pid, "earlier")
    assert not process_scan.is_alive(earlier)
    assert not process_scan.signal_process(earlier, signal.SIGKILL)
    process_scan.signal_group(earlier, signal.SIGKILL)


def test_the_dead_and_the_undead_are_not_alive():
    with subprocess.Popen(["true"]) as child:
        process = psutil.Process(child.pid)
        while process.status() != psutil.STATUS_ZOMBIE:
            pass
        assert process_scan.identify(child.pid) == ProcessIdentity(child.pid, "ended")
    assert process_scan.start_time_of(child.pid) is None
    assert not process_scan.signal_process(ProcessIdentity(child.pid, "ended"), 0)
    process_scan.signal_group(ProcessIdentity(child.pid, "ended"), signal.SIGKILL)


def test_marks_are_read(tagged_child):
    folder, child = tagged_child
    (process,) = process_scan.find_tagged(lambda tagged: tagged.folder == folder)
    assert process == process_scan.TaggedProcess(
        process_scan.identify(child.pid), "sleep 600", folder, "run", "u", "p", "i"
    )
    assert not [tagged for tagged in process_scan.find_tagged(lambda _: True) if tagged.proc.pid == os.getpid()]


def test_what_is_marked_can_be_killed(tagged_child):
    folder, child = tagged_child
    assert [
        tagged.proc.pid for tagged in supervised_process.kill_tagged(lambda tagged: tagged.folder == folder)
    ] == [child.pid]
    assert child.wait() == -signal.SIGKILL
    assert supervised_process.kill_tagged(lambda tagged: tagged.folder == folder) == []


def test_a_group_is_signalled_as_long_as_its_leader_is_known(tagged_child):
    _, child = tagged_child
    process_scan.signal_group(process_scan.identify(child.pid), signal.SIGTERM)
    assert child.wait() == -signal.SIGTERM


def test_a_process_in_the_midst_of_exec_is_not_missed(tmp_path, monkeypatch):
    """Popen returns when exec() has closed its pipe; the new program has no environment yet."""
    monkeypatch.setattr(process_scan, "IS_LINUX", sys.platform == "linux")
    for _ in range(50):
        environ = {**os.environ, "L2R_LOCAL_RUN": str(tmp_path)}
        with subprocess.Popen(["sleep", "600"], env=environ) as child:
            processes = process_scan.find_tagged(lambda tagged: tagged.folder == str(tmp_path))
            child.kill()
        assert [tagged.proc.pid for tagged in processes] == [child.pid]
