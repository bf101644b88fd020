"""Records of the history: knowledge about a source tree, and two reports of one end."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from l2rtui.domain.history import (
    Difference,
    Ending,
    HistoryEntry,
    HistoryRecord,
    LaunchFacts,
    RunOutcome,
    SourceState,
    differences,
    merged_ending,
    patch_difference,
    unified,
)


@pytest.mark.parametrize(
    ("tree", "is_dirty"),
    [
        (SourceState(), None),
        (SourceState(diff="no commit to compare with"), None),
        (SourceState("/repo", "abc"), False),
        (SourceState("/repo", "abc", diff="-a\n+b"), True),
        (SourceState("/repo", "abc", untracked=("new.py",)), True),
    ],
)
def test_a_tree_is_dirty_only_where_there_is_a_commit_to_compare_with(tree, is_dirty):
    assert tree.is_dirty is is_dirty


def test_the_first_report_of_an_end_stands_and_the_second_adds_what_it_lacks():
    done = Ending(RunOutcome.DONE, 10.0, env_steps=500.0, best_return=0.0, logs=(("p", ("bye",)),))
    removed = Ending(RunOutcome.DESTROYED, 20.0, 400.0, -3.0, receipt="nothing left", checkpoints="/runs/r")

    merged = merged_ending(done, removed)

    assert (merged.state, merged.ended, merged.env_steps, merged.logs) == (RunOutcome.DONE, 10.0, 500.0, done.logs)
    assert (merged.receipt, merged.checkpoints) == ("nothing left", "/runs/r")
    assert merged.best_return == 0.0  # a value, although it is falsy
    assert merged_ending(None, removed) == removed


def test_after_a_destroy_checkpoints_are_where_it_has_moved_them():
    done = Ending(RunOutcome.DONE, 10.0, checkpoints="/runs/r/data")
    removed = Ending(RunOutcome.DESTROYED, 20.0, receipt="nothing left", checkpoints="/results/r")
    assert merged_ending(done, removed).checkpoints == "/results/r"
    assert merged_ending(done, replace(removed, checkpoints="")).checkpoints == "/runs/r/data"


def test_who_saw_the_end_is_right_over_who_missed_it():
    lost = Ending(RunOutcome.LOST, 5.0, note="gone")
    merged = merged_ending(lost, Ending(RunOutcome.FAILED, 9.0, env_steps=7.0))
    assert (merged.state, merged.ended, merged.env_steps, merged.note) == (RunOutcome.FAILED, 9.0, 7.0, "gone")


def record(number=1, *, diff="", versions=(("python", "3.11"),), **fields):
    entry = HistoryEntry(f"r-s{number}", f"{number:032x}", "r", number, started=0.0, **fields)
    tree = SourceState("/repo", "c" * 40, "main", diff)
    return HistoryRecord(entry, LaunchFacts(versions=versions, source=tree))


def test_records_of_the_same_spec_code_and_outcome_do_not_differ():
    spec = {"name": "r", "workers": [{"name": "w", "replicas": 2}]}
    assert differences(record(1), record(2), spec, spec) == ()
    assert patch_difference(record(1), record(2)) == ()


def test_fields_that_differ_are_named_by_their_path():
    first = {
        "train": {"lr": 0.1, "gamma": 0.9},
        "workers": [{"name": "w", "replicas": 2}],
        "seed": 1,
        "layers": [64],
    }
    second = {
        "train": {"lr": 0.2, "gamma": 0.9},
        "workers": [{"name": "w", "replicas": 3}],
        "seed": 1,
        "layers": [],
    }
    rows = differences(
        record(1, ended=10.0, best_return=1.0),
        record(2, diff="-a\n+b\n", versions=(("python", "3.12"),), ended=10.0, best_return=2.0, image="i"),
        first,
        second,
    )
    assert [(row.part, row.field, row.first, row.second) for row in rows] == [
        ("spec", "train.lr", 0.1, 0.2),
        ("spec", "workers.w.replicas", 2, 3),
        ("spec", "layers", [64], []),
        ("code", "image", None, "i"),
        ("code", "changes", "none", "2 changed lines"),
        ("versions", "python", "3.11", "3.12"),
        ("outcome", "best_return", 1.0, 2.0),
    ]


def test_an_outcome_reads_in_words_and_a_field_of_a_spec_as_in_its_file():
    rows = (
        Difference("spec", "train.batch_size", 256, 1024),
        Difference("outcome", "env_steps", 266240.0, 1234.5),
        Difference("outcome", "state", "done", "failed"),
        Difference("outcome", "seconds", 3725, None),
    )
    assert list(unified(rows, (), "a", "b"))[2:] == [
        "@@ spec @@",
        "-train.batch_size: 256",
        "+train.batch_size: 1024",
        "@@ outcome @@",
        "-env steps: 266,240",
        "+env steps: 1,234.5",
        "-state: done",
        "+state: failed",
        "-seconds: 3,725",
    ]


def test_differences_read_as_a_unified_diff():
    first, second = record(1, diff="-a\n+b\n"), record(2, diff="-a\n+c\n", image="i")
    rows, patch = differences(first, second, {}, {"seed": 2}), patch_difference(first, second)
    lines = list(unified(rows, patch, "one", "two"))
    assert lines[:6] == ["--- one", "+++ two", "@@ spec @@", "+seed: 2", "@@ code @@", "+image: i"]
    assert lines[6] == "@@ changes of the source tree @@"
    assert "++c" in lines
    assert list(unified(rows[:1], (), "one", "two"))[-1] == "+seed: 2"
    gone = [Difference("spec", "seed", 1, None), Difference("spec", "name", "r", None)]
    assert list(unified(gone, (), "a", "b"))[2:] == ["@@ spec @@", "-seed: 1", "-name: r"]


def test_changes_that_are_too_long_are_counted():
    (line,) = patch_difference(record(1, diff="+a\n" * 5_000), record(2, diff="+b\n" * 9_000))
    assert line == "The changes are too long to compare here: 5,000 and 9,000 lines."


def test_the_place_of_a_run_is_named_as_far_as_it_is_known():
    entry = HistoryEntry("r", "1" * 32)
    assert entry.place == ""
    assert replace(entry, backend="local").place == "local"
    assert replace(entry, backend="kubernetes", context="lab", namespace="ml").place == "kubernetes/lab/ml"
