"""Server side of remote inference: the learner computes its policy's network for many workers.

For policies that are expensive to compute, above all with images: one GPU serves many workers, and no worker needs
the weights. A thread of its own owns the socket. It puts all waiting questions through the network as one batch;
further questions gather meanwhile, so the batch size adapts to the load without a timer. Each answer names the
version of the policy that produced it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from runtime.exchange.inference.messages import NoQuestionError, Shapes, encode_answer, read_question
from runtime.exchange.inference.sockets import AnswerChannel

WAIT_SECONDS: Final = 0.2
"""Longest wait for a question, and so for the thread to notice `close`."""
MAX_BATCH_QUESTIONS: Final = 256
"""Most questions in one pass of the network: it bounds the memory and the delay of the first of them."""


class PolicyNetwork(Protocol):
    """Network of the policy, on the CPU in NumPy or on a GPU."""

    def load(self, arena: NDArray[np.float32]) -> None:
        """Copy new weights in."""

    def outputs(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """Return the outputs of the last layer for each row of `obs`."""


@dataclass(slots=True)
class InferenceCounts:
    """Number of questions and answers since the start."""

    questions: int = 0
    rows: int = 0
    batches: int = 0
    """Number of passes of the network."""
    foreign: int = 0
    """Number of frames that were no question of this run."""
    early: int = 0
    """Questions before the first policy, which have no answer."""


class InferenceServer:
    """Thread that answers questions once it is started and a policy is published."""

    def __init__(self, channel: AnswerChannel, network: PolicyNetwork, shapes: Shapes, proof: bytes) -> None:
        self._channel = channel
        self._network = network
        self._shapes = shapes
        self._proof = proof
        self._newest: tuple[int, NDArray[np.float32]] | None = None
        self._loaded = 0
        self._counts = InferenceCounts()
        self._closing = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="inference")

    # --- main thread ---
    def start(self) -> None:
        """Start the thread; from here on the channel belongs to it."""
        self._thread.start()

    def publish(self, version: int, arena: NDArray[np.float32]) -> None:
        """Use `arena`, which is not written any more, from the next batch on.

        Raises RuntimeError if the thread has failed, with its exception as the cause.
        """
        if self._error is not None:
            raise RuntimeError("remote inference broke down") from self._error
        # One assignment of a tuple, so that the thread never sees the version of one policy with another's weights.
        self._newest = version, arena

    def status(self) -> dict[str, int]:
        """Return the counts for the learner's status. Any thread may call it."""
        return {**asdict(self._counts), "strangers": self._channel.refused_keys}

    def close(self) -> None:
        """Stop the thread and close the socket."""
        self._closing = True
        if self._thread.is_alive():
            self._thread.join()
        self._channel.close()

    # --- inference thread ---
    def _run(self) -> None:
        np.seterr(all="ignore")  # per thread; observations that are not finite are refused by their worker
        try:
            while not self._closing:
                if frames := self._channel.receive(WAIT_SECONDS, MAX_BATCH_QUESTIONS):
                    self._answer(frames)
        except BaseException as error:  # noqa: BLE001  (the main thread raises it again)
            self._error = error

    def _answer(self, frames: Sequence[tuple[bytes, memoryview]]) -> None:
        newest = self._newest
        questions: list[tuple[bytes, int, NDArray[Any]]] = []
        for route, frame in frames:
            try:
                questions.append((route, *read_question(frame, self._shapes, self._proof)))
            except NoQuestionError:
                self._counts.foreign += 1
        if not questions:
            return
        if newest is None:
            self._counts.early += len(questions)
            return
        version, arena = newest
        if version != self._loaded:
            self._network.load(arena)
            self._loaded = version
        rows = [obs for _, _, obs in questions]
        outputs = self._network.outputs(rows[0] if len(rows) == 1 else np.concatenate(rows))
        start = 0
        for route, number, obs in questions:
            end = start + len(obs)
            self._channel.send(route, encode_answer(number, version, outputs[start:end]))
            start = end
        self._counts.questions += len(questions)
        self._counts.rows += start
        self._counts.batches += 1
