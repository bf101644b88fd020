"""Real sockets: both transports, peers that vanish and return, and strangers at the port."""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq

from runtime.base import addresses
from runtime.base.addresses import SOCKET_PATH_LIMIT, EndpointError
from runtime.exchange.transport import curve_keys, sockets
from runtime.exchange.transport.sockets import Inbound, LearnerChannel, PeerChannel, Port
from tests.fakes.faults import free_port

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture(params=["ipc", "tcp"])
def where(request: pytest.FixtureRequest, short_folder: Path) -> addresses.Endpoint:
    if request.param == "ipc":
        return addresses.parse(f"ipc://{short_folder}")
    return addresses.parse(f"tcp://127.0.0.1:{free_port()}")


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def receive(channel: LearnerChannel | PeerChannel, count: int = 1, seconds: float = 60.0) -> list[Inbound]:
    messages: list[Inbound] = []
    deadline = time.monotonic() + seconds
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} messages came"
        messages += channel.poll(0.1)
    return messages


def send(peer: PeerChannel, port: Port, frames: list[bytes], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not peer.send(port, frames):
        assert time.monotonic() < deadline, "no connection"
        peer.poll(0.02)


def test_a_connection_that_does_not_join_is_closed_and_an_admitted_one_stays(
    where: addresses.Endpoint, opened: ExitStack
) -> None:
    learner = opened.enter_context(LearnerChannel(where, 1000))
    member, silent = (opened.enter_context(PeerChannel(where, name, 1000)) for name in (b"w-0", b"w-1"))
    for peer in (member, silent):
        send(peer, Port.DATA, [b"hello"])
    by_route = {inbound.route: inbound.descriptor for inbound in receive(learner, 2)}
    waiting = learner.connections[Port.DATA].silent
    assert set(by_route.values()) == set(waiting)
    learner.connections[Port.DATA].admit(by_route[b"w-0"])
    now = time.monotonic()
    learner.close_silent(now + 5.0, is_scarce=False)
    assert list(waiting) == [by_route[b"w-1"]]
    learner.close_silent(now + 11.0, is_scarce=False)
    assert not waiting
    deadline = now + 60.0
    while not waiting:  # libzmq connects again at once, and the new connection is watched, too
        assert time.monotonic() < deadline, "the silent one was not closed"
        learner.poll(0.05)
        silent.poll(0.0)
    send(member, Port.DATA, [b"ping"])
    assert receive(learner)[-1].route == b"w-0"
    assert by_route[b"w-0"] not in waiting
    assert learner.connections[Port.MODEL].silent, "a member needs weights only when there are newer ones"
    learner.close_silent(now + 120.0, is_scarce=True)
    assert not learner.connections[Port.MODEL].silent


def test_messages_go_both_ways_on_both_ports(where: addresses.Endpoint, opened: ExitStack) -> None:
    learner = opened.enter_context(LearnerChannel(where, 1000))
    peer = opened.enter_context(PeerChannel(where, b"w-0", 1000))
    for port in Port:
        send(peer, port, [b"hello", b"x" * 900])
        (inbound,) = receive(learner)
        assert (inbound.port, inbound.route) == (port, b"w-0")
        assert [bytes(frame) for frame in inbound.frames] == [b"hello", b"x" * 900]
        assert learner.send(port, inbound.route, [b"back"])
        (answer,) = receive(peer)
        assert (answer.port, bytes(answer.frames[0])) == (port, b"back")


def test_sending_to_nobody_is_told_and_not_queued(where: addresses.Endpoint, opened: ExitStack) -> None:
    peer = opened.enter_context(PeerChannel(where, b"w-0", 1000))
    assert not peer.send(Port.DATA, [b"nobody there"])
    learner = opened.enter_context(LearnerChannel(where, 1000))
    assert not learner.send(Port.DATA, b"unknown", [b"x"])


def test_a_peer_outlives_the_learner_and_finds_the_next(where: addresses.Endpoint, opened: ExitStack) -> None:
    peer = opened.enter_context(PeerChannel(where, b"w-0", 1000))
    for turn in range(3):
        with LearnerChannel(where, 1000) as learner:
            messages: list[Inbound] = []
            while not messages:  # messages sent just before the learner's end are lost, as intended
                send(peer, Port.DATA, [b"turn %d" % turn])
                messages = learner.poll(0.1)
            assert bytes(messages[0].frames[0]) == b"turn %d" % turn


def test_a_peer_that_comes_back_under_its_name_is_taken_in(where: addresses.Endpoint, opened: ExitStack) -> None:
    learner = opened.enter_context(LearnerChannel(where, 1000))
    for turn in range(3):
        peer = opened.enter_context(PeerChannel(where, b"same", 1000))
        send(peer, Port.DATA, [b"%d" % turn])
        assert bytes(receive(learner)[0].frames[0]) == b"%d" % turn
        assert learner.send(Port.DATA, b"same", [b"answer"])
        assert bytes(receive(peer)[0].frames[0]) == b"answer"


def test_whoever_sends_more_than_agreed_is_cut_off_and_others_are_served(
    where: addresses.Endpoint, opened: ExitStack
) -> None:
    learner = opened.enter_context(LearnerChannel(where, 1000))
    greedy = opened.enter_context(PeerChannel(where, b"greedy", 1000))
    honest = opened.enter_context(PeerChannel(where, b"honest", 1000))
    send(greedy, Port.DATA, [b"hello"])
    receive(learner)
    send(greedy, Port.DATA, [b"x" * 10_000_000])
    send(honest, Port.DATA, [b"hello"])
    assert [inbound.route for inbound in receive(learner)] == [b"honest"]


def test_wake_ends_a_wait(where: addresses.Endpoint, opened: ExitStack) -> None:
    learner = opened.enter_context(LearnerChannel(where, 1000))
    for _ in range(100_000):
        learner.wake()
    began = time.monotonic()
    assert not learner.poll(60.0)
    assert time.monotonic() - began < 45, "a wait that is not ended takes a minute"


def test_noise_on_a_tcp_port_reaches_nobody(opened: ExitStack) -> None:
    port = free_port()
    where = addresses.parse(f"tcp://127.0.0.1:{port}")
    learner = opened.enter_context(LearnerChannel(where, 1000))
    peer = opened.enter_context(PeerChannel(where, b"w-0", 1000))
    noise = [b"GET / HTTP/1.1\r\n\r\n", b"\x80\x04\x95" * 50, struct.pack(">Q", 2**62) * 8, b"\xff" * 64]
    for data in noise:
        with socket.create_connection(("127.0.0.1", port)) as stream:
            stream.sendall(data)
    send(peer, Port.DATA, [b"hello"])
    assert [inbound.route for inbound in receive(learner)] == [b"w-0"]


def test_with_keys_only_those_who_have_them_get_through_and_the_others_know_why(
    opened: ExitStack, wait_until: Callable[..., Any]
) -> None:
    where = addresses.parse(f"tcp://127.0.0.1:{free_port()}")
    ours, theirs = curve_keys.from_token("right"), curve_keys.from_token("wrong")
    unlisted = replace(ours[1], public=theirs[1].public, secret=theirs[1].secret)
    learner = opened.enter_context(LearnerChannel(where, 1000, ours[0]))
    honest = opened.enter_context(PeerChannel(where, b"honest", 1000, ours[1]))
    others = {
        "another learner's key": opened.enter_context(PeerChannel(where, b"1", 1000, theirs[1])),
        "a key that is not on the list": opened.enter_context(PeerChannel(where, b"2", 1000, unlisted)),
        "no keys": opened.enter_context(PeerChannel(where, b"3", 1000)),
    }

    def mistrusted() -> bool:
        learner.poll(0.01)
        for peer in others.values():
            peer.send(Port.DATA, [b"let me in"])
            peer.poll(0.01)
        return all(peer.is_mistrusted for peer in others.values())

    wait_until(mistrusted, "refusals")
    assert learner.refused_keys > 0
    for port in Port:
        wait_until(lambda port=port: learner.poll(0.01) or honest.send(port, [b"hello"]), "connection")
    assert not honest.is_mistrusted
    deadline = time.monotonic() + 60
    routes: set[bytes] = set()
    while b"honest" not in routes and time.monotonic() < deadline:
        routes |= {inbound.route for inbound in learner.poll(0.1)}
        honest.send(Port.DATA, [b"hello"])
    assert routes == {b"honest"}


def test_a_taken_port_and_an_unknown_host_are_sentences(opened: ExitStack) -> None:
    where = addresses.parse(f"tcp://127.0.0.1:{free_port()}")
    opened.enter_context(LearnerChannel(where, 1000))
    with pytest.raises(EndpointError, match="cannot listen at tcp://127"):
        LearnerChannel(where, 1000)
    with pytest.raises(EndpointError, match="cannot be looked up"):
        LearnerChannel(addresses.parse("tcp://no-such-host.invalid:5555"), 1000)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("http://x", "must be ipc:///FOLDER or tcp://HOST:PORT"),
        ("ipc://relative", "absolute"),
        ("ipc:///" + "d" * SOCKET_PATH_LIMIT, f"{SOCKET_PATH_LIMIT}; choose a shorter folder"),
        ("tcp://host", "HOST:PORT"),
        ("tcp://host:0", "1 to 65534"),
        ("tcp://host:65535", "1 to 65534"),
        ("tcp://:5555", "HOST:PORT"),
    ],
)
def test_a_wrong_endpoint_is_refused_with_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(EndpointError, match=sentence):
        addresses.parse(text)


@pytest.mark.parametrize(
    ("text", "private"),
    [
        ("ipc:///tmp/x", True),
        ("tcp://127.0.0.1:5555", True),
        ("tcp://localhost:5555", True),
        ("tcp://[::1]:5555", True),
        ("tcp://0.0.0.0:5555", False),
        ("tcp://*:5555", False),
        ("tcp://learner.example:5555", False),
    ],
)
def test_what_only_this_machine_reaches_is_known(text: str, private: bool) -> None:
    assert addresses.parse(text).is_private() is private


def test_the_longest_path_that_is_let_through_can_be_bound(
    short_folder: Path, opened: ExitStack, wait_until: Callable[..., Any]
) -> None:
    room = SOCKET_PATH_LIMIT - len(str(short_folder)) - len("//model.sock")
    folder = short_folder / ("d" * room)
    folder.mkdir()
    where = addresses.parse(f"ipc://{folder}")
    learner = opened.enter_context(LearnerChannel(where, 1000))
    peer = opened.enter_context(PeerChannel(where, b"w", 1000))
    wait_until(lambda: peer.send(Port.MODEL, [b"x"]), "connection")
    receive(learner)
    assert sys.platform == "darwin" or len(str(folder / "model.sock")) == 107


def test_a_message_of_unknown_origin_does_not_end_the_learner() -> None:
    assert sockets._source(zmq.Frame(b"hello")) == -1
