"""Logs and simulators of the in-memory cluster: a pure function of the pod and the time, so that two readings
agree.

The learning curves are formulas with the shape of real ones, so that screens have numbers to show.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Final
from zlib import crc32

from l2rtui.domain.log import CommandOutput, LogLine, LogQuery
from l2rtui.domain.snapshot import PodView
from l2rtui.domain.workload import Role
from runtime.base.contract import METRIC_PREFIX

PERIODS = {Role.LEARNER: 1.0, Role.WORKER: 2.0, Role.EVALUATOR: 5.0}
"""Seconds between two lines, by role; every other pod prints once in 2 s."""
MAX_LINES = 2_000
STEPS_PER_SECOND = 1_900.0
UPDATES_PER_SECOND = 11.2
CRASH_LOOP = "CrashLoopBackOff"
CRASH_SECONDS = 31.0
"""Life of a process that runs out of memory, from start to end."""
OUT_OF_MEMORY = "ERROR out of memory: 16.0Gi of 16.0Gi in use"


def lines(pod: PodView, query: LogQuery, now: float, peers: Sequence[str] = ()) -> list[LogLine]:
    """Return the lines of one pod up to ``now`` that match the query, oldest first.

    Args:
        peers: Names of the pods connected to a learner.
    """
    if pod.started is None or query.previous:
        all_lines = list(_before(pod)) if query.previous else []
    else:
        all_lines = [*_opening(pod, pod.started), *_steady(pod, pod.started, now, query, peers)]
    if query.since is not None:
        all_lines = [line for line in all_lines if line.time > query.since]
    # Not all_lines[-tail:], which would be everything for a tail of 0.
    return all_lines if query.tail is None else all_lines[max(0, len(all_lines) - query.tail) :]


def seconds_to_next(pod: PodView, now: float) -> float:
    """Return the seconds until the next line of a pod; 0 before its start."""
    if pod.started is None:
        return 0.0
    period = _period(pod)
    return period - (now - pod.started) % period


def _period(pod: PodView) -> float:
    return PERIODS.get(pod.role, 2.0) if pod.role else 2.0


def _opening(pod: PodView, started: float) -> Iterator[LogLine]:
    if pod.restarts:
        code = "" if pod.exit_code is None else f", exit {pod.exit_code} {pod.reason}".rstrip()
        yield LogLine(started, pod.name, f"restart {pod.restarts}{code}", is_mark=True)
    yield LogLine(started, pod.name, f"INFO {pod.role or 'process'} {pod.name} starts with seed {pod.seed}")


def _before(pod: PodView) -> Iterator[LogLine]:
    if pod.restarts:
        yield LogLine(pod.created, pod.name, f"INFO {pod.role or 'process'} {pod.name} starts with seed {pod.seed}")
        yield LogLine(pod.created + CRASH_SECONDS, pod.name, OUT_OF_MEMORY)


def _steady(pod: PodView, started: float, now: float, query: LogQuery, peers: Sequence[str]) -> Iterator[LogLine]:
    period = _period(pod)
    end = min(now, started + CRASH_SECONDS) if pod.reason == CRASH_LOOP else now
    last = int((end - started) / period)
    # Lines that the query leaves out are not generated: a follower calls this ten times a second.
    first = 0 if query.since is None else int((query.since - started) / period)
    # It may be a line too many, which the caller cuts off.
    most = MAX_LINES if query.tail is None else min(MAX_LINES, query.tail)
    for number in range(max(1, last - most, first), last + 1):
        age = number * period
        yield LogLine(started + age, pod.name, _text(pod, age, started + age, peers))
    # The newest line of a pod that crashes again and again is the cause, until it comes back.
    if end < now:
        yield LogLine(end, pod.name, OUT_OF_MEMORY)


def _text(pod: PodView, age: float, at: float, peers: Sequence[str]) -> str:
    match pod.role:
        case Role.LEARNER:
            return _record("learner", at, {**learner_values(pod, age), **_exchange(pod, age, peers)})
        case Role.WORKER:
            rate = STEPS_PER_SECOND / 4 + 20 * _wobble(pod, age)
            return _record(
                "worker",
                at,
                {
                    "env_steps": int(age * rate),
                    "policy_version": int(age * 1.1),
                    "env_steps_per_second": round(rate, 1),
                    **_simulator(pod, age),
                },
            )
        case Role.EVALUATOR:
            reached = f"return {_return(pod, age):.1f}, progress {_progress(age):.2f} laps"
            return f"INFO evaluation {int(age / 5)}: {reached}"
        case _:
            return f"INFO step {int(age)}"


def _simulator(pod: PodView, age: float) -> dict[str, object]:
    """Return the simulator values of a worker: in each set the third worker lost its simulator once."""
    # One of each set, so that the screens have a simulator with a past.
    was_lost = pod.index == 2
    return {
        "simulator_state": "ready",
        "simulator_restarts": int(was_lost),
        "simulator_fps": round(100.0 + _wobble(pod, age), 1),
        "simulator_error": HUNG if was_lost else None,
    }


def learner_values(pod: PodView, age: float) -> dict[str, object]:
    """Return the values of a learner's record at an age in seconds; names as in ``runtime.base.contract``."""
    steps_rate = STEPS_PER_SECOND + 60 * _wobble(pod, age, "steps")
    return {
        "env_steps": int(age * STEPS_PER_SECOND),
        "updates": int(age * UPDATES_PER_SECOND),
        "policy_version": int(age * 1.1),
        "policy_lag": [0, round(1.4 + 0.3 * _wobble(pod, age, "lag"), 2), 4],
        "env_steps_per_second": round(steps_rate, 1),
        "updates_per_second": round(UPDATES_PER_SECOND + 0.4 * _wobble(pod, age, "updates"), 2),
        "mean_return": round(_return(pod, age), 2),
        "eval_return": round(_return(pod, age) + 2.0, 2) if age > 5 else None,
        "eval_progress": round(_progress(age), 3) if age > 5 else None,
        "actor_loss": round(-0.3 * _return(pod, age) / 10, 4),
        "critic_loss": round(0.8 + 0.1 * _wobble(pod, age, "loss"), 4),
        "device": "cuda:0 NVIDIA A100-SXM4-80GB",
        "gpu_percent": round(38 + 3 * _wobble(pod, age, "gpu")),
        "gpu_memory_bytes": 9 << 30,
        "gpu_reserved_bytes": 7 << 30,
    }


def _exchange(pod: PodView, age: float, peers: Sequence[str]) -> dict[str, object]:
    """Return the exchange values of a learner: segments of 64 transitions of 200 bytes."""
    rate = (STEPS_PER_SECOND + 60 * _wobble(pod, age, "steps")) / 64
    return {
        "workers": sum("-eval" not in name for name in peers),
        "replay": 1_000_000,
        "stale": 0,
        "inflight_transitions": 4_096,
        "evaluators": sum("-eval" in name for name in peers),
        "messages_in_per_second": round(rate, 1),
        "bytes_in_per_second": round(rate * 64 * 200),
        "messages_out_per_second": round(rate / 4, 1),
        "bytes_out_per_second": round(rate / 4 * 320),
        "listens": [f"tcp://{pod.run}-learner:5555", f"tcp://{pod.run}-learner:5556"],
        "peers": list(peers),
    }


def _record(kind: str, at: float, values: dict[str, object]) -> str:
    rest = json.dumps({"time": round(at, 3), **values}, separators=(",", ":"))
    return f'{METRIC_PREFIX}{kind}",{rest[1:]}'


def _return(pod: PodView, age: float) -> float:
    return 45.0 * (1.0 - math.exp(-age / 900.0)) - 4.0 + 2.0 * _wobble(pod, age, "return")


def _progress(age: float) -> float:
    return 1.2 * (1.0 - math.exp(-age / 1200.0))


def _wobble(pod: PodView, age: float, figure: str = "") -> float:
    """Return noise between -1 and 1 that depends only on the pod's name, the second and the figure."""
    # A checksum instead of hash(), which differs between processes and would change screenshots.
    return (crc32(f"{pod.name} {int(age)} {figure}".encode()) % 2001 - 1000) / 1000.0


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
