"""Questions and answers of remote inference: observations one way, what the policy's network says the other.

Frames of their own and no JSON: a header of fixed size and raw numbers behind it, because a question and its answer
are on the critical path of every step. Sizes are known to both ends beforehand, so a frame is right to the byte or
it is nothing. No pickle, no sockets.

What goes back is what the network gives and not an action: each worker draws with its own random numbers, so what
it does does not depend on who else asked at the same moment.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_QUESTION: Final = struct.Struct("<4s16sQI")
"""Mark, proof, number, rows."""
_ANSWER: Final = struct.Struct("<4sQQI")
"""Mark, number, policy version, rows."""
_ASKS: Final = b"L2Q1"
_SAYS: Final = b"L2A1"
HEADER_BYTES: Final = max(_QUESTION.size, _ANSWER.size)


class NoQuestionError(ValueError):
    """What arrived is no question or answer of this run; the sentence says why."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """What both ends know of a row before anything is sent."""

    obs_dtype: np.dtype[Any]
    obs_width: int
    outputs: int
    """float32 of each row of an answer."""
    most_rows: int
    """Of one question: the copies of the environment in a worker."""

    @property
    def question_bytes(self) -> int:
        """Longest question."""
        return HEADER_BYTES + self.most_rows * self.obs_width * self.obs_dtype.itemsize

    @property
    def answer_bytes(self) -> int:
        """Longest answer."""
        return HEADER_BYTES + self.most_rows * self.outputs * 4


def proof_of(token: str, run_id: str) -> bytes:
    """Return the 16 bytes by which a question shows that it is of this run, from one who has its token."""
    return hashlib.blake2b(run_id.encode(), digest_size=16, key=hashlib.sha256(token.encode()).digest()).digest()


def question(proof: bytes, number: int, obs: NDArray[Any]) -> bytes:
    """Return the frame that asks what the policy says to `obs` (B, obs_width)."""
    return _QUESTION.pack(_ASKS, proof, number, len(obs)) + obs.tobytes()


def read_question(frame: memoryview, shapes: Shapes, proof: bytes) -> tuple[int, NDArray[Any]]:
    """Return the number of a question, and its observations as a view. Raises NoQuestionError."""
    number, rows = _header(frame, _QUESTION, _ASKS, proof)
    if not 0 < rows <= shapes.most_rows:
        raise NoQuestionError(f"a question of {rows} rows; 1 to {shapes.most_rows} are taken")
    obs = _rows(frame, _QUESTION.size, rows, shapes.obs_width, shapes.obs_dtype)
    return number, obs


def answer(number: int, policy_version: int, outputs: NDArray[np.float32]) -> bytes:
    """Return the frame that answers a question with `outputs` (B, outputs) of the policy of a version."""
    return _ANSWER.pack(_SAYS, number, policy_version, len(outputs)) + outputs.tobytes()


def read_answer(frame: memoryview, shapes: Shapes, rows: int) -> tuple[int, int, NDArray[np.float32]]:
    """Return number, policy version and outputs (rows, outputs) of an answer. Raises NoQuestionError."""
    if frame.nbytes < _ANSWER.size:
        raise NoQuestionError(f"{frame.nbytes} bytes are no answer")
    mark, number, version, count = _ANSWER.unpack_from(frame)
    if mark != _SAYS or count != rows:
        raise NoQuestionError(f"no answer to a question of {rows} rows")
    return number, version, _rows(frame, _ANSWER.size, rows, shapes.outputs, np.dtype(np.float32))


def _header(frame: memoryview, form: struct.Struct, mark: bytes, proof: bytes) -> tuple[int, int]:
    if frame.nbytes < form.size:
        raise NoQuestionError(f"{frame.nbytes} bytes are no question")
    given, shown, number, rows = form.unpack_from(frame)
    if given != mark or not hmac.compare_digest(shown, proof):
        raise NoQuestionError("no question of this run")
    return number, rows


def _rows(frame: memoryview, start: int, rows: int, width: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    expected = start + rows * width * dtype.itemsize
    if frame.nbytes != expected:
        raise NoQuestionError(f"{rows} rows have {expected} bytes here, not {frame.nbytes}")
    found: NDArray[Any] = np.frombuffer(frame, dtype, rows * width, start).reshape(rows, width)
    return found


def stacked(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return the rows of several questions as one array; of a single one without a copy."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
