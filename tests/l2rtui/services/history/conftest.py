"""Users of one machine, in a source tree of their own."""

from __future__ import annotations

import subprocess

import pytest

from l2rtui.services.history import recorder


@pytest.fixture
def user(tmp_path, monkeypatch):
    """Change the user: each has a history of their own; the source tree is small, whatever the checkout holds."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "train.py").write_text("lr = 1\n")
    git = ("git", "-c", "user.name=ada", "-c", "user.email=ada@lab", "-c", "commit.gpgsign=false")
    for words in (("init", "--quiet"), ("add", "."), ("commit", "--quiet", "-m", "first")):
        subprocess.run([*git, *words], cwd=tree, check=True)
    (tree / "train.py").write_text("lr = 2\n")
    monkeypatch.chdir(tree)
    recorder.take_warnings()
    become = lambda name: monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / name))  # noqa: E731
    become("ada")
    return become
