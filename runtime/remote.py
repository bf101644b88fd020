"""A worker's side of remote inference: ask what the policy says, and wait for the answer as long as it takes.

A learner that is away, or an answer that got lost, ends nothing: the question is asked again, on a new connection
if the old one seems damaged, and the worker goes on where it stood. Nothing is collected without an answer, so no
action is ever booked under a version that did not choose it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime.inference_channel import QuestionChannel
from runtime.questions import NoQuestionError, Shapes, question, read_answer
from runtime.settings import Settings

if TYPE_CHECKING:
    from runtime.algos.plan import Plan

LOOK_SECONDS: Final = 0.1
"""How often a worker that waits for an answer looks after its session."""
AGAIN_SECONDS: Final = 2.0
"""After this long a question is asked again."""
REOPEN_SECONDS: Final = 6.0
"""After this long without any answer the connection is made anew."""


def shapes_of(plan: Plan, settings: Settings) -> Shapes:
    """Return what both ends know of questions and answers from the run's settings."""
    shape = plan.shape
    return Shapes(shape.obs_space.dtype, shape.obs_dim, shape.answer_floats, settings.num_envs)


class RemotePolicy:
    """Asks one question at a time."""

    def __init__(self, channel: QuestionChannel, shapes: Shapes, proof: bytes) -> None:
        self._channel = channel
        self._shapes = shapes
        self._proof = proof
        self._number = 0

    def outputs(self, obs: NDArray[Any], may_wait: Callable[[], bool]) -> tuple[NDArray[np.float32], int] | None:
        """Return what the network gives for `obs` (B, obs_width), and the version of the policy that gave it.

        `may_wait` is called now and then while no answer comes; where it says no, None is returned.
        """
        channel, opened = self._channel, time.monotonic()
        asked = float("-inf")
        while True:
            now = time.monotonic()
            if now - opened > REOPEN_SECONDS:
                channel.reopen()
                opened, asked = now, float("-inf")
            if now - asked > AGAIN_SECONDS:
                self._number += 1
                if channel.send(question(self._proof, self._number, obs)):
                    asked = now
            frame = channel.receive(LOOK_SECONDS)
            if frame is not None:
                try:
                    number, version, outputs = read_answer(frame, self._shapes, len(obs))
                except NoQuestionError:
                    continue
                if number == self._number:
                    return outputs, version
            elif not may_wait():
                return None
