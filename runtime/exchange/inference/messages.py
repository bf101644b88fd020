"""Frames of remote inference: observations to the learner, outputs of its policy's network back.

Binary frames without JSON, with a fixed-size header and raw numbers, because each step of a worker waits for one
round trip. Both ends know all sizes beforehand, so a frame that does not match exactly is refused. No pickle, no
sockets.

The answer contains the network's outputs and not an action: each worker draws with its own random numbers, so its
actions do not depend on which other questions were in the same batch.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

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
