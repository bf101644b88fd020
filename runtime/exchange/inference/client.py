"""Client side of remote inference: ask the learner for the outputs of its policy's network, one question at a time.

A restarted learner or a lost answer ends nothing: the question is sent again, later through a new socket. A worker
does not act without an answer, so each action is recorded with the version that chose it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from runtime.exchange.inference.messages import NoQuestionError, Shapes, encode_question, read_answer
from runtime.exchange.inference.sockets import QuestionChannel

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
