"""Thread that reads poses and images: an error of one source is reported to its owner and does not affect the
others.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from runtime.sim.launchers.simulator_process import PortLease
from runtime.sim.wire import protocol
from runtime.sim.wire.errors import SimulatorError
from runtime.sim.wire.udp_io import Observations, Receiver
from tests.runtime.sim.conftest import eventually

POSE = protocol.pack_pose([0.5, 1, 1, *range(3, 30)])


class Selector(selectors.DefaultSelector):
    """Selector that fails, or delays its answer, as requested by the test."""

    problem: OSError | None = None
    held_back: int | None = None
    """Descriptor whose readiness is only reported when `may_answer` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.has_answered, self.may_answer = threading.Event(), threading.Event()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(timeout)
        if self.problem is not None:
            raise self.problem
        if self.held_back in [key.fd for key, _ in ready]:
            self.has_answered.set()
            assert self.may_answer.wait(60)
        return ready


@pytest.fixture
def selector(monkeypatch: pytest.MonkeyPatch) -> Selector:
    made = Selector()
    monkeypatch.setattr(selectors, "DefaultSelector", lambda: made)
    return made


@pytest.fixture
def receiver(selector: Selector) -> Iterator[Receiver]:
    with closing(Receiver()) as made:
        yield made


@pytest.fixture
def port() -> Iterator[int]:
    with closing(PortLease.acquire()) as lease:
        yield lease.ports.pose


def send(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(POSE, ("127.0.0.1", port))


def bound() -> socket.socket:
    """A socket bound to a free address."""
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind(("127.0.0.1", 0))
    return made


def is_read(observations: Observations, port: int) -> bool:
    """Send a pose, and return True if it was received."""
    send(port)
    return observations.wait(lambda _: True, 0.5) is not None


def test_a_source_that_fails_is_told_once_and_the_others_are_read(receiver: Receiver, port: int) -> None:
    calls: list[str] = []
    errors: list[Exception] = []

    def fail() -> None:
        calls.append("read")
        raise ValueError("of this source")

    with bound() as failing, closing(Observations(receiver, pose_port=port)) as observations:
        receiver.add(failing.fileno(), fail, errors.append, edge=True)
        send(failing.getsockname()[1])
        eventually(lambda: errors, "the error")
        eventually(lambda: is_read(observations, port), "a pose")
        receiver.remove(failing.fileno())
    assert calls == ["read"], "a datagram that nobody reads is no reason to be called for ever"
    assert [str(error) for error in errors] == ["of this source"]
    assert observations.problem == ""


def test_an_error_of_the_thread_is_told_to_all_and_to_whoever_comes_later(
    receiver: Receiver, selector: Selector, port: int
) -> None:
    with closing(Observations(receiver, pose_port=port)) as observations:
        selector.problem = OSError(5, "Input/output error")
        send(port)
        sentence = "the simulator's poses can no longer be read: OSError: [Errno 5] Input/output error"
        eventually(lambda: observations.problem.startswith(sentence), "the error")
    with pytest.raises(SimulatorError, match=r"can no longer be received \(OSError.*\); restart this process"):
        Observations(receiver, pose_port=port)


def test_a_source_with_the_descriptor_of_one_that_was_just_removed_is_not_taken_for_it(
    receiver: Receiver, selector: Selector
) -> None:
    errors: list[Exception] = []
    reads: list[bytes] = []
    first = bound()
    descriptor = first.fileno()
    receiver.add(descriptor, lambda: reads.append(first.recv(200)), errors.append)
    selector.held_back = descriptor
    send(first.getsockname()[1])
    assert selector.has_answered.wait(60)
    receiver.remove(descriptor)
    first.close()
    with bound() as second:
        second.setblocking(False)
        assert second.fileno() == descriptor
        came = threading.Event()
        receiver.add(descriptor, came.set, errors.append)
        selector.held_back = None
        selector.may_answer.set()
        send(second.getsockname()[1])
        assert came.wait(60)
        receiver.remove(descriptor)
    assert (errors, reads) == ([], [])
