"""Camera images over ZeroMQ: the one that publishes and the one that receives.

The protocol's own transport is a PUB socket at the simulator; this is the one place beside the learner's channels
where ZeroMQ is used.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import zmq
from numpy.typing import NDArray

from runtime.sim.protocol import CAMERA_HEADER_BYTES, DEPTH_UINT8, FrameHeader, WireError

_BIND_SECONDS = 1.0
"""ZeroMQ lets go of an address a moment after its socket is closed: so long a new one at the same port waits."""

Image = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Frame:
    """One image as it came."""

    image: Image
    """(height, width, channels), BGR, read-only."""
    sequence: int
    """The sender's, where it gives one, else the count of those received."""
    time_ns: int
    """Of the simulation, where the sender gives it; else 0."""
    received: float
    """Seconds, monotonic clock."""


class Cameras:
    """A ZeroMQ context for one simulator's cameras, on either side of the wire."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    def publisher(self, address: str) -> CameraPublisher:
        """Publish at an address. OSError where it cannot be bound."""
        return CameraPublisher(self._context, address)

    def receiver(self, address: str) -> CameraReceiver:
        """Receive from an address; whether somebody publishes there yet makes no difference."""
        return CameraReceiver(self._context, address)

    def close(self) -> None:
        """End the context; its publishers and receivers are closed before."""
        self._context.term()


class CameraPublisher:
    """Publishes frames at one address. OSError where it cannot be bound."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
        self.address = address
        self._sequence = 0
        self._socket = context.socket(zmq.PUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 2)  # whoever cannot keep up gets fewer frames, not old ones
        until = time.monotonic() + _BIND_SECONDS
        while True:
            try:
                self._socket.bind(address)
                break
            except zmq.ZMQError as error:
                if error.errno != zmq.EADDRINUSE or time.monotonic() > until:
                    self._socket.close()
                    raise OSError(error.errno, f"{address}: {error}") from error
                time.sleep(0.01)

    def send(self, image: Image, time_ns: int) -> None:
        """Send one (height, width, channels) image; nobody listening is no failure."""
        self._sequence += 1
        height, width, channels = image.shape
        header = FrameHeader(height, width, channels, DEPTH_UINT8, self._sequence, time_ns).pack()
        self._socket.send(b"".join((header, image.data)), zmq.NOBLOCK, copy=True)

    def send_raw(self, message: bytes) -> None:
        """Send any bytes at all; for a simulator that is to send garbage."""
        self._socket.send(message, zmq.NOBLOCK)

    def close(self) -> None:
        """Let go of the address."""
        self._socket.close()


class CameraReceiver:
    """Receives the newest frame of one camera; frames that come before it is asked are replaced by newer ones."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
        self.garbage = 0
        """Messages that were no frame."""
        self.frames = 0
        self.newest: Frame | None = None
        self._socket = context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.CONFLATE, 1)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 50)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.connect(address)

    def fileno(self) -> int:
        """A descriptor that becomes readable when something has happened: by edges, so look now and then too."""
        return int(self._socket.getsockopt(zmq.FD))

    def receive(self) -> bool:
        """Take what has come, without waiting; True where that was a frame."""
        try:
            message = self._socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return False
        try:
            header = FrameHeader.unpack(message)
        except WireError:
            header = None
        if header is None or header.depth != DEPTH_UINT8:
            self.garbage += 1
            return False
        self.frames += 1
        pixels = np.frombuffer(message, np.uint8, offset=CAMERA_HEADER_BYTES)
        image = pixels.reshape(header.height, header.width, header.channels)
        self.newest = Frame(image, header.sequence or self.frames, header.time_ns, time.monotonic())
        return True

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()
