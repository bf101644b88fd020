"""describe, events and port-forward: what a cluster knows of its objects, and a way to their ports."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from l2rtui.backends.base import Inspector, KubeEvent
from l2rtui.cli import documents
from l2rtui.cli.choose import counted, listed, pods_named
from l2rtui.cli.output import Column, View
from l2rtui.cli.session import Session
from l2rtui.domain.node import Node
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView
from l2rtui.domain.status import Level
from l2rtui.errors import EXIT_DONE, BackendError, UsageError


def _column(header: str, key: str, *, is_wide: bool = False) -> Column:
    return Column(header, lambda document: document[key], is_wide)


_EVENTS = View(
    lambda document: str(document["object"]),
    (
        _column("TIME", "time"),
        Column(
            "LEVEL",
            lambda document: document["level"],
            level=lambda document: Level.WARN if document["level"] == "Warning" else None,
        ),
        _column("REASON", "reason"),
        _column("OBJECT", "object"),
        _column("NAMESPACE", "namespace", is_wide=True),
        Column("COUNT", lambda document: document["count"], is_number=True),
        _column("MESSAGE", "message"),
    ),
)


def _inspector(session: Session, verb: str, instead: str) -> Inspector:
    if not isinstance(session.backend, Inspector):
        raise BackendError(f"The {session.backend.name} backend has no {verb}.", instead)
    return session.backend


def _target(snapshot: ClusterSnapshot, name: str) -> PodView | RunView | Node:
    """The one object of this name; a run before its pods, a pod before a node."""
    runs = snapshot.runs_matching(name)
    if len(runs) == 1:
        return runs[0]
    if name in snapshot.nodes and not snapshot.select(name):
        return snapshot.nodes[name]
    pods = pods_named(snapshot, [name])
    if len(pods) != 1:
        raise UsageError(
            f"{name} names {counted(len(pods), 'pod')}: {listed(pod.name for pod in pods)}.", "Name one of them."
        )
    return pods[0]


async def run_describe(session: Session) -> int:
    """Print all that is known of one object."""
    inspector = _inspector(session, "descriptions", "See `l2rtui pods -o json`, and `l2rtui logs`.")
    target = _target(await session.backend.snapshot(), session.args.target)
    lines = await inspector.describe(target)
    if session.out.form == "table":
        for line in lines:
            session.out.text(line)
    else:
        session.out.dump({"name": target.name, "lines": list(lines)})
    return EXIT_DONE


async def run_events(session: Session) -> int:
    """Print what has happened to an object, or to all."""
    inspector = _inspector(session, "events", "`l2rtui logs` marks each restart with its exit code.")
    target = _target(await session.backend.snapshot(), session.args.target) if session.args.target else None
    found = await inspector.events(target)
    session.out.show_all(_EVENTS, [_event_document(one) for one in found])
    if not found:
        session.talk.say("No events are kept; a cluster forgets them after an hour or so.")
    return EXIT_DONE


async def run_port_forward(session: Session) -> int:
    """Carry connections until Ctrl-C."""
    session.require_change("port-forward")
    inspector = _inspector(
        session, "ports to forward", "Its pods listen on this machine: connect to them directly."
    )
    pods = pods_named(await session.backend.snapshot(), [session.args.target])
    if len(pods) != 1:
        raise UsageError(
            f"{session.args.target} names {counted(len(pods), 'pod')}: {listed(pod.name for pod in pods)}.",
            "Name one of them.",
        )
    local, remote = session.args.ports
    async with aclosing(inspector.forward(pods[0], local, remote)) as news:
        async for sentence in news:
            session.talk.say(sentence)
    return EXIT_DONE


def _event_document(one: KubeEvent) -> dict[str, Any]:
    return {
        "time": documents.when(one.time),
        "level": one.level,
        "reason": one.reason,
        "object": one.object,
        "namespace": one.namespace,
        "message": one.message,
        "count": one.count,
    }
