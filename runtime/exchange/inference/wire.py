"""Wire of remote inference: frames, sockets, and the client that asks.

The sockets are a third pair, so that neither segments nor weights delay a question. One ROUTER at the learner and
one DEALER at a worker, with the rules of the exchange: frame sizes are bounded before anything is read, lingering
is bounded, CURVE and its list of keys apply as in the rest of the run. A channel belongs to one thread. Answers
that a worker does not read are dropped; it asks again.

Frames are binary without JSON, with a fixed-size header and raw numbers, because each step of a worker waits for
one round trip. Both ends know all sizes beforehand, so a frame that does not match exactly is refused. No pickle.

The answer contains the network's outputs and not an action: each worker draws with its own random numbers, so its
actions do not depend on which other questions were in the same batch.

The client asks one question at a time. A restarted learner or a lost answer ends nothing: the question is sent
again, later through a new socket. A worker does not act without an answer, so each action is recorded with the
version that chose it.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import zmq
from numpy.typing import NDArray

from runtime.base.addresses import Endpoint, EndpointError
from runtime.exchange.transport.curve_keys import LearnerKeys, PeerKeys
from runtime.exchange.transport.sockets import (
    HANDSHAKE_BYTES,
    ZapAuthenticator,
    bounded_socket,
    configure_client,
    io_threads,
)

_QUESTION: Final = struct.Struct("<4s16sQI")
"""Magic bytes, proof, number of the question, rows; little-endian without padding."""
_ANSWER: Final = struct.Struct("<4sQQI")
"""Magic bytes, number of the question, policy version, rows."""
_QUESTION_MAGIC: Final = b"L2Q1"
_ANSWER_MAGIC: Final = b"L2A1"
HEADER_BYTES: Final = max(_QUESTION.size, _ANSWER.size)
MAX_BATCH_QUESTIONS: Final = 256
"""Maximum number of questions in one pass of the network, which bounds the delay of the first one."""
MAX_BATCH_BYTES: Final = 64 * 1024 * 1024
"""Maximum bytes of observations in one pass with several questions: pinned memory is scarce."""


class NoQuestionError(ValueError):
    """Received bytes are not a question or an answer of this run; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """Sizes of questions and answers, known to both ends from the run's settings."""

    obs_dtype: np.dtype[Any]
    obs_width: int
    outputs: int
    """Number of float32 values in each row of an answer."""
    max_rows: int
    """Maximum number of rows in a question: the copies of the environment in a worker."""

    @property
    def question_bytes(self) -> int:
        """Size of the longest question."""
        return HEADER_BYTES + self.max_rows * self.obs_width * self.obs_dtype.itemsize

    @property
    def batch_questions(self) -> int:
        """Maximum number of questions in one pass of the network."""
        return max(1, min(MAX_BATCH_QUESTIONS, MAX_BATCH_BYTES // self.question_bytes))

    @property
    def batch_rows(self) -> int:
        """Maximum number of rows in one pass of the network."""
        return self.batch_questions * self.max_rows

    @property
    def answer_bytes(self) -> int:
        """Size of the longest answer."""
        return HEADER_BYTES + self.max_rows * self.outputs * 4


def proof_of(token: str, run_id: str) -> bytes:
    """Return 16 bytes that prove knowledge of the run's token: a keyed hash (BLAKE2b, RFC 7693) of its id."""
    return hashlib.blake2b(run_id.encode(), digest_size=16, key=hashlib.sha256(token.encode()).digest()).digest()


def encode_question(proof: bytes, number: int, obs: NDArray[Any]) -> bytes:
    """Return the frame that requests the policy's outputs for `obs` (B, obs_width)."""
    # Joined from the array itself: a frame of images is half a megabyte, and each copy of it costs time.
    return b"".join((_QUESTION.pack(_QUESTION_MAGIC, proof, number, len(obs)), np.ascontiguousarray(obs).data))


def read_question(frame: memoryview, shapes: Shapes, proof: bytes) -> tuple[int, NDArray[Any]]:
    """Return the number of a question and a view of its observations. Raises NoQuestionError."""
    if frame.nbytes < _QUESTION.size:
        raise NoQuestionError(f"{frame.nbytes} bytes are no question")
    magic, sent_proof, number, rows = _QUESTION.unpack_from(frame)
    # Constant time: the proof must not be guessable byte by byte from the time of a refusal.
    if magic != _QUESTION_MAGIC or not hmac.compare_digest(sent_proof, proof):
        raise NoQuestionError("no question of this run")
    if not 0 < rows <= shapes.max_rows:
        raise NoQuestionError(f"a question of {rows} rows; 1 to {shapes.max_rows} are taken")
    return number, _rows(frame, _QUESTION.size, rows, shapes.obs_width, shapes.obs_dtype)


def encode_answer(number: int, policy_version: int, outputs: NDArray[np.float32]) -> bytes:
    """Return the answer to a question: `outputs` (B, outputs) of the policy of `policy_version`."""
    return _ANSWER.pack(_ANSWER_MAGIC, number, policy_version, len(outputs)) + outputs.tobytes()


def read_answer(frame: memoryview, shapes: Shapes, rows: int) -> tuple[int, int, NDArray[np.float32]]:
    """Return question number, policy version and outputs (rows, outputs). Raises NoQuestionError."""
    if frame.nbytes < _ANSWER.size:
        raise NoQuestionError(f"{frame.nbytes} bytes are no answer")
    mark, number, version, count = _ANSWER.unpack_from(frame)
    if mark != _ANSWER_MAGIC or count != rows:
        raise NoQuestionError(f"no answer to a question of {rows} rows")
    return number, version, _rows(frame, _ANSWER.size, rows, shapes.outputs, np.dtype(np.float32))


def _rows(frame: memoryview, start: int, rows: int, width: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    expected = start + rows * width * dtype.itemsize
    if frame.nbytes != expected:
        raise NoQuestionError(f"{rows} rows have {expected} bytes here, not {frame.nbytes}")
    values: NDArray[Any] = np.frombuffer(frame, dtype, rows * width, start).reshape(rows, width)
    return values


POLL_SECONDS: Final = 0.1
"""Longest wait for an answer before `may_wait` is called: a worker pings its learner meanwhile."""
RESEND_SECONDS: Final = 2.0
"""A question without an answer is sent again after this time."""
REOPEN_SECONDS: Final = 6.0
"""A socket without an answer is replaced after this time."""


class RemotePolicy:
    """Policy that the learner computes. Owns `channel` and belongs to one thread."""

    def __init__(self, channel: QuestionChannel, shapes: Shapes, proof: bytes) -> None:
        self._channel = channel
        self._shapes = shapes
        self._proof = proof
        self._number = 0
        """Number of the latest question."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def outputs(self, obs: NDArray[Any], may_wait: Callable[[], bool]) -> tuple[NDArray[np.float32], int] | None:
        """Return the network's outputs (B, outputs) for `obs` (B, obs_width), and the version of the policy.

        `may_wait` is called while waiting for the answer; once it returns false, the result is None.
        """
        channel, opened = self._channel, time.monotonic()
        sent = float("-inf")
        while True:
            now = time.monotonic()
            if now - opened > REOPEN_SECONDS:
                channel.reopen()
                opened, sent = now, float("-inf")
            if now - sent > RESEND_SECONDS:
                # Each copy has its own number, so a late answer to an abandoned question is never mistaken for the
                # answer to this one.
                self._number += 1
                if channel.send(encode_question(self._proof, self._number, obs)):
                    sent = now
            frame = channel.receive(POLL_SECONDS)
            if frame is not None:
                try:
                    number, version, outputs = read_answer(frame, self._shapes, len(obs))
                except NoQuestionError:
                    continue
                if number == self._number:
                    return outputs, version
            elif not may_wait():
                return None


PORT_OFFSET: Final = 3
"""Distance from the data port; between them are the model port and the status port."""
SOCKET_NAME: Final = "asks.sock"
BACKLOG: Final = 256
MAX_QUEUED_ANSWERS: Final = 64
"""Maximum number of queued answers to one worker, which waits for one answer at a time: the others are obsolete."""
LARGE_BYTES: Final = 64 * 1024
"""Questions above this size are read by several threads."""


def address_of(endpoint: Endpoint) -> str:
    """Return the address for questions. Raises EndpointError if its port number would be too large."""
    if endpoint.folder is not None:
        return f"ipc://{endpoint.folder / SOCKET_NAME}"
    if endpoint.port + PORT_OFFSET > 65535:
        raise EndpointError(
            f"remote inference listens {PORT_OFFSET} ports behind the learner's, and {endpoint.port} has no such"
        )
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"tcp://{host}:{endpoint.port + PORT_OFFSET}"


class _Channel:
    def __init__(self, kind: int, largest: int, *, ipv6: bool, num_threads: int = 1) -> None:
        # A separate context: closing a context waits for all its sockets, and the exchange's sockets live longer.
        self._context = zmq.Context(num_threads)
        self._kind, self._largest, self._ipv6 = kind, largest, ipv6
        self._socket = self._new()

    def _new(self) -> zmq.Socket[bytes]:
        self._timeout_seconds = -1.0
        """Current timeout of the socket; setting it costs a call, so it is set only when it changes."""
        largest = self._largest + HANDSHAKE_BYTES
        socket = bounded_socket(self._context, self._kind, largest, ipv6=self._ipv6)
        socket.setsockopt(zmq.SNDHWM, MAX_QUEUED_ANSWERS)
        return socket

    def _set_timeout(self, timeout_seconds: float) -> None:
        """Set the longest wait of `recv`."""
        if timeout_seconds != self._timeout_seconds:
            self._timeout_seconds = timeout_seconds
            self._socket.setsockopt(zmq.RCVTIMEO, math.ceil(timeout_seconds * 1000))

    def close(self) -> None:
        self._socket.close()
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AnswerChannel(_Channel):
    """Learner's end, bound next to `endpoint`. Raises EndpointError if the address cannot be used."""

    def __init__(self, endpoint: Endpoint, largest_bytes: int, keys: LearnerKeys | None = None) -> None:
        address = address_of(endpoint.bound())
        # Images of a dozen workers are gigabytes per second, more than one libzmq thread can read or decrypt.
        num_threads = io_threads() if keys is not None or largest_bytes > LARGE_BYTES else 1
        super().__init__(zmq.ROUTER, largest_bytes, ipv6="[" in address, num_threads=num_threads)
        self._zap = None if keys is None else ZapAuthenticator(self._context, keys)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        # A worker that reconnects under its name replaces its old connection, which may not have timed out yet.
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.setsockopt(zmq.BACKLOG, BACKLOG)
        if self._zap is not None:
            self._poller.register(self._zap.socket, zmq.POLLIN)
            self._zap.guard(self._socket)
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise EndpointError(f"the learner cannot listen at {address}: {error}") from error

    @property
    def refused_keys(self) -> int:
        """Number of connections that were refused because of their key."""
        return self._zap.refused_keys if self._zap is not None else 0

    def receive(self, timeout_seconds: float, most: int) -> list[tuple[bytes, memoryview]]:
        """Return waiting questions, at most `most`, as (address of the sender, frame)."""
        questions: list[tuple[bytes, memoryview]] = []
        # Without ZAP there is one socket: a blocking recv waits and reads in one call, a poller needs two.
        if self._zap is None:
            self._set_timeout(timeout_seconds)
            try:
                self._read(self._socket.recv(), questions)
            except zmq.Again:
                return questions
        else:
            ready = dict(self._poller.poll(math.ceil(timeout_seconds * 1000)))
            if self._zap.socket in ready:
                self._zap.answer_requests()
        while len(questions) < most and int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._read(self._socket.recv(), questions)
        return questions

    def _read(self, route: bytes, questions: list[tuple[bytes, memoryview]]) -> None:
        """Read the rest of a message after its address; a message of several parts is discarded, as it is no
        question.
        """
        frame = self._socket.recv(copy=False)  # never blocks: libzmq delivers all parts of a message together
        is_single = not frame.more
        while frame.more:
            frame = self._socket.recv(copy=False)
        if is_single:
            questions.append((route, frame.buffer))

    def send(self, route: bytes, frame: bytes) -> None:
        """Send an answer; it is dropped if the worker is gone or does not read it."""
        # No ROUTER_MANDATORY, unlike in the exchange: a lost answer is requested again, so dropping it is harmless.
        try:
            self._socket.send(route, zmq.NOBLOCK | zmq.SNDMORE)
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return

    def close(self) -> None:
        """Close the sockets."""
        if self._zap is not None:
            self._zap.close()
        super().close()


class QuestionChannel(_Channel):
    """Worker's end; libzmq connects and reconnects in the background. `name` as in the exchange."""

    def __init__(self, endpoint: Endpoint, name: bytes, largest_bytes: int, keys: PeerKeys | None = None) -> None:
        self._address = address_of(endpoint)
        self._name, self._keys = name, keys
        super().__init__(zmq.DEALER, largest_bytes, ipv6="[" in self._address)
        self._connect()

    def _connect(self) -> None:
        socket = self._socket
        configure_client(socket, self._name, self._keys)
        socket.connect(self._address)

    def reopen(self) -> None:
        """Replace the socket: libzmq permanently stops reconnecting after a protocol error, such as a damaged
        byte.
        """
        self._socket.close()
        self._socket = self._new()
        self._connect()

    def send(self, frame: bytes) -> bool:
        """Send a question; return false without a connection."""
        try:
            self._socket.send(frame, zmq.NOBLOCK, copy=len(frame) < zmq.COPY_THRESHOLD)
        except zmq.Again:
            return False
        return True

    def receive(self, timeout_seconds: float) -> memoryview | None:
        """Return the next answer, or None if none comes in time or it has several parts."""
        self._set_timeout(timeout_seconds)
        try:
            frames = [self._socket.recv(copy=False)]
        except zmq.Again:
            return None
        while frames[-1].more:
            frames.append(self._socket.recv(copy=False))
        return frames[0].buffer if len(frames) == 1 else None
