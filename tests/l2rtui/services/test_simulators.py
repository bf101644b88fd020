"""Requests to a worker's simulators; of an answer from a pod only the form is trusted."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from l2rtui.backends.fake import FakeBackend
from l2rtui.domain.log import CommandOutput
from l2rtui.domain.workload import Role
from l2rtui.errors import BackendError, NotFoundError
from l2rtui.services import simulators
from l2rtui.services.simulators import decode_ppm


@pytest.fixture(autouse=True)
def _own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


async def a_worker(backend):
    snapshot = await backend.snapshot()
    return next(pod for pod in snapshot.pods.values() if pod.role is Role.WORKER and pod.ready)


async def test_state_restart_signal_and_image():
    backend = FakeBackend()
    pod = await a_worker(backend)
    assert [(one.index, one.state, one.restarts) for one in await simulators.status(backend, pod)] == [
        (0, "ready", 0)
    ]
    await simulators.restart(backend, pod)
    await simulators.send_signal(backend, pod, "USR1")
    after = (await simulators.status(backend, pod))[0]
    assert (after.restarts, after.error) == (1, "the simulator was restarted by request")
    picture = await simulators.frame(backend, pod)
    assert len(picture.pixels) == 3 * picture.width * picture.height


async def test_what_cannot_be_asked_is_said_with_the_pods_own_sentence():
    backend = FakeBackend()
    pod = await a_worker(backend)
    with pytest.raises(NotFoundError, match="there is no simulator of that number"):
        await simulators.restart(backend, pod, 3)
    with pytest.raises(NotFoundError, match="drives no simulators"):
        await simulators.status(backend, replace(pod, role=Role.LEARNER))


@pytest.mark.parametrize(
    "said",
    [b"", b"[]", b"{", b'{"simulators": 3}', b"[" * 100_000, b"\xff\xfe"],
    ids=["nothing", "list", "cut", "number", "deep", "binary"],
)
async def test_an_answer_that_is_none_is_a_sentence(said, monkeypatch):
    backend = FakeBackend()
    pod = await a_worker(backend)

    async def capture(*_):
        return CommandOutput(0, said, b"")

    monkeypatch.setattr(backend, "capture", capture)
    with pytest.raises(BackendError, match="can be read"):
        await simulators.status(backend, pod)


async def test_fields_of_other_types_are_passed_over(monkeypatch):
    backend = FakeBackend()
    pod = await a_worker(backend)
    facts = {
        "simulators": [7, {"state": 3, "restarts": -1, "fps": True, "error": None, "tail": ["x", 3], "kind": "k"}]
    }

    async def capture(*_):
        return CommandOutput(0, json.dumps(facts).encode(), b"")

    monkeypatch.setattr(backend, "capture", capture)
    (one,) = await simulators.status(backend, pod)
    assert (one.state, one.restarts, one.fps, one.error, one.tail, one.kind) == ("", 0, 0.0, "", ("x",), "k")


@pytest.mark.parametrize(
    "data", [b"", b"P6 2 2 255\n123", b"P6 99999 99999 255\n", b"P5 1 1 255\n1", b"P6 0 0 255\n"]
)
def test_what_is_no_image_is_refused(data):
    with pytest.raises(BackendError, match="not an image"):
        decode_ppm(data)
