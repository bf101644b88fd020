"""Streams and events, as `torch.cuda` has them."""

from __future__ import annotations

import itertools
from types import TracebackType
from typing import Any

import torch

from tests.fakes.cuda import accesses, kernels
from tests.fakes.cuda.library import clocks

DEVICE = torch.device("cuda", 0)
_addresses = itertools.count(0x1000, 0x100)


def refuse_capture(name: str) -> None:
    """Raise what CUDA raises if the thread's stream is being captured."""
    if clocks.current_stream() in kernels.captures:
        raise kernels.NotPermittedError(name)


class Event:
    """`torch.cuda.Event`."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._event: int | None = None
        self._asked = False

    def record(self, stream: Stream | None = None) -> None:
        number = clocks.current_stream() if stream is None else stream.number
        self._event, self._asked = clocks.record_event(number), False

    def wait(self, stream: Stream | None = None) -> None:
        if self._event is not None:
            clocks.stream_waits(clocks.current_stream() if stream is None else stream.number, self._event)

    def query(self) -> bool:
        """The first answer is no: whoever asks must be able to wait."""
        refuse_capture("event query")
        if self._event is None or clocks.host_is_after_event(self._event):
            return True
        if not self._asked:
            self._asked = True
            return False
        self.synchronize()
        return True

    def synchronize(self) -> None:
        refuse_capture("event synchronize")
        if self._event is not None:
            clocks.host_waits(self._event)
            accesses.settle()

    def elapsed_time(self, other: Event) -> float:
        return 1.0


class Stream:
    """`torch.cuda.Stream`."""

    def __init__(self, device: Any = None, priority: int = 0, *, number: int | None = None) -> None:
        self.number = clocks.new_stream(priority) if number is None else number
        self.device = DEVICE
        self.priority = clocks.priority_of(self.number)
        self.cuda_stream = self.number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)

    def wait_stream(self, other: Stream) -> None:
        clocks.stream_waits(self.number, clocks.record_event(other.number))

    def wait_event(self, event: Event) -> None:
        event.wait(self)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        refuse_capture("stream synchronize")
        clocks.host_waits_for_stream(self.number)
        accesses.settle()

    def query(self) -> bool:
        return bool(clocks.host_is_after_stream(self.number))


class StreamContext:
    """`torch.cuda.stream`."""

    def __init__(self, stream: Stream | None) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        self._before = clocks.current_stream()
        if self._stream is not None:
            clocks.set_current_stream(self._stream.number)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        clocks.set_current_stream(self._before)


def current_stream(device: Any = None) -> Stream:
    return Stream(number=clocks.current_stream())


def default_stream(device: Any = None) -> Stream:
    return Stream(number=0)


def synchronize(device: Any = None) -> None:
    refuse_capture("device synchronize")
    clocks.host_waits_for_all()
    accesses.settle()
