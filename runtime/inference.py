"""Remote inference: the learner says what its policy's network gives, and workers draw from that and step.

For policies that are dear to compute, pictures above all: one GPU answers for many workers, and no worker needs
the weights. A thread of its own owns the socket. It takes all questions that wait, puts them through the network
together and answers each; while it computes the next ones gather, so batches grow with the load by themselves.
Every answer carries the version of the policy that gave it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from runtime.inference_channel import AnswerChannel
from runtime.questions import NoQuestionError, Shapes, answer, read_question, stacked

WAIT_SECONDS: Final = 0.2
"""Longest wait for a question; closing takes as long."""
MOST_TOGETHER: Final = 256
"""Most questions that are answered by one pass of the network."""


class Network(Protocol):
    """What computes: a `NumpyActor`, or the same on a device."""

    def load(self, arena: NDArray[np.float32]) -> None:
        """Take over new weights."""
        ...

    def outputs(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """What the network gives for each row."""
        ...


@dataclass(slots=True)
class Tally:
    """What was answered since the start."""

    questions: int = 0
    rows: int = 0
    batches: int = 0
    """Passes of the network."""
    foreign: int = 0
    """What came in and was no question of this run."""
    early: int = 0
    """Questions from before the first policy; nobody can answer them."""


class Inference:
    """Answers once it was started and a policy was published."""

    def __init__(self, channel: AnswerChannel, network: Network, shapes: Shapes, proof: bytes) -> None:
        self._channel = channel
        self._network = network
        self._shapes = shapes
        self._proof = proof
        self._newest: tuple[int, NDArray[np.float32]] | None = None
        self._loaded = 0
        self._tally = Tally()
        self._closing = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="inference")

    # --- the main thread's side ---
    def start(self) -> None:
        """Begin to answer. The channel belongs to the thread from here on."""
        self._thread.start()

    def publish(self, version: int, arena: NDArray[np.float32]) -> None:
        """Answer with `arena`, which nobody writes any more, from the next question on.

        Raises what the thread died of, if it did.
        """
        if self._error is not None:
            raise RuntimeError("remote inference broke down") from self._error
        self._newest = version, arena

    def status(self) -> dict[str, int]:
        """What the status socket says; any thread may ask."""
        return {**asdict(self._tally), "strangers": self._channel.strangers}

    def close(self) -> None:
        """Stop answering and close the socket."""
        self._closing = True
        if self._thread.is_alive():
            self._thread.join()
        self._channel.close()

    # --- the thread's side ---
    def _run(self) -> None:
        np.seterr(all="ignore")  # of this thread: what is not finite in observations is for its worker to refuse
        try:
            while not self._closing:
                if questions := self._channel.receive(WAIT_SECONDS, MOST_TOGETHER):
                    self._answer(questions)
        except BaseException as error:  # noqa: BLE001  (the main thread raises it again)
            self._error = error

    def _answer(self, frames: Sequence[tuple[bytes, memoryview]]) -> None:
        newest = self._newest
        asked: list[tuple[bytes, int, NDArray[Any]]] = []
        for route, frame in frames:
            try:
                asked.append((route, *read_question(frame, self._shapes, self._proof)))
            except NoQuestionError:
                self._tally.foreign += 1
        if not asked:
            return
        if newest is None:
            self._tally.early += len(asked)
            return
        version, arena = newest
        if version != self._loaded:
            self._network.load(arena)
            self._loaded = version
        outputs = self._network.outputs(stacked([obs for _, _, obs in asked]))
        start = 0
        for route, number, obs in asked:
            end = start + len(obs)
            self._channel.send(route, answer(number, version, outputs[start:end]))
            start = end
        self._tally.questions += len(asked)
        self._tally.rows += start
        self._tally.batches += 1
