"""A simulator as a separate container for the worker, on a fake Engine: its body, its end, and its removal."""

from __future__ import annotations

import pytest

from runtime.sim.launchers import container
from runtime.sim.launchers.container import SimulatorContainer
from runtime.sim.launchers.simulator_process import Cause
from runtime.sim.spec import SimulatorSpec
from runtime.sim.wire.errors import StartError
from tests.fakes.docker_engine import FakeDockerEngine


@pytest.fixture
def fake(tmp_path, monkeypatch):
    monkeypatch.setattr(container, "INSPECT_SECONDS", 0.0)
    monkeypatch.setenv("DOCKER_HOST", "tcp://elsewhere:1")  # only the spec names the Engine
    made = FakeDockerEngine(str(tmp_path / "docker.sock"))
    yield made
    made.close()


@pytest.fixture
def spec(fake):
    def make(**options):
        return SimulatorSpec.from_mapping(
            {"kind": "container", "image": "img:1", "socket": fake.url.removeprefix("unix://"), **options}
        )

    return make


@pytest.mark.process
def test_a_container_is_started_watched_and_removed(fake, spec, monkeypatch):
    monkeypatch.setenv("L2R_RUN_ID", "run-1")
    started = SimulatorContainer(
        spec(command=["sim", "--port", "{control}"], memory_bytes=1 << 20, gpu="0,1", network="bridge", user="7")
    )
    body = fake.by_name(started.name)
    assert body["Config"]["Cmd"] == ["sim", "--port", str(started.addresses.control)]
    assert body["Config"]["Labels"]["l2rtui/run-id"] == "run-1"
    assert body["Config"]["User"] == "7"
    assert body["HostConfig"]["Memory"] == 1 << 20
    assert body["HostConfig"]["DeviceRequests"][0]["DeviceIDs"] == ["0", "1"]
    assert (started.addresses.host, started.pid) == ("127.0.0.1", 4242)
    fake.write(started.name, "first\n")
    fake.write(started.name, "second\n", 2)
    assert started.tail(1) == ["second"]
    assert started.ended() is None
    assert started.stop(0.5) == 0
    assert fake.containers == {}
    assert ("POST", f"/containers/{body['Id']}/stop") in fake.requests


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        ({"code": 5}, Cause.EXITED),
        ({"code": 139}, Cause.CRASHED),
        ({"code": 137}, Cause.KILLED),
        ({"code": 137, "OOMKilled": True}, Cause.OUT_OF_MEMORY),
    ],
)
@pytest.mark.process
def test_its_end_has_a_cause(fake, spec, state, cause):
    started = SimulatorContainer(spec())
    fake.end(started.name, **state)
    assert started.ended().cause is cause
    assert started.stop(0.5) == 0


@pytest.mark.process
def test_a_container_that_somebody_removes_is_lost(fake, spec):
    started = SimulatorContainer(spec())
    fake.containers.clear()
    assert started.ended().cause is Cause.KILLED
    assert started.stop(0.5) == 0


@pytest.mark.process
def test_a_signal_reaches_its_first_process(fake, spec):
    started = SimulatorContainer(spec())
    started.signal(9)
    assert fake.by_name(started.name)["State"]["ExitCode"] == 137
    started.stop(0.0)
    started.signal(9)  # already removed, which is fine


@pytest.mark.process
def test_an_image_that_is_missing_or_a_start_that_fails_leaves_nothing(fake, spec):
    with pytest.raises(StartError, match=r"No such image: none:1$"):
        SimulatorContainer(spec(image="none:1"))
    fake.fail("POST", "/start", 500, "cannot start")
    with pytest.raises(StartError, match="cannot start"):
        SimulatorContainer(spec())
    assert fake.containers == {}


@pytest.mark.process
def test_an_engine_that_does_not_remove_is_counted(fake, spec):
    started = SimulatorContainer(spec())
    fake.fail("DELETE", "/containers/", 500, "busy")  # once: the reaper then succeeds
    assert started.stop(0.5) == 1
    assert fake.containers == {}
