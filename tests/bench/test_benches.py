"""Each measurement is listed with its requirements, and a tiny run of it succeeds."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.bench.__main__ import BENCHES, CLUSTER, FOLDER, summary

ROOT = FOLDER.parents[1]


def output_of(*words: str, seconds: float = 30.0) -> str:
    command = [sys.executable, "-m", "tests.bench", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def programs() -> set[str]:
    """Return the names of all measurement files that have a `main`, except those that another one starts."""
    helpers = {"learning_reference", "learning_speed_alone", "learning_speed_sb3", "gpu measuring"}
    names = set()
    for path in [*FOLDER.glob("*.py"), *FOLDER.glob("exchange/*.py"), FOLDER / "gpu" / "__init__.py"]:
        tree = ast.parse(path.read_text("utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body):
            names.add(" ".join(path.relative_to(FOLDER).with_suffix("").parts).removesuffix(" __init__"))
    return names - helpers - {"__main__"}


def test_the_index_has_each_program_and_no_other():
    assert programs() == set(BENCHES)
    assert all(summary(name) for name in BENCHES)


@pytest.mark.process
def test_the_list_imports_no_measurement():
    # A machine without peers, cards and torch lists them too.
    lines = output_of().splitlines()
    assert [line.split("  ")[0].strip() for line in lines] == list(BENCHES)
    assert all("min   " in line for line in lines)


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.cluster] if CLUSTER in bench.needs else [])
        for name, bench in BENCHES.items()
        if bench.tiny
    ],
)
def test_a_tiny_run_ends_well(name: str):
    before = {path: path.stat().st_mtime for path in ROOT.glob("docs/*")}
    assert output_of(*name.split(), "--tiny", seconds=580.0).strip()
    assert before == {path: path.stat().st_mtime for path in ROOT.glob("docs/*")}
