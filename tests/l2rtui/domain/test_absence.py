"""Absence: events that count as happened since, their order, and events that do not count."""

from __future__ import annotations

from l2rtui.domain.history import Departure, Happening, HistoryEntry, RunOutcome, happenings, summary
from l2rtui.domain.snapshot import PodView
from l2rtui.domain.status import KubeEvent, Level

LEFT = Departure(1000.0, frozenset({"old"}))


def entry(run, started, ended=None, state=RunOutcome.RUNNING, **fields):
    return HistoryEntry(run, run, "e", 0, state, started, ended, **fields)


def words(items):
    return [(item.word, item.name) for item in items]


def test_what_started_or_ended_since_is_named_and_urgent_things_come_first():
    items = happenings(
        LEFT,
        [
            entry("before", 10.0, 900.0, RunOutcome.DONE),
            entry("runs-on", 10.0),
            entry("new", 1500.0),
            entry("done-early", 10.0, 1100.0, RunOutcome.DONE, env_steps=12_345.0, final_return=3.25),
            entry("done-late", 1050.0, 1200.0, RunOutcome.DONE),
            entry("broke", 10.0, 1300.0, RunOutcome.FAILED),
            entry("gone", 10.0, 1250.0, RunOutcome.LOST),
        ],
    )
    assert words(items) == [
        *(("failed", "broke"), ("lost", "gone"), ("done", "done-late"), ("done", "done-early")),
        ("started", "new"),
    ]
    assert items[3].sentence == "return 3.25, 12,345 env steps, after 18m"
    assert items[0].level is Level.BAD
    assert summary(items) == "1 failed, 1 lost, 2 done, 1 started"
    assert summary(()) == ""


def test_an_end_at_the_very_moment_of_leaving_was_seen():
    assert happenings(LEFT, [entry("r", 1.0, 1000.0, RunOutcome.DONE), entry("s", 1000.0)]) == ()


def test_an_entry_with_an_end_that_is_said_to_run_is_no_end():
    assert happenings(LEFT, [entry("r", 1.0, 1100.0)]) == ()


def test_pods_that_were_put_out_since_are_named():
    pods = [
        PodView("old", "r-w-0", run="r", reason="Evicted"),
        PodView("new", "r-w-1", run="r", reason="Evicted", message="its node had too little left"),
        PodView("ok", "r-w-2", run="r", reason="Error"),
    ]
    assert happenings(LEFT, [], pods) == (Happening("evicted", "r-w-1", None, "its node had too little left"),)


def test_events_tell_of_pods_that_are_gone_and_of_nobody_elses():
    pods = [PodView("new", "r-w-1", run="r", reason="Preempted")]
    events = [
        KubeEvent(1200.0, "Warning", "Preempted", "Pod r-w-0", "second"),
        KubeEvent(1100.0, "Warning", "Evicted", "Pod r-w-0", "first"),
        KubeEvent(1100.0, "Warning", "Preempted", "Pod r-w-1", "listed already"),
        KubeEvent(900.0, "Warning", "Preempted", "Pod r-w-2", "before"),
        KubeEvent(1100.0, "Warning", "Preempted", "Pod rx-w-0", "somebody else's"),
        KubeEvent(1100.0, "Warning", "Preempted", "Node r-w-3", "no pod"),
        KubeEvent(1100.0, "Normal", "Started", "Pod r-w-4", "no eviction"),
    ]
    items = happenings(LEFT, [entry("r", 10.0)], pods, events)
    assert [(item.name, item.time, item.sentence) for item in items] == [
        ("r-w-0", 1200.0, "second"),
        ("r-w-1", None, ""),
    ]
