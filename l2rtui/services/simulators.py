"""Simulators of a worker: status, restart, signal, one camera image.

Runs `l2r-runtime simulators` in the worker's pod, so it works wherever a command can be run in a pod. Its output
comes from inside the pod and is not trusted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from l2rtui.backends.base import Backend
from l2rtui.domain.log import CommandOutput
from l2rtui.domain.simulator import CameraImage, Simulator
from l2rtui.domain.snapshot import PodView
from l2rtui.errors import BackendError, NotFoundError
from l2rtui.services.history import journal
from runtime.base import bounded_json

COMMAND: Final = ("l2r-runtime", "simulators")
WIDTH: Final = 160
"""Width of requested images, pixels: enough for a wide terminal."""
MAX_PIXELS: Final = 1 << 22
_PPM = re.compile(rb"P6\s+(\d{1,5})\s+(\d{1,5})\s+255\s", re.ASCII)


async def status(backend: Backend, pod: PodView) -> tuple[Simulator, ...]:
    """Return the status of a worker's simulators.

    Raises:
        NotFoundError: it drives none. BackendError: the command cannot be run.
    """
    try:
        answer = bounded_json.loads(await _run_simulators_command(backend, pod, ["status"]))
    except ValueError:
        answer = None
    reports = answer.get("simulators") if isinstance(answer, dict) else None
    if not isinstance(reports, list):
        raise BackendError(f"{pod.name} gave no answer that can be read.", "Its runtime may be of another version.")
    return tuple(_simulator(number, report) for number, report in enumerate(reports) if isinstance(report, dict))


async def restart(backend: Backend, pod: PodView, index: int = 0) -> None:
    """End one simulator; its worker restarts it for the next episode, and counts no failure.

    Raises:
        NotFoundError: no simulator has this number. BackendError: the command cannot be run.
    """
    await _run_simulators_command(backend, pod, ["restart", "--index", str(index)])
    journal.record("simulator restart", pod.name, "asked", index=index)


async def send_signal(backend: Backend, pod: PodView, name: str, index: int = 0) -> None:
    """Send a signal to one simulator, by name or number.

    Raises:
        NotFoundError: no simulator has this number, or unknown signal. BackendError: the command cannot be run.
    """
    await _run_simulators_command(backend, pod, ["signal", "--index", str(index), name])
    journal.record("simulator signal", pod.name, "asked", index=index, signal=name)


async def frame(
    backend: Backend, pod: PodView, index: int = 0, *, camera: str = "", width: int = WIDTH
) -> CameraImage:
    """Return one image of a camera; by default of the one that looks ahead.

    Raises:
        NotFoundError: no simulator has this number, or no worker drives it. BackendError: the command
        cannot be run.
    """
    arguments = ["frame", "--index", str(index), "--width", str(width), *(["--camera", camera] if camera else [])]
    return decode_ppm(await _run_simulators_command(backend, pod, arguments))


def decode_ppm(data: bytes) -> CameraImage:
    """Read a binary PPM.

    Raises:
        BackendError: it is not a PPM.
    """
    head = _PPM.match(data)
    width, height = (int(head[1]), int(head[2])) if head else (0, 0)
    size = 3 * width * height
    # The size is checked before anything is allocated: the bytes come from inside the pod.
    if head is None or not 0 < size <= 3 * MAX_PIXELS or len(data) != head.end() + size:
        raise BackendError("The answer is not an image.", "Its runtime may be of another version.")
    return CameraImage(width, height, data[head.end() :])


async def _run_simulators_command(backend: Backend, pod: PodView, arguments: Sequence[str]) -> bytes:
    result: CommandOutput = await backend.capture(pod, [*COMMAND, *arguments])
    if result.code == 0:
        return result.out
    # Only the last line: before it is the traceback or the log of a program that we do not control.
    sentence = result.err.decode("utf-8", "replace").strip().splitlines()[-1:] or ["it gave no reason"]
    reason = sentence[0].removeprefix("l2r-runtime: ")[:400]
    raise NotFoundError(f"{pod.name}: {reason}.", "See `l2rtui simulator status`.")


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
