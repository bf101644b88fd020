"""Streams and events, as in `torch.cuda`."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from tests.fakes.cuda import kernels, pinned
from tests.fakes.cuda.library import clocks


def index_of(device: Any) -> int:
    """Return the index of a device as accepted by torch's functions; -1 for the current one."""
    if device is None or isinstance(device, int):
        return -1 if device is None else device
    index = torch.device(device).index
    return -1 if index is None else index


def number_of(stream: Stream | None) -> int:
    """Return the number of a stream, by default the current one."""
    return int(clocks.current_stream(-1)) if stream is None else stream.number


def is_current_stream_capturing() -> bool:
    """`torch.cuda.is_current_stream_capturing`."""
    return number_of(None) in kernels.captures


def refuse_capture(name: str) -> None:
    """Raise CUDA's error if the thread's stream is being captured."""
    if is_current_stream_capturing():
        raise kernels.NotPermittedError(name)


class Event:
    """`torch.cuda.Event`."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        del enable_timing, blocking, interprocess
        self._event: int | None = None
        self._was_asked = False

    def record(self, stream: Stream | None = None) -> None:
        """Mark the work that a stream has been given so far."""
        self._event, self._was_asked = clocks.record_event(number_of(stream)), False

    def wait(self, stream: Stream | None = None) -> None:
        """Let a stream wait for the mark."""
        if self._event is not None:
            clocks.stream_waits(number_of(stream), self._event)

    def query(self) -> bool:
        """Return whether it was reached. The first answer is no, so that every caller must be able to wait."""
        refuse_capture("event query")
        if self._event is None or clocks.host_is_after_event(self._event):
            return True
        if not self._was_asked:
            self._was_asked = True
            return False
        self.synchronize()
        return True

    def synchronize(self) -> None:
        """Let the host wait for the mark."""
        refuse_capture("event synchronize")
        if self._event is not None:
            clocks.host_waits(self._event)
            pinned.settle()


class Stream:
    """`torch.cuda.Stream`."""

    def __init__(self, device: Any = None, priority: int = 0, *, number: int | None = None) -> None:
        self.number = clocks.new_stream(index_of(device), priority) if number is None else number
        self.device = torch.device("cuda", clocks.device_of_stream(self.number))
        self.priority = clocks.priority_of(self.number)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)

    def wait_stream(self, other: Stream) -> None:
        """Wait for all work that another stream has been given so far."""
        clocks.stream_waits(self.number, clocks.record_event(other.number))

    def wait_event(self, event: Event) -> None:
        """Wait for an event."""
        event.wait(self)

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event, by default a new one."""
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Let the host wait for the stream."""
        refuse_capture("stream synchronize")
        clocks.host_waits_for_stream(self.number)
        pinned.settle()

    def query(self) -> bool:
        """Return whether the host has waited for all work given to the stream."""
        return bool(clocks.host_is_after_stream(self.number))


class StreamContext:
    """`torch.cuda.stream`: also makes the stream's device the current one."""

    def __init__(self, stream: Stream | None) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        if self._stream is not None:
            self._device = clocks.current_device()
            index = self._stream.device.index
            self._before = clocks.current_stream(index)
            clocks.set_current_device(index)
            clocks.set_current_stream(self._stream.number)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is not None:
            clocks.set_current_stream(self._before)
            clocks.set_current_device(self._device)


class DeviceContext:
    """`torch.cuda.device`."""

    def __init__(self, device: Any) -> None:
        self._index = index_of(device)

    def __enter__(self) -> None:
        self._before = clocks.current_device()
        set_device(self._index)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        set_device(self._before)


def set_device(device: Any) -> None:
    """`torch.cuda.set_device`."""
    if (index := index_of(device)) >= 0:
        clocks.set_current_device(index)


def current_stream(device: Any = None) -> Stream:
    """`torch.cuda.current_stream`."""
    return Stream(number=clocks.current_stream(index_of(device)))


def default_stream(device: Any = None) -> Stream:
    """`torch.cuda.default_stream`."""
    index = index_of(device)
    return Stream(number=clocks.current_device() if index < 0 else index)


def synchronize(device: Any = None) -> None:
    """`torch.cuda.synchronize`; for all devices."""
    del device
    refuse_capture("device synchronize")
    clocks.host_waits_for_all()
    pinned.settle()
