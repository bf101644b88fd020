"""Verbs that only read: nodes, slots, pods, runs, leaks, check."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from l2rtui.cli import json_output, table_output
from l2rtui.cli.session import Session
from l2rtui.config import state_dir
from l2rtui.domain.preflight import Finding, Severity, refusals
from l2rtui.domain.runstatus import NO_REPORTS, learning_state
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.errors import EXIT_DONE, EXIT_FAILED, EXIT_LEFT_BEHIND
from l2rtui.services.learning import learning_states


async def _look(session: Session) -> ClusterSnapshot:
    snapshot = await session.backend.snapshot()
    for problem in snapshot.problems:
        session.talk.say(f"warning: {problem}. See `l2rtui check`.")
    return snapshot


async def run_nodes(session: Session) -> int:
    """List the nodes."""
    snapshot = await _look(session)
    documents = [json_output.node_document(node, snapshot.ledger) for node in snapshot.nodes.values()]
    session.out.show_all(table_output.NODES, documents)
    return EXIT_DONE


async def run_slots(session: Session) -> int:
    """List the slots."""
    snapshot = await _look(session)
    slots = [(slot, snapshot.nodes[slot.id.node]) for slot in snapshot.ledger.slots.values()]
    session.out.show_all(table_output.SLOTS, [json_output.slot_document(*slot_and_node) for slot_and_node in slots])
    for problem in snapshot.ledger.problems:
        session.talk.say(f"Mismatch: {problem}.")
    return EXIT_DONE


async def run_pods(session: Session) -> int:
    """List the pods, those of a run together."""
    snapshot = await _look(session)
    pods = sorted(snapshot.pods.values(), key=lambda pod: (pod.run == "", pod.run))
    runs = dict.fromkeys(pod.run for pod in pods if pod.run)
    ordered = [*(pod for run in runs for pod in snapshot.pods_of(run)), *(pod for pod in pods if not pod.run)]
    session.out.show_all(table_output.PODS, [json_output.pod_document(pod) for pod in ordered])
    return EXIT_DONE


async def run_runs(session: Session) -> int:
    """List the runs."""
    snapshot = await _look(session)
    runs = sorted(snapshot.runs.values(), key=lambda run: (run.experiment, run.seed, run.name))
    now = time.time()
    # Names alone need no log: of a large cluster they must come at once.
    if session.out.form == "name":
        learning = {run.uid: learning_state(run, snapshot.pods_of(run.name), NO_REPORTS, now) for run in runs}
    else:
        learning = await learning_states(session.backend, snapshot, runs, now)
    documents = [json_output.run_document(run, snapshot, learning[run.uid]) for run in runs]
    session.out.show_all(table_output.RUNS, documents)
    return EXIT_DONE


async def run_leaks(session: Session) -> int:
    """List leftovers of runs that are gone; exit code 4 if there are any."""
    leaks = await session.backend.leaks()
    session.out.show_all(table_output.LEAKS, [json_output.leak_document(leak) for leak in leaks])
    if not leaks:
        session.talk.say("No leaks.")
    return EXIT_LEFT_BEHIND if leaks else EXIT_DONE


async def run_check(session: Session) -> int:
    """Print the findings about this setup; exit code 1 if something required does not work."""
    findings = [*await session.backend.doctor(), *_own_findings()]
    session.out.show_all(table_output.FINDINGS, [json_output.finding_document(finding) for finding in findings])
    return EXIT_FAILED if refusals(findings) else EXIT_DONE


def _own_findings() -> Iterable[Finding]:
    """Return findings that do not depend on the backend."""
    term = os.environ.get("TERM", "")
    if term in ("", "dumb"):
        yield Finding(Severity.WARNING, "terminal", f"TERM is {term!r}: the app cannot draw", "Set TERM.")
    else:
        yield Finding(Severity.OK, "terminal", f"TERM is {term}")
    path = state_dir()
    if any(part.exists() and not os.access(part, os.W_OK) for part in (path, path / "journal.jsonl")):
        yield Finding(Severity.WARNING, "journal", f"{path} cannot be written: changes are not recorded")
