"""Simulators of the demo's workers: output of ``l2r-runtime simulators`` for status, restart and camera image."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from l2rtui.domain.log import CommandOutput
from l2rtui.domain.snapshot import PodView
from l2rtui.domain.workload import Role

WIDTH: Final = 64
HEIGHT: Final = 48
RESTARTED: Final = "the simulator was restarted by request"
HUNG: Final = "the simulator hangs: no pose followed an action within 10 s"


class DemoSimulators:
    """One simulator for each running worker."""

    def __init__(self) -> None:
        self._restarts: dict[str, int] = {}

    def run_command(self, pod: PodView, argv: Sequence[str]) -> CommandOutput:
        """Return the output of `l2r-runtime simulators` in a pod."""
        arguments = [argument for argument in argv if not argument.startswith("--")]
        if arguments[:2] != ["l2r-runtime", "simulators"] or pod.role is not Role.WORKER or not pod.ready:
            return CommandOutput(1, b"", b"l2r-runtime: this pod's process drives no simulators now\n")
        if "--index" in argv and argv[list(argv).index("--index") + 1] != "0":
            return CommandOutput(1, b"", b"l2r-runtime: there is no simulator of that number: there are 1\n")
        match arguments[2]:
            case "status":
                return _json_output({"simulators": [self._facts(pod)]})
            case "frame":
                return CommandOutput(0, picture(pod.index), b"")
            case "restart":
                self._restarts[pod.uid] = self._restarts_of(pod) + 1
                return _json_output({"asked": "restart"})
            case _:
                return _json_output({"asked": arguments[3]})

    def _restarts_of(self, pod: PodView) -> int:
        return self._restarts.get(pod.uid, int(pod.index == 2))  # as the worker's records in ``demo_logs`` show

    def _facts(self, pod: PodView) -> dict[str, object]:
        restarts = self._restarts_of(pod)
        return {
            "index": 0,
            "kind": "reference",
            "state": "ready",
            "restarts": restarts,
            "uptime_seconds": 612.0,
            "fps": 100.0,
            "error": RESTARTED if pod.uid in self._restarts else HUNG if restarts else None,
            "cameras": [],
            "tail": ["level harbour is open"],
        }


def picture(seed: int) -> bytes:
    """Return an image of a bending road under a sky as a binary PPM of WIDTH by HEIGHT pixels."""
    rows = []
    for y in range(HEIGHT):
        # 0 at the horizon, 1 at the lower edge.
        depth = (y - HEIGHT // 2) / (HEIGHT // 2)
        middle = WIDTH / 2 + (seed - 2) * 6 * (1 - depth) ** 2
        for x in range(WIDTH):
            if depth <= 0:
                colour = (96, 144, 208 + y)
            elif abs(x - middle) < 1 + depth * 1.5:
                colour = (240, 240, 220)
            else:
                colour = (70, 70, 74) if abs(x - middle) < 3 + depth * 26 else (60, 120 + y, 60)
            rows.append(bytes(min(255, part) for part in colour))
    return f"P6 {WIDTH} {HEIGHT} 255\n".encode() + b"".join(rows)


def _json_output(answer: object) -> CommandOutput:
    return CommandOutput(0, json.dumps(answer).encode() + b"\n", b"")
