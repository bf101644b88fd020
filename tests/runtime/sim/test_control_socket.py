"""A worker's simulators controlled from another process of its pod: state, restart, signal, one camera image."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from runtime.rl.envs.registry import make_vector_env
from runtime.sim.control import control_socket
from runtime.sim.control.control_socket import ControlSocketError
from tests.runtime.sim.conftest import ROOT, carrying, eventually
from tests.runtime.sim.test_l2r_env import QUICK, steer

pytestmark = pytest.mark.process


class Pod:
    """A worker's environment driven on a thread, and the command line in the same pod."""

    def __init__(self, num_envs: int, pod_id: str) -> None:
        self.pod_id = pod_id
        self.env = make_vector_env("l2r", num_envs, options={"simulator": QUICK})
        self.lost = self.steps = 0
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._drive)

    def _drive(self) -> None:
        obs = self.env.reset(0)
        while not self.stopping.is_set():
            result = self.env.step(steer(obs))
            obs, self.lost, self.steps = result.obs, self.lost + result.is_lost, self.steps + 1

    def run(self, *argv: str) -> subprocess.CompletedProcess[bytes]:
        environ = {**os.environ, "L2R_POD_ID": self.pod_id}
        command = [sys.executable, "-m", "runtime", "simulators", *argv]
        return subprocess.run(command, env=environ, capture_output=True, timeout=60, cwd=ROOT, check=False)

    def status(self) -> list[dict[str, object]]:
        return control_socket.send_request({"do": "status"}, self.pod_id)["simulators"]

    def close(self) -> None:
        self.stopping.set()
        self.thread.join(60)
        self.env.close()


@pytest.fixture
def pod(monkeypatch):
    monkeypatch.setenv("L2R_RUN_ID", mark := f"door-{time.monotonic_ns()}")
    monkeypatch.setenv("L2R_POD_ID", mark)
    started = Pod(2, mark)
    started.thread.start()
    eventually(lambda: started.steps > 5, "the first steps")
    yield started
    started.close()
    assert carrying(mark) == []
    assert not control_socket.path_of(mark).exists()


def test_state_restart_signal_and_image_from_another_process(pod):
    before = json.loads(pod.run("status").stdout)["simulators"]
    assert [
        (simulator["index"], simulator["kind"], simulator["state"], simulator["restarts"]) for simulator in before
    ] == [
        (0, "reference", "ready", 0),
        (1, "reference", "ready", 0),
    ]
    assert all(simulator["fps"] > 0 and simulator["error"] is None for simulator in before)
    assert stat.S_IMODE(control_socket.folder().stat().st_mode) == 0o700

    done = pod.run("frame", "--index", "1", "--width", "64")
    head, _, pixels = done.stdout.partition(b"255\n")
    assert done.returncode == 0, done.stderr
    _, width, height = head.split()
    image = np.frombuffer(pixels, np.uint8).reshape(int(height), int(width), 3)
    assert int(width) == 64
    assert len(np.unique(image.reshape(-1, 3), axis=0)) > 3, "it shows something"

    assert json.loads(pod.run("restart", "--index", "1").stdout) == {"asked": "restart"}
    eventually(lambda: pod.status()[1]["restarts"] == 1 and pod.status()[1]["state"] == "ready", "a restart")
    assert pod.status()[0]["restarts"] == 0
    assert pod.status()[1]["error"] == "the simulator was restarted by request"
    assert pod.lost >= 1, "the episode was not learned from"

    assert json.loads(pod.run("signal", "KILL", "--index", "0").stdout) == {"asked": "SIGKILL"}
    eventually(lambda: pod.status()[0]["restarts"] == 1, "the worker notices")
    assert "SIGKILL" in pod.status()[0]["error"]


def test_wrong_questions_get_a_sentence(pod):
    for words, said in (
        (("restart", "--index", "7"), "simulator 7 does not exist"),
        (("signal", "NONSENSE"), "unknown signal"),
        (("frame", "--index", "9"), "simulator 9 does not exist"),
    ):
        done = pod.run(*words)
        assert done.returncode == 1
        assert said in done.stderr.decode()
    for line in (b"\n", b"{}\n", b"[" * 60_000 + b"\n", b"\xff\n", b'{"do":"restart","index":true}\n'):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(30)
            sock.connect(str(control_socket.path_of(pod.pod_id)))
            sock.sendall(line)
            assert b"error" in sock.makefile("rb").readline()
    assert len(pod.status()) == 2, "it still answers"


def test_a_pod_without_simulators_and_a_killed_worker_are_told_apart_from_nothing(tmp_path, monkeypatch):
    with pytest.raises(ControlSocketError, match="drives no simulators"):
        control_socket.send_request({"do": "status"}, "a pod that is not there")
    stale = control_socket.path_of("a worker that was killed")
    control_socket._make_private(stale.parent)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.bind(str(stale))
    with pytest.raises(ControlSocketError, match="drives no simulators"):
        control_socket.send_request({"do": "status"}, "a worker that was killed")

    leave = control_socket.serve_sessions([], {"L2R_POD_ID": "the next"})

    assert not stale.exists(), "what is left of a killed worker is swept"
    assert control_socket.send_request({"do": "status"}, "the next") == {"simulators": []}
    leave()
    assert not control_socket.path_of("the next").exists()


def test_a_folder_that_others_can_enter_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr(control_socket, "folder", lambda: tmp_path / "shared")
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    control_socket.serve_sessions([], {"L2R_POD_ID": "p"})()
    assert list((tmp_path / "shared").iterdir()) == []
