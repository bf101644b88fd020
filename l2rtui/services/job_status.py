"""Where a run without a learner stands: steps, elastic nodes, parameter servers and evaluation, from their logs.

The records are lines of JSON on standard output (``runtime.contract``). They come from inside the run and are not
trusted: a field of another type than agreed reads as missing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final

from l2rtui.backends.base import Backend, LogQuery
from l2rtui.domain.snapshot import PodView
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import Role, RunSpec
from l2rtui.errors import L2RError, NotFoundError
from l2rtui.services import wrapping
from l2rtui.services.metrics import parse_record

_TAIL: Final = 400
"""Lines of each pod that are looked through."""
_AT_ONCE: Final = 8
_MOST_CLASSES: Final = 1000
_MOST_TEXT: Final = 200
_STATES: Final = ("pending", "waiting", "skipped", "done", "running", "failed")
"""States of a step; of several pods the last in this order counts."""


@dataclass(frozen=True, slots=True)
class StepState:
    """One step of a job.

    Attributes:
        state: ``pending`` (no process has said anything yet), ``waiting``, ``running``, ``done``, ``failed`` or
            ``skipped`` (done by an earlier launch).
        time: Of the record, seconds since the epoch; 0 for none.
    """

    name: str
    state: str = "pending"
    exit_code: int | None = None
    seconds: float | None = None
    detail: str = ""
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node of an elastic job; None where it has not said it."""

    pod: str
    state: str = ""
    rank: int | None = None
    world_size: int | None = None
    round: int | None = None
    epoch: int | None = None
    step: int | None = None
    loss: float | None = None
    accuracy: float | None = None
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class PeerState:
    """One parameter server, or one worker of them; None where it has not said it."""

    pod: str
    role: str
    index: int | None = None
    global_step: int | None = None
    local_step: int | None = None
    loss: float | None = None
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How good a trained model is: accuracy from 0 to 1, in all and by class."""

    accuracy: float
    samples: int = 0
    classes: tuple[tuple[str, float], ...] = ()
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class RunProgress:
    """Where a run stands."""

    run: str
    kind: str
    steps: tuple[StepState, ...] = ()
    nodes: tuple[NodeState, ...] = ()
    peers: tuple[PeerState, ...] = ()
    evaluation: Evaluation | None = None


@dataclass(slots=True)
class Reading:
    """What the lines of one pod have said so far."""

    pod: str
    step: StepState | None = None
    node: NodeState | None = None
    peer: PeerState | None = None
    evaluation: Evaluation | None = None

    def take(self, line: str) -> None:
        """Read one line."""
        record = parse_record(line)
        if record is None:
            return
        match record["l2r"]:
            case "step":
                self.step = _step(record) or self.step
            case "elastic":
                self.node = _node(self.node or NodeState(self.pod), record)
            case "ps":
                self.peer = _peer(self.pod, self.peer, record)
            case "evaluation":
                self.evaluation = _evaluation(record) or self.evaluation


async def standing(backend: Backend, run: str) -> RunProgress:
    """Read where a run stands now.

    Raises:
        NotFoundError: there is no such run.
    """
    snapshot = await backend.snapshot()
    if snapshot.run_named(run) is None:
        raise NotFoundError(f"There is no run {run}.", "See `l2rtui runs`.")
    spec = await backend.spec(run)
    limit = asyncio.Semaphore(_AT_ONCE)
    pods = [pod for pod in snapshot.pods_of(run) if pod.role is not Role.RENDEZVOUS]
    readings = await asyncio.gather(*(_read(backend, pod, limit) for pod in pods))
    return summary(spec, readings)


def summary(spec: RunSpec, readings: Sequence[Reading]) -> RunProgress:
    """Join what the pods of a run have said."""
    steps = tuple(_joined(name, readings) for name in step_names(spec))
    newest = max(filter(None, (one.evaluation for one in readings)), key=lambda one: one.time, default=None)
    return RunProgress(
        spec.name,
        str(spec.kind),
        steps,
        tuple(one.node for one in readings if one.node is not None),
        tuple(one.peer for one in readings if one.peer is not None),
        newest,
    )


def step_names(spec: RunSpec) -> tuple[str, ...]:
    """Names of the steps of a run in their order; empty for a run without steps."""
    found = (wrapping.read_step(one.command) for one in spec.sets)
    return tuple(told.name for told, _ in filter(None, found))


async def _read(backend: Backend, pod: PodView, limit: asyncio.Semaphore) -> Reading:
    reading = Reading(pod.name)
    if pod.phase is Phase.PENDING and not pod.restarts:
        return reading  # nothing has been said yet, and some servers answer late for such a pod
    async with limit:
        try:
            async with aclosing(backend.logs(pod, LogQuery(tail=_TAIL))) as lines:
                async for line in lines:
                    reading.take(line.text)
        except L2RError:
            return reading  # it is gone, or has no log: what others say counts
    return reading


def _joined(name: str, readings: Sequence[Reading]) -> StepState:
    said = [one.step for one in readings if one.step is not None and one.step.name == name]
    return max(said, key=lambda one: (_STATES.index(one.state), one.time), default=StepState(name))


def _step(record: Mapping[str, Any]) -> StepState | None:
    name, state = record.get("name"), record.get("state")
    if not isinstance(name, str) or state not in _STATES:
        return None
    return StepState(
        name,
        str(state),
        _whole(record.get("exit_code")),
        _number(record.get("seconds")),
        _text(record.get("detail")),
        _number(record.get("time")) or 0.0,
    )


def _node(before: NodeState, record: Mapping[str, Any]) -> NodeState:
    """What is new of a node: the agent tells its place, the program how the training goes."""
    whole = {name: _whole(record.get(name)) for name in ("rank", "world_size", "round", "epoch", "step")}
    numbers = {name: _number(record.get(name)) for name in ("loss", "accuracy")}
    new: dict[str, Any] = {name: value for name, value in {**whole, **numbers}.items() if value is not None}
    if new.get("round", before.round) != before.round:
        before = NodeState(before.pod)  # what it said in an earlier round holds no more
    state = _text(record.get("state")) or before.state
    return replace(before, state=state, time=_number(record.get("time")) or before.time, **new)


def _peer(pod: str, before: PeerState | None, record: Mapping[str, Any]) -> PeerState:
    new = {name: _whole(record.get(name)) for name in ("index", "global_step", "local_step")}
    old = before or PeerState(pod, _text(record.get("role")))
    said: dict[str, Any] = {name: value for name, value in new.items() if value is not None}
    loss = _number(record.get("loss"))
    return replace(
        old, loss=old.loss if loss is None else loss, time=_number(record.get("time")) or old.time, **said
    )


def _evaluation(record: Mapping[str, Any]) -> Evaluation | None:
    accuracy, classes = _number(record.get("accuracy")), record.get("classes")
    if accuracy is None:
        return None
    named = classes.items() if isinstance(classes, Mapping) else ()
    rows = [(_text(name), number) for name, value in named if (number := _number(value)) is not None]
    return Evaluation(
        accuracy,
        _whole(record.get("samples")) or 0,
        tuple(rows[:_MOST_CLASSES]),
        _number(record.get("time")) or 0.0,
    )


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    return float(value) if is_number and math.isfinite(value) else None


def _whole(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def _text(value: Any) -> str:
    return value[:_MOST_TEXT] if isinstance(value, str) else ""
