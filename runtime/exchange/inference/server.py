"""Server side of remote inference: one process computes the policy's network for many workers.

For policies that are expensive to compute, above all with images: one GPU serves many workers, and no worker needs
the weights. All waiting questions go through the network as one batch; further questions gather meanwhile, so the
batch size adapts to the load without a timer. Each answer names the version of the policy that produced it.

Observations are copied once, from the received frames into memory that the device reads. If the device computes
asynchronously, the next batch is copied meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from runtime.exchange.inference.wire import AnswerChannel, NoQuestionError, Shapes, encode_answer, read_question

WAIT_SECONDS: Final = 0.2
"""Longest wait for a question, and so the delay until the server notices that it should end."""


class PolicyNetwork(Protocol):
    """Network of the policy, on the CPU in NumPy or on a GPU.

    Attributes:
        weights: (floats,) host memory for new weights; `refresh` takes them over.
        buffers: Memory for the observations of each concurrent batch, (maximum rows, obs_width).
    """

    weights: NDArray[np.float32]
    buffers: Sequence[NDArray[Any]]

    def refresh(self) -> None:
        """Use the content of `weights` for batches that begin from now on."""

    def begin(self, slot: int, count: int) -> None:
        """Start computing the first `count` rows of `buffers[slot]`."""

    def finish(self, slot: int) -> NDArray[np.float32]:
        """Return the outputs (count, outputs) of that batch, valid until the next one begins in the slot."""


class WeightsSource(Protocol):
    """Source of the newest weights."""

    def version(self) -> int:
        """Return the newest version; 0 before the first."""

    def read(self, into: NDArray[np.float32]) -> int:
        """Copy the newest weights and return their version."""


@dataclass(slots=True)
class InferenceCounts:
    """Number of questions and answers since the start."""

    questions: int = 0
    rows: int = 0
    batches: int = 0
    """Number of passes of the network."""
    foreign: int = 0
    """Number of frames that were not a question of this run."""
    early: int = 0
    """Questions before the first policy, which get no answer."""


COUNTS: Final = (*(count.name for count in fields(InferenceCounts)), "strangers")
"""Names of a server's counts; strangers are connections that were refused because of their key."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """Questions with consecutive rows in a slot, and the policy version that answers them."""

    slot: int
    version: int
    questions: list[tuple[bytes, int, int]]
    """Address of the sender, number of the question, rows."""


class InferenceServer:
    """Loop that answers questions as soon as there is a policy."""

    def __init__(
        self, channel: AnswerChannel, network: PolicyNetwork, shapes: Shapes, proof: bytes, weights: WeightsSource
    ) -> None:
        self._channel = channel
        self._network = network
        self._shapes = shapes
        self._proof = proof
        self._weights = weights
        self._version = 0
        """Version of the weights in the network."""
        self._counts = InferenceCounts()
        self._slot = 0

    def counts(self) -> dict[str, int]:
        """Return the counts for the learner's status."""
        return {**asdict(self._counts), "strangers": self._channel.refused_keys}

    def serve(self, is_over: Callable[[], bool]) -> None:
        """Answer until `is_over`, which is called several times per second."""
        np.seterr(all="ignore")  # per thread; workers refuse observations that are not finite
        under_way: deque[_Batch] = deque()
        slots = len(self._network.buffers)
        while not is_over():
            # While a batch is in progress there is no wait for questions: its end brings answers to send.
            frames = self._channel.receive(0.0 if under_way else WAIT_SECONDS, self._shapes.batch_questions)
            batch = self._begin(frames) if frames else None
            if under_way:
                self._finish(under_way.popleft())
            if batch is not None:
                under_way.append(batch)
            if slots == 1 and under_way:  # computed within `begin`
                self._finish(under_way.popleft())
        while under_way:
            self._finish(under_way.popleft())

    def _begin(self, frames: Sequence[tuple[bytes, memoryview]]) -> _Batch | None:
        """Copy the questions among `frames` and start computing them; None if there is nothing to answer."""
        rows = self._network.buffers[self._slot]
        questions: list[tuple[bytes, int, int]] = []
        start = 0
        for route, frame in frames:
            try:
                number, obs = read_question(frame, self._shapes, self._proof)
            except NoQuestionError:
                self._counts.foreign += 1
                continue
            rows[start : start + len(obs)] = obs
            start += len(obs)
            questions.append((route, number, len(obs)))
        if not questions:
            return None
        newest = self._weights.version()
        if not newest:
            self._counts.early += len(questions)
            return None
        # Read for each batch, not announced: a policy is used before any credit that follows from it.
        if newest != self._version:
            self._version = self._weights.read(self._network.weights)
            self._network.refresh()
        self._network.begin(self._slot, start)
        batch = _Batch(self._slot, self._version, questions)
        self._slot = (self._slot + 1) % len(self._network.buffers)
        return batch

    def _finish(self, batch: _Batch) -> None:
        """Wait for a batch and send its answers."""
        outputs = self._network.finish(batch.slot)
        # Counted before sending: a client that has an answer finds it counted.
        self._counts.questions += len(batch.questions)
        self._counts.rows += sum(rows for _, _, rows in batch.questions)
        self._counts.batches += 1
        start = 0
        for route, number, rows in batch.questions:
            self._channel.send(route, encode_answer(number, batch.version, outputs[start : start + rows]))
            start += rows
