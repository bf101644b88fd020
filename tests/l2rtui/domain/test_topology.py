"""Topology of a run: connections are shown only if a recent record of the learner names its peers."""

from __future__ import annotations

import pytest

from l2rtui.domain.metrics import ExchangeFigures, RunMetrics
from l2rtui.domain.snapshot import PodView
from l2rtui.domain.status import Phase
from l2rtui.domain.topology import topology, topology_lines
from l2rtui.domain.workload import Role

NOW = 1e9
LISTENS = ("tcp://r-learner:5555", "tcp://r-learner:5556")
FIGURES = ExchangeFigures(12.0, 2048.0, 3.0, 512.0, 900, 64, 2, 1, LISTENS, ("r-eval-0", "r-w-0"), is_recorded=True)


def pod(name: str, role: Role, *, ready: bool = True) -> PodView:
    phase = Phase.RUNNING if ready else Phase.PENDING
    return PodView(name, f"r-{name}", node="n1", run="r", role=role, phase=phase, ready=ready, ip="10.0.0.7")


PODS = (
    pod("learner-0", Role.LEARNER),
    pod("w-0", Role.WORKER),
    pod("w-1", Role.WORKER, ready=False),
    pod("eval-0", Role.EVALUATOR),
    pod("x-0", Role.JOB),
)


def metrics(figures: ExchangeFigures = FIGURES, age: float = 1.0) -> RunMetrics:
    return RunMetrics("r", time=NOW - age, interval_seconds=2.0, exchange=figures)


def test_workers_and_evaluators_are_connected_or_not_by_the_learners_own_word():
    view = topology(PODS, metrics(), NOW)
    assert view is not None
    assert [(link.pod, link.word) for link in view.links] == [
        ("r-w-0", "connected"),
        ("r-w-1", "not connected"),
        ("r-eval-0", "connected"),
    ]
    assert (view.learner, view.listens, view.time, view.exchange) == ("r-learner-0", LISTENS, NOW - 1.0, FIGURES)
    lines = topology_lines(view)
    assert (
        lines[0] == "Topology: r-learner-0 (n1 10.0.0.7) listens at tcp://r-learner:5555 and tcp://r-learner:5556"
    )
    assert lines[1].split() == ["r-w-0", "worker", "connected", "n1", "10.0.0.7"]
    assert "not connected" in lines[2]
    assert lines[2].endswith(PODS[2].status.sentence), "a pod that does not run says why"
    assert lines[-1] == (
        "Exchange: in 12 messages/s 2 KiB/s, out 3 messages/s 512 B/s, 900 in store, 64 in flight, "
        "2 segments dropped as stale"
    )


@pytest.mark.parametrize(
    ("newest", "pods"),
    [
        (None, PODS),
        (metrics(age=60.0), PODS),
        (metrics(ExchangeFigures()), PODS),
        (metrics(), (pod("learner-0", Role.LEARNER, ready=False), *PODS[1:])),
    ],
    ids=["no record", "old record", "older runtime", "learner down"],
)
def test_without_a_fresh_record_nobody_knows_who_is_connected(newest, pods):
    view = topology(pods, newest, NOW)
    assert view is not None
    assert ({link.word for link in view.links}, view.exchange) == ({"unknown"}, None)
    assert not any(line.startswith("Exchange") for line in topology_lines(view))


def test_a_peer_that_is_no_pod_of_the_run_is_shown_and_a_run_without_a_learner_has_no_topology():
    guest = ExchangeFigures(peers=("laptop",), is_recorded=True)
    view = topology(PODS[:1], metrics(guest), NOW)
    assert view is not None
    assert [(link.pod, link.role, link.is_connected) for link in view.links] == [("laptop", None, True)]
    assert topology_lines(view)[:2] == (
        "Topology: r-learner-0 (n1 10.0.0.7) has not said where it listens",
        "  laptop  no pod of this run  connected",
    )
    assert topology(PODS[1:], metrics(), NOW) is None


def test_a_learner_without_peers_has_a_line_that_says_so():
    view = topology((PodView("l", "l", run="r", role=Role.LEARNER),), None, NOW)
    assert view is not None
    assert topology_lines(view) == ("Topology: l has not said where it listens", "  no peers")
