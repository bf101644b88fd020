"""Progress of a run without a learner: steps, elastic nodes, parameter servers, evaluation; read from logs.

``runtime.base.metrics`` parses the lines; a field of a wrong type counts as missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from l2rtui.backends.base import Backend
from l2rtui.domain.log import LogQuery
from l2rtui.domain.snapshot import PodView
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import Role, RunSpec
from l2rtui.errors import L2RError, NotFoundError
from l2rtui.services import runtime_commands
from runtime.base.metrics import integer, number, parse_record, text

_TAIL: Final = 400
"""Lines of each pod that are read."""
_AT_ONCE: Final = 8
_MAX_CLASSES: Final = 1000
_STATES: Final = ("pending", "waiting", "skipped", "done", "running", "failed")
"""States of a step in rising precedence, for when its pods differ."""


class StepState(Struct, frozen=True):
    """One step of a job.

    Attributes:
        state: ``pending`` (no record yet), ``waiting``, ``running``, ``done``, ``failed`` or
            ``skipped`` (done by an earlier launch).
        time: Of the record, seconds since the epoch; 0 for none.
    """

    name: str
    state: str = "pending"
    exit_code: int | None = None
    seconds: float | None = None
    detail: str = ""
    time: float = 0.0


class NodeState(Struct, frozen=True):
    """One node of an elastic job; None for values not yet in its records.

    Attributes:
        resumed_step: Step at which it started in this round; 0 if no node had state.
        resumed_from: Node that provided the state; None if no node had any.
    """

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
    resumed_step: int | None = None
    resumed_from: str | None = None


class PsProcessState(Struct, frozen=True):
    """One parameter server or worker; None for values not yet in its records."""

    pod: str
    role: str
    index: int | None = None
    global_step: int | None = None
    local_step: int | None = None
    loss: float | None = None
    time: float = 0.0


class Evaluation(Struct, frozen=True):
    """Accuracy of a trained model from 0 to 1, in total and by class."""

    accuracy: float
    samples: int = 0
    classes: tuple[tuple[str, float], ...] = ()
    time: float = 0.0


class RunProgress(Struct, frozen=True):
    """Progress of a run."""

    run: str
    kind: str
    steps: tuple[StepState, ...] = ()
    nodes: tuple[NodeState, ...] = ()
    peers: tuple[PsProcessState, ...] = ()
    evaluation: Evaluation | None = None


@dataclass(slots=True)
class PodReading:
    """State of one pod, updated line by line from its log."""

    pod: str
    step: StepState | None = None
    node: NodeState | None = None
    peer: PsProcessState | None = None
    evaluation: Evaluation | None = None

    def read_line(self, line: str) -> None:
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
    """Return the progress of a run.

    Raises:
        NotFoundError: the run does not exist.
    """
    snapshot = await backend.snapshot()
    if snapshot.run_named(run) is None:
        raise NotFoundError(f"There is no run {run}.", "See `l2rtui runs`.")
    spec = await backend.spec(run)
    # Hundreds of parallel logs would exhaust the API server's fairness queue for all users.
    limit = asyncio.Semaphore(_AT_ONCE)
    pods = [pod for pod in snapshot.pods_of(run) if pod.role is not Role.RENDEZVOUS]
    readings = await asyncio.gather(*(_read(backend, pod, limit) for pod in pods))
    return summary(spec, readings)


def summary(spec: RunSpec, readings: Sequence[PodReading]) -> RunProgress:
    """Merge the states of a run's pods."""
    steps = tuple(_latest_step_state(name, readings) for name in step_names(spec))
    nodes = tuple(filter(None, (reading.node for reading in readings)))
    peers = tuple(filter(None, (reading.peer for reading in readings)))
    evaluations = filter(None, (reading.evaluation for reading in readings))
    newest = max(evaluations, key=lambda evaluation: evaluation.time, default=None)
    return RunProgress(spec.name, str(spec.kind), steps, nodes, peers, newest)


def step_names(spec: RunSpec) -> tuple[str, ...]:
    """Return the names of a run's steps in order; empty for a run without steps."""
    steps = (runtime_commands.read_step(set_spec.command) for set_spec in spec.sets)
    return tuple(step.name for step, _ in filter(None, steps))


async def _read(backend: Backend, pod: PodView, limit: asyncio.Semaphore) -> PodReading:
    reading = PodReading(pod.name)
    if pod.phase is Phase.PENDING and not pod.restarts:
        return reading  # it has no log yet, and some API servers answer slowly for these pods
    async with limit:
        try:
            async with aclosing(backend.logs(pod, LogQuery(tail=_TAIL))) as lines:
                async for line in lines:
                    reading.read_line(line.text)
        except L2RError:
            return reading  # it was deleted or has no log: the other pods count
    return reading


def _latest_step_state(name: str, readings: Sequence[PodReading]) -> StepState:
    states = [item.step for item in readings if item.step is not None and item.step.name == name]
    return max(states, key=lambda item: (_STATES.index(item.state), item.time), default=StepState(name))


def _step(record: Mapping[str, Any]) -> StepState | None:
    name, state = record.get("name"), record.get("state")
    if not isinstance(name, str) or state not in _STATES:
        return None
    return StepState(
        name,
        str(state),
        integer(record.get("exit_code")),
        number(record.get("seconds")),
        text(record.get("detail")),
        number(record.get("time")) or 0.0,
    )


def _node(before: NodeState, record: Mapping[str, Any]) -> NodeState:
    """Merge a record into a node: the agent reports rank and round, the program its training."""
    new = _present(record, ("rank", "world_size", "round", "epoch", "step", "resumed_step"), ("loss", "accuracy"))
    # A new round renumbers ranks and may start from an older step.
    if new.get("round", before.round) != before.round:
        before = NodeState(before.pod)  # ranks and steps of an earlier round are no longer valid
    state = text(record.get("state")) or before.state
    origin = text(record.get("resumed_from")) or before.resumed_from
    return replace(before, state=state, time=number(record.get("time")) or before.time, resumed_from=origin, **new)


def _peer(pod: str, before: PsProcessState | None, record: Mapping[str, Any]) -> PsProcessState:
    old = before or PsProcessState(pod, text(record.get("role")))
    new = _present(record, ("index", "global_step", "local_step"), ("loss",))
    return replace(old, time=number(record.get("time")) or old.time, **new)


def _present(record: Mapping[str, Any], integers: Sequence[str], numbers: Sequence[str]) -> dict[str, Any]:
    """Return the fields of these names that the record has."""
    fields: dict[str, float | None] = {name: integer(record.get(name)) for name in integers}
    fields |= {name: number(record.get(name)) for name in numbers}
    return {name: value for name, value in fields.items() if value is not None}


def _evaluation(record: Mapping[str, Any]) -> Evaluation | None:
    accuracy, classes = number(record.get("accuracy")), record.get("classes")
    if accuracy is None:
        return None
    # Bounded below: a record with a million classes is one line of a hostile log.
    named = classes.items() if isinstance(classes, Mapping) else ()
    rows = [(text(name), share) for name, value in named if (share := number(value)) is not None]
    return Evaluation(
        accuracy, integer(record.get("samples")) or 0, tuple(rows[:_MAX_CLASSES]), number(record.get("time")) or 0.0
    )
