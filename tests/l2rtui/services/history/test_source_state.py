"""Source trees as seen by git: commit, changes, limits, secrets, and folders without a repository."""

from __future__ import annotations

import subprocess

import pytest

from l2rtui.services.history import source_state as module
from l2rtui.services.history.source_state import source_state
from tests.l2rtui.services.history.conftest import git

TOKEN = "abcDEF123456"
BY = ("-c", "user.name=a", "-c", "user.email=a@b")


def test_a_clean_tree_is_its_commit(repository):
    state = source_state(repository / "specs")
    head = subprocess.run(
        ["git", "-C", str(repository), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    assert (state.root, state.revision, state.branch) == (str(repository), head.stdout.strip(), "trunk")
    assert state.is_dirty is False
    assert state.problem == ""


def test_changes_of_the_whole_tree_are_recorded_and_secrets_hidden(repository):
    (repository / "train.py").write_text(f"rate = 2\nAWS_SECRET_ACCESS_KEY = '{TOKEN}'\n")
    (repository / "specs" / "new.yaml").write_text(f"token: {TOKEN}")
    state = source_state(repository / "specs")
    assert state.is_dirty
    assert "-rate = 1\n+rate = 2\n" in state.diff
    assert TOKEN not in state.diff
    assert state.untracked == ("specs/new.yaml",)


@pytest.mark.parametrize("place", ["the tree", "a submodule", "an included file"])
def test_no_program_that_the_tree_names_is_run(repository, tmp_path, place):
    """Not even in a tree that was downloaded with its .git."""
    ran, tree = tmp_path / "ran", repository
    if place == "a submodule":
        tree = repository / "inner"
        tree.mkdir()
        git(tree, "init", "-q")
        (tree / "data.txt").write_text("one\n")
        git(tree, "add", ".")
        git(tree, *BY, "commit", "-qm", "inner")
        git(repository, "add", "inner")
    (tree / ".gitattributes").write_text("*.txt filter=evil diff=evil\n")
    (tree / "data.txt").write_text("one\n")
    git(tree, "add", ".")
    git(repository, *BY, "commit", "-qm", "a filter")
    program = f"sh -c 'touch {ran}; cat'"
    config = tmp_path / "more.config" if place == "an included file" else tree / ".git" / "config"
    for name in ("filter.evil.clean", "filter.evil.process", "diff.evil.textconv", "core.fsmonitor"):
        git(tree, "config", "--file", str(config), name, program)
    git(tree, "config", "--file", str(config), "filter.evil.required", "true")
    if place == "an included file":
        git(tree, "config", "include.path", str(config))
    (tree / "data.txt").write_text("two\n")
    state = source_state(repository)
    assert not ran.exists()
    assert ("+two" in state.diff) is (place != "a submodule")


def test_a_long_diff_is_cut_between_lines_and_says_so(repository, monkeypatch):
    monkeypatch.setattr(module, "MAX_DIFF_BYTES", 10_000)
    monkeypatch.setattr(module, "MAX_UNTRACKED", 2)
    (repository / "train.py").write_text("".join(f"line {number}\n" for number in range(5_000)))
    for number in range(5):
        (repository / f"new{number}").touch()
    state = source_state(repository)
    assert 9_000 < len(state.diff) <= 10_000
    assert state.diff.endswith("\n")
    assert "cut off" in state.problem
    assert "3 more untracked files" in state.problem


@pytest.mark.parametrize("has_git", [True, False])
@pytest.mark.process
def test_a_folder_outside_of_any_repository_has_no_revision(tmp_path, monkeypatch, has_git):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    if not has_git:
        monkeypatch.setenv("PATH", str(tmp_path))
    state = source_state(tmp_path)
    assert (state.revision, state.is_dirty) == ("", None)
    assert state.problem == ("" if has_git else "git is not installed here")


@pytest.mark.process
def test_a_repository_without_a_commit_has_no_revision(tmp_path):
    git(tmp_path, "init", "--quiet")
    assert source_state(tmp_path).revision == ""


def test_git_that_hangs_is_given_up(repository, tmp_path, monkeypatch):
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:/usr/bin:/bin")
    monkeypatch.setattr(module, "TIMEOUT_SECONDS", 0.2)
    assert "took longer" in source_state(repository).problem
