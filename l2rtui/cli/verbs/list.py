"""Verbs that only look: nodes, slots, pods, runs, leaks, check."""

from __future__ import annotations

import os
from collections.abc import Iterable

from l2rtui.cli import documents, views
from l2rtui.cli.session import Session
from l2rtui.config import state_dir
from l2rtui.domain.preflight import Finding, Weight, refusals
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.errors import EXIT_DONE, EXIT_FAILED, EXIT_LEFT_BEHIND


async def _look(session: Session) -> ClusterSnapshot:
    snapshot = await session.backend.snapshot()
    for problem in snapshot.problems:
        session.talk.say(f"warning: {problem}. See `l2rtui check`.")
    return snapshot


async def run_nodes(session: Session) -> int:
    """List the nodes."""
    snapshot = await _look(session)
    found = [documents.node_document(node, snapshot.ledger) for node in snapshot.nodes.values()]
    session.out.show_all(views.NODES, found)
    return EXIT_DONE


async def run_slots(session: Session) -> int:
    """List the slots."""
    snapshot = await _look(session)
    slots = snapshot.ledger.slots.values()
    session.out.show_all(views.SLOTS, [documents.slot_document(one, snapshot.nodes[one.id.node]) for one in slots])
    for problem in snapshot.ledger.problems:
        session.talk.say(f"Mismatch: {problem}.")
    return EXIT_DONE


async def run_pods(session: Session) -> int:
    """List the pods, those of a run together."""
    snapshot = await _look(session)
    pods = sorted(snapshot.pods.values(), key=lambda pod: (pod.run == "", pod.run))
    runs = dict.fromkeys(pod.run for pod in pods if pod.run)
    ordered = [*(pod for run in runs for pod in snapshot.pods_of(run)), *(pod for pod in pods if not pod.run)]
    session.out.show_all(views.PODS, [documents.pod_document(pod) for pod in ordered])
    return EXIT_DONE


async def run_runs(session: Session) -> int:
    """List the runs."""
    snapshot = await _look(session)
    runs = sorted(snapshot.runs.values(), key=lambda run: (run.experiment, run.seed, run.name))
    session.out.show_all(views.RUNS, [documents.run_document(run, snapshot) for run in runs])
    return EXIT_DONE


async def run_leaks(session: Session) -> int:
    """List what runs that are gone have left behind; 4 when there is anything."""
    found = await session.backend.leaks()
    session.out.show_all(views.LEAKS, [documents.leak_document(leak) for leak in found])
    if not found:
        session.talk.say("No leaks.")
    return EXIT_LEFT_BEHIND if found else EXIT_DONE


async def run_check(session: Session) -> int:
    """Say what works here; 1 when something that is needed does not."""
    found = [*await session.backend.doctor(), *_own_findings()]
    session.out.show_all(views.FINDINGS, [documents.finding_document(finding) for finding in found])
    return EXIT_FAILED if refusals(found) else EXIT_DONE


def _own_findings() -> Iterable[Finding]:
    """What holds whatever the backend is."""
    term = os.environ.get("TERM", "")
    if term in ("", "dumb"):
        yield Finding(Weight.WARNING, "terminal", f"TERM is {term!r}: the app cannot draw", "Set TERM.")
    else:
        yield Finding(Weight.OK, "terminal", f"TERM is {term}")
    path = state_dir()
    if any(part.exists() and not os.access(part, os.W_OK) for part in (path, path / "journal.jsonl")):
        yield Finding(Weight.WARNING, "journal", f"{path} cannot be written: changes are not recorded")
