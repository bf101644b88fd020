"""The simulators of a worker: how they are, a restart, a signal, one camera image.

Asked through `l2r-runtime simulators` beside the worker's process, so it works wherever a command can be run in a
pod. What comes back was written inside the pod and is not trusted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from l2rtui.backends.base import Backend, Captured, Capturing
from l2rtui.domain.snapshot import PodView
from l2rtui.errors import BackendError, NotFoundError
from l2rtui.services import journal

COMMAND: Final = ("l2r-runtime", "simulators")
WIDTH: Final = 160
"""Pixels of a row that are asked for: what a wide terminal can show."""
MOST_PIXELS: Final = 1 << 22
_PPM = re.compile(rb"P6\s+(\d{1,5})\s+(\d{1,5})\s+255\s", re.ASCII)


@dataclass(frozen=True, slots=True)
class Simulator:
    """One simulator of a worker.

    Attributes:
        state: ``starting``, ``ready``, ``lost``, ``given up`` or ``stopped``. fps: poses a second.
        error: Its newest failure, a sentence; empty when it had none. tail: the last lines of its output.
    """

    index: int
    kind: str = ""
    state: str = ""
    restarts: int = 0
    uptime_seconds: float = 0.0
    fps: float = 0.0
    error: str = ""
    tail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Picture:
    """One image: rows of three bytes a pixel, red, green, blue."""

    width: int
    height: int
    pixels: bytes

    def at(self, x: int, y: int) -> tuple[int, int, int]:
        """Colour of a pixel."""
        start = 3 * (y * self.width + x)
        red, green, blue = self.pixels[start : start + 3]
        return red, green, blue


async def status(backend: Backend, pod: PodView) -> tuple[Simulator, ...]:
    """How the simulators of a worker are.

    Raises:
        NotFoundError: it drives none. BackendError: it cannot be asked.
    """
    answer = _decoded(pod, await _asked(backend, pod, ["status"]))
    found = answer.get("simulators")
    if not isinstance(found, list):
        raise BackendError(f"{pod.name} gave no answer that can be read.", "Its runtime may be of another version.")
    return tuple(_simulator(number, one) for number, one in enumerate(found) if isinstance(one, dict))


async def restart(backend: Backend, pod: PodView, index: int = 0) -> None:
    """End one simulator; its worker starts it anew for the next episode, and counts no failure.

    Raises:
        NotFoundError: there is none of this number. BackendError: it cannot be asked.
    """
    await _asked(backend, pod, ["restart", "--index", str(index)])
    journal.record("simulator restart", pod.name, "asked", index=index)


async def send_signal(backend: Backend, pod: PodView, name: str, index: int = 0) -> None:
    """Send one simulator a signal, by name or number.

    Raises:
        NotFoundError: there is none of this number, or no such signal. BackendError: it cannot be asked.
    """
    await _asked(backend, pod, ["signal", "--index", str(index), name])
    journal.record("simulator signal", pod.name, "asked", index=index, signal=name)


async def frame(backend: Backend, pod: PodView, index: int = 0, *, camera: str = "", width: int = WIDTH) -> Picture:
    """One image of a camera; by default the one that looks ahead.

    Raises:
        NotFoundError: there is no simulator of this number, or nobody drives it. BackendError: it cannot be asked.
    """
    words = ["frame", "--index", str(index), "--width", str(width), *(["--camera", camera] if camera else [])]
    return picture_of(await _asked(backend, pod, words))


def picture_of(data: bytes) -> Picture:
    """Read a binary PPM.

    Raises:
        BackendError: it is none.
    """
    head = _PPM.match(data)
    width, height = (int(head[1]), int(head[2])) if head else (0, 0)
    size = 3 * width * height
    if head is None or not 0 < size <= 3 * MOST_PIXELS or len(data) != head.end() + size:
        raise BackendError("What came is no image.", "Its runtime may be of another version.")
    return Picture(width, height, data[head.end() :])


async def _asked(backend: Backend, pod: PodView, words: Sequence[str]) -> bytes:
    if not isinstance(backend, Capturing):
        raise BackendError(f"The {backend.name} backend cannot ask a pod for its simulators.")
    told: Captured = await backend.capture(pod, [*COMMAND, *words])
    if told.code == 0:
        return told.out
    sentence = told.err.decode("utf-8", "replace").strip().splitlines()[-1:] or ["it gave no reason"]
    raise NotFoundError(
        f"{pod.name}: {sentence[0].removeprefix('l2r-runtime: ')[:400]}.", "See `l2rtui simulator status`."
    )


def _decoded(pod: PodView, data: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise BackendError(f"{pod.name} gave no answer that can be read.", "Its runtime may be of another version.")
    return answer


def _simulator(number: int, facts: dict[str, Any]) -> Simulator:
    def text(name: str) -> str:
        value = facts.get(name)
        return value if isinstance(value, str) else ""

    def amount(name: str) -> float:
        value = facts.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e12:
            return 0.0
        return float(value)

    tail = facts.get("tail")
    return Simulator(
        number,
        text("kind"),
        text("state"),
        int(amount("restarts")),
        amount("uptime_seconds"),
        amount("fps"),
        text("error"),
        tuple(line for line in tail if isinstance(line, str)) if isinstance(tail, list) else (),
    )
