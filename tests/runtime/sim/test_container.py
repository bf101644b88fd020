"""A simulator as a container on a real Docker Engine: the same interface, and no leftovers after the worker
dies.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from runtime.base.docker_client import DockerClient, DockerEndpoint, EngineError
from runtime.sim.control.simulator_session import SimulatorSession, starter
from runtime.sim.launchers.simulator_process import Cause
from runtime.sim.spec import SimulatorSpec
from runtime.sim.wire.errors import BudgetError, LostError
from runtime.sim.wire.udp_io import Receiver
from tests.runtime.sim.conftest import ROOT, eventually

pytestmark = pytest.mark.cluster

SOCKET = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
IMAGE = "debian:bookworm-slim"
PORTS = ["--port", "{control}", "--action-port", "{action}", "--pose-port", "{pose}", "--camera-port", "{camera}"]
"""Our interpreter and its libraries are mounted: the test concerns the container, not an image's contents."""


def labelled(label: str, socket: str = SOCKET) -> list[dict]:
    """Containers that carry a label, including ended ones."""
    client = DockerClient(DockerEndpoint(f"unix://{socket}"))
    try:
        return client.request_json("GET", "/containers/json", all=1, filters={"label": [label]})
    finally:
        client.close()


def spec(**options: object) -> SimulatorSpec:
    interpreter = Path(sys.executable).resolve().parents[1]
    mounts = [
        f"{folder}:{folder}:ro"
        for folder in {str(ROOT), str(interpreter), sys.prefix}
        if not folder.startswith("/usr")
    ]
    settings = {
        "kind": "container",
        "image": IMAGE,
        "socket": SOCKET,
        "command": [sys.executable, "-m", "runtime", "simulator", "--host", "0.0.0.0", "--fast", *PORTS],  # noqa: S104  (its own network)
        "lockstep": True,
        "mounts": [*mounts, "/usr/lib:/usr/lib:ro"],
        "folder": str(ROOT),
        "restarts": 1,
        "backoff_seconds": 0.01,
        **options,
    }
    return SimulatorSpec.from_mapping(settings)


@pytest.fixture
def run_id(monkeypatch):
    """A label that identifies every container of a test."""
    value = f"container-test-{os.getpid()}-{os.urandom(4).hex()}"
    monkeypatch.setenv("L2R_RUN_ID", value)
    yield value
    assert labelled(f"l2rtui/run-id={value}") == []


@pytest.fixture
def drive(run_id, request):
    receiver = Receiver()
    drive = SimulatorSession(spec(**getattr(request, "param", {})), "harbour", receiver=receiver, start=starter())
    yield drive
    assert drive.close() == 0
    receiver.close()


@pytest.mark.parametrize("drive", [{"network": "host"}, {"network": "bridge"}], indirect=True, ids=str)
def test_an_episode_is_driven_in_a_container(drive, run_id):
    drive.begin(None)
    for _ in range(20):
        drive.act(0.0, 1.0)
        pose = drive.observe()

    assert pose.values[3] > 8.0
    (container,) = labelled(f"l2rtui/run-id={run_id}")
    assert container["State"] == "running"
    assert "control at port" in drive.supervisor.tail()[-1]


def test_a_container_that_is_killed_is_named_and_replaced(drive):
    drive.begin(None)
    drive.supervisor.signal(9)

    def lost() -> str:
        try:
            drive.supervisor.check()
        except LostError as error:
            return str(error)
        return ""

    assert "killed by SIGKILL" in eventually(lost, "the loss")
    assert drive.supervisor.last_failure.cause is Cause.KILLED
    drive.begin(None)
    assert drive.supervisor.restarts == 1


@pytest.mark.parametrize("drive", [{"command": ["sh", "-c", "exit 5"]}], indirect=True, ids=str)
def test_a_container_that_ends_is_given_up_with_its_code(drive):
    with pytest.raises(BudgetError, match="exited with code 5"):
        drive.begin(None)


GREEDY = [sys.executable, "-c", "x = bytearray(400 << 20); print(len(x))"]


@pytest.mark.parametrize("drive", [{"command": GREEDY, "memory_bytes": 64 << 20}], indirect=True, ids=["greedy"])
def test_a_container_that_runs_out_of_memory_is_named(drive):
    with pytest.raises(BudgetError, match="ran out of memory"):
        drive.begin(None)


@pytest.mark.parametrize("drive", [{"image": "no-such-image:anywhere"}], indirect=True, ids=str)
def test_an_image_that_is_not_there_is_named(drive):
    with pytest.raises(BudgetError, match="no-such-image"):
        drive.begin(None)


def test_no_engine_is_a_sentence(tmp_path):
    with pytest.raises(EngineError, match="cannot be reached"):
        labelled("x=y", str(tmp_path / "docker.sock"))


def test_kill_9_of_the_worker_removes_its_container(run_id):
    options = json.dumps(
        {name: getattr(spec(), name) for name in ("kind", "image", "socket", "command", "mounts", "folder")}
    )
    script = (
        "import json, sys, time\n"
        "from runtime.sim.launchers.container import SimulatorContainer\n"
        "from runtime.sim.spec import SimulatorSpec\n"
        "started = SimulatorContainer(SimulatorSpec.from_mapping(json.loads(sys.argv[1])))\n"
        "print(started.name, flush=True)\n"
        "time.sleep(600)\n"
    )
    worker = subprocess.Popen([sys.executable, "-c", script, options], stdout=subprocess.PIPE, cwd=ROOT, text=True)
    assert worker.stdout is not None
    assert worker.stdout.readline().startswith("l2r-simulator-")
    reapers = psutil.Process(worker.pid).children()
    assert labelled(f"l2rtui/run-id={run_id}")
    worker.kill()
    worker.communicate()

    eventually(lambda: not labelled(f"l2rtui/run-id={run_id}"), "its removal", 20.0)
    eventually(lambda: not any(process.is_running() for process in reapers), "the reaper's end", 10.0)
