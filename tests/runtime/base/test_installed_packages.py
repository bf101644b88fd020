"""Which setups share installed packages: what pip reads decides, and nothing else."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from runtime.base.installed_packages import add, key_of, leading_pip, programs_of, take, variables_of_pip

PIP = [sys.executable, "-m", "pip", "install"]
FILES = {
    "requirements.txt": "-r more/base.txt  # comment\n./lib.whl\nnumpy>=1 ; python_version > '3'\n",
    "more/base.txt": "-c limits.txt\npillow\n",
    "more/limits.txt": "pillow<12\n",
    "lib.whl": "a wheel",
    "project/pyproject.toml": "[project]",
    "project/src/part.py": "x = 1",
    "train.py": "print('trains')",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def key(tree: Path, *words: str) -> str | None:
    return key_of([[*PIP, *words]], tree, [])


@pytest.mark.parametrize(
    "words", [("-r", "requirements.txt"), ("-rrequirements.txt",), ("--requirement=requirements.txt",)]
)
@pytest.mark.parametrize("changed", ["requirements.txt", "more/base.txt", "more/limits.txt", "lib.whl"])
def test_a_change_of_any_file_that_pip_reads_installs_again(tree, words, changed):
    before = key(tree, *words)
    assert before is not None
    (tree / "train.py").write_text("print('edited')")
    assert key(tree, *words) == before
    (tree / changed).write_text(f"{FILES[changed]}\n")
    assert key(tree, *words) not in (before, None)


@pytest.mark.parametrize("name", ["./project", "project", "./project[gpu]", "."])
def test_a_project_of_the_own_code_is_installed_again_when_one_of_its_files_changes(tree, name):
    before = key(tree, name)
    (tree / "project/src/part.py").write_text("x = 2")
    assert key(tree, name) not in (before, None)


def test_another_place_or_command_has_other_packages(tree):
    keys = {
        key(tree, "numpy"),
        key(tree, "pillow"),
        key_of([[*PIP, "numpy"]], tree, ["image:2"]),
        key_of([[*PIP, "numpy"], [*PIP, "pillow"]], tree, []),
    }
    assert len(keys) == 4
    assert None not in keys


def test_an_environment_that_was_made_again_and_another_index_are_another_place(tmp_path):
    pip = tmp_path / "pip"
    pip.write_text("#!/bin/sh\n")
    pip.chmod(0o755)
    before = programs_of([["pip", "install"]], {"PATH": str(tmp_path)})
    assert before == programs_of([["pip", "install"]], {"PATH": str(tmp_path)})
    os.utime(pip, (1, 1))
    assert programs_of([["pip", "install"]], {"PATH": str(tmp_path)}) != before
    assert programs_of([["no-such-pip", "install"]], {"PATH": str(tmp_path)})
    environ = {"PIP_TARGET": "/anywhere", "HOME": "/h", "PIP_INDEX_URL": "https://example.org"}
    assert variables_of_pip(environ.items()) == ["PIP_INDEX_URL=https://example.org"]


@pytest.mark.parametrize(
    "words",
    [
        ("-e", "."),
        ("--upgrade", "numpy"),
        ("--target", "here", "numpy"),
        ("--target=here", "numpy"),
        ("git+https://example.org/lib",),
        ("lib@git+https://example.org/lib",),
    ],
)
def test_what_may_change_under_the_same_words_is_not_stored(tree, words):
    assert key(tree, *words) is None
    (tree / "again.txt").write_text(" ".join(words))
    assert key(tree, "-r", "again.txt") is None or words[0].startswith("--")


def test_requirements_with_a_variable_are_not_stored(tree):
    (tree / "token.txt").write_text("lib @ https://${TOKEN}@example.org/lib.whl\n")
    assert key(tree, "-r", "token.txt") is None


def test_requirements_that_name_each_other_end(tree):
    (tree / "a.txt").write_text("-r b.txt\n")
    (tree / "b.txt").write_text("-r a.txt\n")
    assert key(tree, "-r", "a.txt") is not None


def test_only_pip_commands_before_all_others_count():
    assert leading_pip([PIP, ["pip3", "install", "x"], ["python3.11", "-m", "pip", "install"], ["make"], PIP]) == 3
    for command in (
        ["pip", "list"],
        ["python", "pip"],
        ["python", "-m", "build"],
        ["uv", "pip", "install"],
        ["pip"],
        [],
    ):
        assert leading_pip([command, PIP]) == 0


def test_packages_are_linked_and_expire_after_a_day(tmp_path):
    store, first, second = tmp_path / "store", tmp_path / "first", tmp_path / "second"
    (first / "lib").mkdir(parents=True)
    second.mkdir()
    (first / "lib/code.py").write_text("x = 1")
    (first / "lib/link").symlink_to("code.py")
    assert not take(store, "k", second)
    add(store, "k", first)
    add(store, "k", first)  # another process has stored the same
    assert [path.name for path in store.iterdir()] == ["k"]
    assert take(store, "k", second)
    assert (second / "lib/code.py").samefile(first / "lib/code.py")
    assert (second / "lib/link").readlink() == Path("code.py")
    os.utime(store / "k", (0, time.time() - 90_000))
    assert not take(store, "k", second)
    add(store, "other", first)
    assert [path.name for path in store.iterdir()] == ["other"]
