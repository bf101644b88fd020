"""Requests and replies: clients with the keys get answers, others get no connection, and both ends may stop."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from runtime.base.addresses import EndpointError
from runtime.exchange.transport.curve_keys import from_token
from runtime.exchange.transport.request_reply import RefusedKeysError, ReplySocket, RequestSocket

LARGEST = 1 << 16
KEYS, OTHER_KEYS = from_token("the run's token"), from_token("another token")


class Echo:
    """A server in a thread that answers each request with its own frames, and counts them."""

    def __init__(self, address: str = "tcp://127.0.0.1:*", keys=KEYS[0]) -> None:
        self.requests: list[Sequence[bytes]] = []
        self.delay: Callable[[], None] = lambda: None
        self._is_over = threading.Event()
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(address, keys))
        self._thread.start()
        assert self._is_ready.wait(60)

    def _run(self, address, keys) -> None:
        with ReplySocket(address, LARGEST, keys) as server:
            self.address, self.server = server.address, server
            self._is_ready.set()
            while not self._is_over.is_set():
                server.serve(0.05, self._answer)

    def _answer(self, request: Sequence[bytes]) -> Sequence[bytes]:
        self.requests.append(request)
        self.delay()
        return request

    def close(self) -> None:
        self._is_over.set()
        self._thread.join(60)


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@contextlib.contextmanager
def client(address: str, keys) -> Iterator[RequestSocket]:
    made = RequestSocket(address, LARGEST, keys)
    try:
        yield made
    finally:
        made.close()


def test_a_process_with_the_token_is_answered(echo):
    with client(echo.address, KEYS[1]) as mine:
        assert mine.request([b"read", b"\x00\xff"], 30) == [b"read", b"\x00\xff"]
        assert mine.request([], 30) == []


def test_another_token_is_refused_and_reads_nothing(echo):
    with client(echo.address, OTHER_KEYS[1]) as stranger, pytest.raises(RefusedKeysError, match="do not accept"):
        request_until_refused(stranger)
    assert echo.requests == []


def request_until_refused(stranger: RequestSocket) -> None:
    """Request repeatedly: several handshakes must fail until the client is sure of the reason."""
    while True:
        try:
            stranger.request([b"read"], 1)
        except RefusedKeysError:
            raise
        except OSError:
            continue


def test_a_listed_key_with_another_server_s_is_refused(echo):
    forged = from_token("a stranger's")[1]
    # Knows the server's public key, as anyone may, and has a key of its own.
    known = type(forged)(forged.public, forged.secret, KEYS[1].server)
    with client(echo.address, known) as stranger, pytest.raises(OSError, match=r"keys|nobody answers"):
        stranger.request([b"read"], 1)
    assert echo.requests == []


def test_a_process_without_keys_and_garbage_are_refused_and_others_are_served(echo):
    host, port = echo.address.removeprefix("tcp://").split(":")
    with client(echo.address, KEYS[1]) as mine, client(echo.address, None) as stranger:
        slow = [socket.create_connection((host, int(port)), 10) for _ in range(20)]
        for number, connection in enumerate(slow):
            with contextlib.suppress(OSError):
                connection.sendall(b"" if number % 2 else os.urandom(200) * number)
        with pytest.raises(OSError, match=r"nobody answers|do not accept"):
            stranger.request([b"read"], 1)
        assert mine.request([b"still"], 30) == [b"still"]
        for connection in slow:
            connection.close()
    assert echo.requests == [[b"still"]]


def test_a_reply_that_came_too_late_is_not_taken_for_the_next(echo):
    gate = threading.Event()
    echo.delay = lambda: gate.wait(60) and None
    with client(echo.address, KEYS[1]) as mine:
        with pytest.raises(OSError, match="does not answer within"):
            mine.request([b"first"], 0.2)
        gate.set()
        assert mine.request([b"second"], 30) == [b"second"]


def test_a_server_that_goes_is_noticed_and_its_successor_is_used(tmp_path):
    address = f"ipc://{tmp_path}/x"
    first = Echo(address, None)
    with client(address, None) as mine:
        assert mine.request([b"a"], 30) == [b"a"]
        first.close()
        with pytest.raises(OSError, match=r"closed the connection|nobody answers"):
            mine.request([b"b"], 30)
        second = Echo(address, None)
        try:
            assert mine.request([b"c"], 30) == [b"c"]
        finally:
            second.close()


def test_an_address_in_use_is_a_sentence(echo):
    with pytest.raises(EndpointError, match=r"cannot listen at .*in use"):
        ReplySocket(echo.address, LARGEST, None)


def test_a_message_beyond_the_bound_closes_its_connection_alone(echo):
    with client(echo.address, KEYS[1]) as mine, client(echo.address, KEYS[1]) as greedy:
        with pytest.raises(OSError, match=r"closed the connection|does not answer|nobody answers"):
            greedy.request([bytes(LARGEST * 4)], 5)
        assert mine.request([b"still"], 30) == [b"still"]
