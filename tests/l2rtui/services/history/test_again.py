"""Exact relaunch: inputs that are no longer available are refused or warned of, with the reason."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from l2rtui.domain.history import HistoryEntry, HistoryRecord, LaunchFacts
from l2rtui.domain.preflight import Severity
from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec
from l2rtui.errors import RefusedError, UsageError
from l2rtui.services.history.again import exact_launch
from l2rtui.services.history.launch_facts import spec_text, versions_of
from l2rtui.services.history.source_state import source_state
from tests.tiers import starts_processes

SPEC = RunSpec(Kind.JOB, "r", "r-s3", (SetSpec("w", Role.JOB, ("true",)),), seed=3)
LOCAL, CLUSTER = SimpleNamespace(name="local"), SimpleNamespace(name="kubernetes")


@pytest.fixture
@starts_processes
def repository(tmp_path):
    def git(*words):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True, capture_output=True)

    (tmp_path / "train.py").write_text("rate = 1\n")
    git("init", "--quiet")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "first")
    return tmp_path


def record(folder, spec=SPEC, *, versions=(), backend="local", image=""):
    tree = source_state(folder)
    entry = HistoryEntry("r-s3", "a" * 32, revision=tree.revision, backend=backend, image=image)
    return HistoryRecord(entry, LaunchFacts(spec_text(spec), versions=versions, source=tree))


def grave(launch):
    return [note.sentence for note in launch.notes if note.severity is Severity.REFUSAL]


def mild(launch):
    return [note.sentence for note in launch.notes if note.severity is Severity.WARNING]


def test_the_same_tree_and_versions_are_an_exact_launch(repository):
    launch = exact_launch(LOCAL, record(repository, versions=versions_of(LOCAL)))
    assert launch.spec == SPEC
    assert [note.severity for note in launch.notes] == [Severity.OK]


def test_other_changes_or_another_commit_are_refused_or_accepted(repository):
    before = record(repository)
    (repository / "train.py").write_text("rate = 2\n")
    assert "other changes" in grave(exact_launch(LOCAL, before))[0]
    subprocess.run(
        ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qam", "second"],
        check=True,
    )
    assert f"git checkout {before.entry.revision[:12]}" in grave(exact_launch(LOCAL, before))[0]
    inexact = exact_launch(LOCAL, before, is_inexact=True, name="again")
    assert (grave(inexact), len(mild(inexact)), inexact.spec.name) == ([], 1, "again")


def test_what_is_only_unknown_is_a_warning(repository, tmp_path_factory):
    (repository / "notes").write_text("in no commit")
    launch = exact_launch(LOCAL, record(repository, versions=(("torch", "0.1"),), backend="docker"))
    assert grave(launch) == []
    assert [sentence.split(":")[0][:20] for sentence in mild(launch)] == [
        "it ran on docker, an",
        "1 file of its source",
        "it ran with torch 0.",
    ]
    outside = record(tmp_path_factory.mktemp("plain"))
    bare = replace(outside, launch=replace(outside.launch, source=type(outside.launch.source)()))
    assert "no source tree is recorded" in mild(exact_launch(LOCAL, bare))[0]


def test_an_image_counts_by_its_digest_and_the_tree_does_not(repository):
    pinned = record(repository, backend="kubernetes", image="lab/rl@sha256:ab")
    (repository / "train.py").write_text("rate = 2\n")
    assert grave(exact_launch(CLUSTER, pinned)) == []
    for image in ("lab/rl:latest", ""):
        tagged = record(repository, backend="kubernetes", image=image)
        assert "digest of its image is not recorded" in grave(exact_launch(CLUSTER, tagged))[0]


def test_a_record_without_a_usable_spec_is_refused(repository):
    secret = replace(SPEC, env=(("API_TOKEN", "abcDEF123456"),))
    with pytest.raises(RefusedError, match=r"does not hold env\.0\.1"):
        exact_launch(LOCAL, record(repository, secret))
    for text in ("{}", '{"kind": "a kind of tomorrow"}'):
        newer = replace(record(repository), launch=LaunchFacts(text))
        with pytest.raises(RefusedError, match="no spec that this version reads"):
            exact_launch(LOCAL, newer)
    with pytest.raises(UsageError, match="is not a name"):
        exact_launch(LOCAL, record(repository), name="Bad_Name")
