"""describe, events and port-forward."""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import Any

from l2rtui.backends.base import Inspector
from l2rtui.cli.session import Session
from l2rtui.cli.targets import listed, one_pod
from l2rtui.domain.node import Node
from l2rtui.domain.quantity import counted, rfc3339, utc
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView
from l2rtui.domain.topology import topology, topology_lines
from l2rtui.errors import EXIT_DONE, BackendError, UsageError
from l2rtui.services.learning import run_learning
from l2rtui.services.port_forwards import PortForward, carry, open_forwards
from l2rtui.tables.column import Column, View
from l2rtui.tables.documents import learning_document, topology_document
from l2rtui.tables.resources import EVENTS

_FORWARDS = View(
    "pod",
    (
        Column("POD", "pod"),
        Column("FORWARD", "forward"),
        Column("BACKEND", "backend"),
        Column("SINCE", "since"),
        Column("PID", "pid", is_number=True),
    ),
)


def _inspector(session: Session, verb: str, instead: str) -> Inspector:
    if session.backend.inspector is None:
        raise BackendError(f"The {session.backend.name} backend has no {verb}.", instead)
    return session.backend.inspector


def _target(snapshot: ClusterSnapshot, name: str) -> PodView | RunView | Node:
    """Return the object of this name; a run has precedence over its pods, a pod over a node."""
    runs = snapshot.runs_matching(name)
    if len(runs) == 1:
        return runs[0]
    if runs:
        names = listed(run.name for run in runs)
        raise UsageError(f"{name} names {counted(len(runs), 'run')}: {names}.", "Name one of them.")
    if name in snapshot.nodes and not snapshot.select(name):
        return snapshot.nodes[name]
    return one_pod(snapshot, name)


def _mismatches(snapshot: ClusterSnapshot, target: PodView | RunView | Node) -> tuple[str, ...]:
    """Return a line for each mismatch of a pod, of the pods of a run, or on a node."""
    ledger = snapshot.ledger
    if isinstance(target, Node):
        sentences = ledger.nodes[target.name].problems
    else:
        pods = (target,) if isinstance(target, PodView) else snapshot.pods_of(target.name)
        sentences = tuple(sentence for pod in pods for sentence in ledger.mismatches.get(pod.uid, ()))
    return tuple(f"Mismatch: {sentence}." for sentence in dict.fromkeys(sentences))


async def run_describe(session: Session) -> int:
    """Print the description of one object."""
    inspector = _inspector(session, "descriptions", "See `l2rtui pods -o json`, and `l2rtui logs`.")
    snapshot = await session.backend.snapshot()
    target = _target(snapshot, session.args.target)
    lines = (*await inspector.describe(target), *_mismatches(snapshot, target))
    learning: dict[str, Any] = {}
    if isinstance(target, RunView):
        from l2rtui.services import artifacts  # whose decoders the other descriptions do not need

        now = time.time()
        own = (await run_learning(session.backend, snapshot, [target], now))[target.uid]
        learning = learning_document(own.state)
        since = f", since {utc(own.state.since)}" if own.state.since else ""
        lines = (*lines, f"Learning: {learning['learning']}{since}: {learning['learning_reason']}")
        if own.bound is not None:
            lines = (*lines, f"Bound by: {own.bound.sentence}")
            learning |= {"bound_by": own.bound.part, "bound_share": round(own.bound.share, 4)}
        if folder := await artifacts.tensorboard_folder(session.backend, target.name):
            lines = (*lines, f"TensorBoard: {folder}")
            learning["tensorboard"] = folder
        if view := topology(snapshot.pods_of(target.name), own.metrics, now):
            lines = (*lines, *topology_lines(view))
            learning["topology"] = topology_document(view)
    if session.out.form == "table":
        for line in lines:
            session.out.text(line)
    else:
        session.out.dump({"name": target.name, "lines": list(lines), **learning})
    return EXIT_DONE


async def run_events(session: Session) -> int:
    """Print the events of an object, or of all."""
    inspector = _inspector(session, "events", "`l2rtui logs` marks each restart with its exit code.")
    target = _target(await session.backend.snapshot(), session.args.target) if session.args.target else None
    events = await inspector.events(target)
    session.out.show_all(EVENTS, events)
    if not events:
        session.talk.say("No events are kept; a cluster forgets them after an hour or so.")
    return EXIT_DONE


async def run_port_forward(session: Session) -> int:
    """Forward connections until Ctrl-C; without a pod list the current forwards."""
    if not session.args.target:
        session.out.show_all(_FORWARDS, [_forward_document(forward) for forward in await open_forwards()])
        return EXIT_DONE
    if session.args.ports is None:
        raise UsageError("port-forward takes a pod and LOCAL:REMOTE.", "Such as 6006:6006; 0:6006 chooses a port.")
    session.require_change("port-forward")
    inspector = _inspector(
        session, "ports to forward", "Its pods listen on this machine: connect to them directly."
    )
    pod = one_pod(await session.backend.snapshot(), session.args.target)
    async with aclosing(carry(inspector, session.backend.name, pod, *session.args.ports)) as news:
        async for sentence in news:
            session.talk.say(sentence)
    return EXIT_DONE


def _forward_document(forward: PortForward) -> dict[str, Any]:
    return {
        "pod": forward.pod,
        "run": forward.run,
        "forward": forward.sentence,
        "backend": forward.backend,
        "since": rfc3339(forward.since),
        "pid": forward.pid,
    }
