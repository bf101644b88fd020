"""A separate source tree, and users of one machine who launch from it."""

from __future__ import annotations

import subprocess

import pytest

from l2rtui.services.history import recorder
from tests.tiers import starts_processes


def git(folder, *arguments):
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True)


@pytest.fixture
@starts_processes
def repository(tmp_path, monkeypatch):
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    root = tmp_path / "repo"
    (root / "specs").mkdir(parents=True)
    (root / "train.py").write_text("rate = 1\n")
    git(root, "init", "--quiet", "--initial-branch", "trunk")
    git(root, "add", ".")
    git(root, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "first")
    return root


@pytest.fixture
def user(repository, tmp_path, monkeypatch):
    """Change the user: each has a separate history; the source tree is small, whatever the checkout contains."""
    (repository / "train.py").write_text("rate = 2\n")
    monkeypatch.chdir(repository)
    recorder.take_warnings()
    become = lambda name: monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / name))  # noqa: E731
    become("ada")
    return become
