"""The controller and simulators that misbehave: typed errors within the timeout, and a working call afterwards."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.sync.server import ServerConnection, serve

from runtime.sim.wire import rpc_methods
from runtime.sim.wire.controller import Controller
from runtime.sim.wire.errors import (
    BadReplyError,
    CallError,
    CallRefusedError,
    CallTimeoutError,
    ConnectionLostError,
)
from tests.tiers import starts_processes

pytestmark = pytest.mark.process

Script = Callable[[ServerConnection, dict], None]
TIMEOUT = 1.0


def right(connection: ServerConnection, request: dict, result: object = "harbour") -> None:
    connection.send(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}))


class Scripted:
    """A WebSocket server that answers the first call by a script and all later ones correctly."""

    def __init__(self) -> None:
        self.script: Script = right
        self.asked: list[dict] = []
        self.server = serve(self.answer, "127.0.0.1", 0)
        self.port = self.server.socket.getsockname()[1]
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def answer(self, connection: ServerConnection) -> None:
        for text in connection:
            request = json.loads(text)
            self.asked.append(request)
            script, self.script = self.script, right
            script(connection, request)

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()


@pytest.fixture(scope="module")
@starts_processes
def simulator():
    scripted = Scripted()
    yield scripted
    scripted.close()


def ask(port: int, *calls: rpc_methods.Call) -> list[object]:
    """Make calls one after the other over one connection; each gives its result or its error."""
    result: list[object] = []
    with Controller(port=port, timeout_seconds=TIMEOUT) as controller:
        for call in calls:
            try:
                result.append(controller.call(call))
            except CallError as error:
                result.append(error)
    return result


def silent(connection, request):
    """Never answers."""


def late(connection, request):
    time.sleep(TIMEOUT * 1.5)
    right(connection, request, "too late")


def wrong_id(connection, request):
    right(connection, {"id": request["id"] + 1000}, "somebody else's")


def wrong_id_first(connection, request):
    wrong_id(connection, request)
    right(connection, request)


def endless_strays(connection, request):
    for _ in range(3000):
        wrong_id(connection, request)


SCRIPTS = {
    "silent": (silent, CallTimeoutError),
    "late": (late, CallTimeoutError),
    "wrong id": (wrong_id, CallTimeoutError),
    "closed": (lambda connection, _: connection.close(), ConnectionLostError),
    "torn": (lambda connection, _: connection.socket.shutdown(socket.SHUT_RDWR), ConnectionLostError),
    "no JSON": (lambda connection, _: connection.send("{"), BadReplyError),
    "binary": (lambda connection, _: connection.send(b"\xff\xfe"), BadReplyError),
    "a list": (lambda connection, _: connection.send("[1, 2]"), BadReplyError),
    "a text id": (lambda connection, _: right(connection, {"id": "1"}), BadReplyError),
    "a number": (lambda connection, asked: right(connection, asked, 5), BadReplyError),
    "nothing": (lambda connection, asked: right(connection, asked, None), BadReplyError),
    "huge": (lambda connection, _: connection.send("x" * (5 << 20)), ConnectionLostError),
    "an error": (
        lambda connection, asked: connection.send(
            json.dumps({"id": asked["id"], "error": {"code": -1, "message": "no such level"}})
        ),
        CallRefusedError,
    ),
    "a bare error": (
        lambda connection, asked: connection.send(json.dumps({"id": asked["id"], "error": "no"})),
        CallRefusedError,
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_call_that_fails_is_a_typed_error_and_the_next_call_works(simulator, name):
    script, expected = SCRIPTS[name]
    simulator.script = script
    began = time.monotonic()
    first, *again = ask(simulator.port, rpc_methods.get_level(), rpc_methods.get_level(), rpc_methods.get_level())

    assert type(first) is expected
    assert first.method == "get_level"
    assert first.params == {}
    assert "get_level()" in str(first)
    assert again[-1] == "harbour", again
    assert time.monotonic() - began < 4 * TIMEOUT + 20.0


def test_answers_are_matched_by_id(simulator):
    simulator.script = wrong_id_first

    assert ask(simulator.port, rpc_methods.get_level()) == ["harbour"]


def test_a_flood_of_answers_to_nothing_ends_in_an_error(simulator):
    simulator.script = endless_strays
    (result,) = ask(simulator.port, rpc_methods.get_level())

    assert isinstance(result, BadReplyError | CallTimeoutError)


def listening(behaviour: str) -> socket.socket:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    if behaviour != "refused":
        sock.listen()
    return sock


@pytest.mark.parametrize("behaviour", ["refused", "mute", "http"])
def test_what_is_no_websocket_is_an_error_within_the_timeout(behaviour):
    sock = listening(behaviour)

    def reply() -> None:
        peer, _ = sock.accept()
        peer.recv(4096)
        peer.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        peer.close()

    thread = threading.Thread(target=reply)
    if behaviour == "http":
        thread.start()
    began = time.monotonic()
    (result,) = ask(sock.getsockname()[1], rpc_methods.get_vehicle_state(3))
    if behaviour == "http":
        thread.join()
    sock.close()

    assert isinstance(result, CallTimeoutError if behaviour == "mute" else ConnectionLostError)
    assert "get_vehicle_state(veh_id=3)" in str(result)
    assert time.monotonic() - began < TIMEOUT + 20.0


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(garbage=st.binary(max_size=200) | st.text(max_size=200))
def test_whatever_comes_back_is_a_result_or_a_typed_error(simulator, garbage):
    simulator.script = lambda connection, _: connection.send(garbage)
    (result,) = ask(simulator.port, rpc_methods.get_level())

    assert isinstance(result, BadReplyError | CallTimeoutError)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
ALL_CALLS = [
    rpc_methods.open_level("x"),
    rpc_methods.reset_level(),
    rpc_methods.get_level(),
    rpc_methods.get_levels(),
    rpc_methods.get_level_vehicles(),
    rpc_methods.get_vehicle_classes(),
    rpc_methods.get_vehicle_state(),
    rpc_methods.set_vehicle_position(1, 2, 3, yaw=4),
    rpc_methods.get_vehicle_params(),
    rpc_methods.set_vehicle_params({"a": 1}),
    rpc_methods.reset_default_vehicle_params(),
    rpc_methods.get_sensors_params(),
    rpc_methods.get_sensor_params("s"),
    rpc_methods.get_sensor_param("s", "p"),
    rpc_methods.set_sensor_param("s", "p", 1),
    rpc_methods.set_sensor_params("s", {"p": 1}),
    rpc_methods.enable_sensor("s"),
    rpc_methods.disable_sensor("s"),
]


@settings(deadline=None)
@given(call=st.sampled_from(ALL_CALLS), result=JSON)
def test_every_method_reads_any_result_or_refuses_it(call, result):
    try:
        call.read(result)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError):
        pass  # the exceptions that the controller turns into a BadReplyError


def test_every_method_works_on_the_reference_simulator(simulators):
    ports = simulators.start("--track", "harbour", "--fast")
    sensor = "CameraFrontRGB"
    with Controller(port=ports["control"]) as controller:
        controller.call(rpc_methods.open_level("ridge"))
        assert controller.call(rpc_methods.get_level()) == "ridge"
        assert {"meadow", "harbour", "ridge"} <= set(controller.call(rpc_methods.get_levels()))
        assert list(controller.call(rpc_methods.get_level_vehicles())) == [0]
        assert controller.call(rpc_methods.get_vehicle_classes())
        controller.call(rpc_methods.set_vehicle_position(10.0, 20.0, 0.0, yaw=-90.0))
        state = controller.call(rpc_methods.get_vehicle_state())
        assert state.position == pytest.approx((10.0, 20.0, 0.0))
        assert state.yaw == pytest.approx(-1.5707963)
        controller.call(rpc_methods.reset_level())
        assert controller.call(rpc_methods.get_vehicle_state()).position != pytest.approx((10.0, 20.0, 0.0))
        controller.call(rpc_methods.set_vehicle_params({"friction": 1.1}))
        assert controller.call(rpc_methods.get_vehicle_params())["friction"] == 1.1
        controller.call(rpc_methods.reset_default_vehicle_params())
        assert controller.call(rpc_methods.get_vehicle_params())["friction"] != 1.1
        controller.call(rpc_methods.enable_sensor(sensor))
        controller.call(rpc_methods.set_sensor_params(sensor, {"Width": 64, "Height": 48}))
        controller.call(rpc_methods.set_sensor_param(sensor, "FOVAngle", 60))
        result = controller.call(rpc_methods.get_sensor_params(sensor))
        assert result.enabled
        assert (result.parameters["Width"], result.parameters["FOVAngle"]) == (64, 60)
        assert controller.call(rpc_methods.get_sensor_param(sensor, "Height")) == 48
        controller.call(rpc_methods.disable_sensor(sensor))
        assert len(controller.call(rpc_methods.get_sensors_params())) == 9
        controller.call(rpc_methods.set_mode_ai(ai=False))
        controller.call(rpc_methods.use_udp("127.0.0.1"))
        with pytest.raises(CallRefusedError, match="nonsense"):
            controller.call(rpc_methods.enable_sensor("nonsense"))
