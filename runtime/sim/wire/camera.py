"""Camera images over ZeroMQ: publisher and receiver.

The lab's protocol prescribes a PUB socket at the simulator. Besides the learner's channels this is the only use of
ZeroMQ.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import zmq
from numpy.typing import NDArray

from runtime.sim.wire.protocol import CAMERA_HEADER_BYTES, DEPTH_UINT8, FrameHeader, WireError

_BIND_SECONDS = 1.0
"""Longest wait for an address: ZeroMQ releases it in a separate thread, shortly after its socket was closed."""

Image = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Frame:
    """One received image."""

    image: Image
    """(height, width, channels), BGR, read-only."""
    sequence: int
    """The sender's sequence number, if it sends one, otherwise the count of received frames."""
    time_ns: int
    """Simulated time, if the sender sends it; otherwise 0."""
    received: float
    """Seconds, monotonic clock."""


class Cameras:
    """A ZeroMQ context for one simulator's cameras, on either side of the wire."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    def close(self) -> None:
        """End the context. Close its publishers and receivers first; otherwise this waits forever."""
        self.context.term()


class CameraPublisher:
    """Publisher of frames at one address. Raises OSError if it cannot be bound."""

    def __init__(self, cameras: Cameras, address: str) -> None:
        self.address = address
        self._sequence = 0
        self._socket = cameras.context.socket(zmq.PUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 2)  # a slow receiver gets fewer frames, not old ones
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
        """Send one (height, width, channels) image; without receivers it is dropped."""
        self._sequence += 1
        height, width, channels = image.shape
        header = FrameHeader(height, width, channels, DEPTH_UINT8, self._sequence, time_ns).pack()
        self._socket.send(b"".join((header, image.data)), zmq.NOBLOCK, copy=True)

    def send_raw(self, message: bytes) -> None:
        """Send any bytes; for the fault that sends garbage."""
        self._socket.send(message, zmq.NOBLOCK)

    def close(self) -> None:
        """Release the address."""
        self._socket.close()


class CameraReceiver:
    """Receiver of one camera's newest frame, which replaces an unread one. The publisher may start later."""

    def __init__(self, cameras: Cameras, address: str) -> None:
        self.garbage = 0
        """Number of messages that were not a frame."""
        self.frames = 0
        self.newest: Frame | None = None
        self._socket = cameras.context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        # A queue of one message, the newest: an agent acts on the current state.
        self._socket.setsockopt(zmq.CONFLATE, 1)
        # Milliseconds. A restarted simulator binds the same port again within seconds.
        self._socket.setsockopt(zmq.RECONNECT_IVL, 50)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.connect(address)

    def fileno(self) -> int:
        """Return ZeroMQ's descriptor, which is edge-triggered (zmq_getsockopt(3)): also poll from time to time."""
        return int(self._socket.getsockopt(zmq.FD))

    def receive(self) -> bool:
        """Read a message without waiting; return True if it was a frame."""
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
        # No copy: the array refers to the message, and is read-only since bytes are.
        pixels = np.frombuffer(message, np.uint8, offset=CAMERA_HEADER_BYTES)
        image = pixels.reshape(header.height, header.width, header.channels)
        self.newest = Frame(image, header.sequence or self.frames, header.time_ns, time.monotonic())
        return True

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
