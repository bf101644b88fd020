"""Each measurement is listed with its requirements, and a tiny run of it succeeds; costs that one derives."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.bench.__main__ import BENCHES, CLUSTER, FOLDER, summary
from tests.bench.exchange.simulation import Costs, Figures, Point, Simulation, costs_of

ROOT = FOLDER.parents[1]


def output_of(*words: str, seconds: float = 30.0) -> str:
    command = [sys.executable, "-m", "tests.bench", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def programs() -> set[str]:
    """Return the names of all measurement files that have a `main`, except those that another one starts."""
    helpers = {
        "learning_cleanrl",
        "learning_reference",
        "learning_speed_alone",
        "learning_speed_sb3",
        "gpu measuring",
    }
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


@pytest.mark.slow
def test_the_costs_of_the_exchange_follow_from_runs_that_have_them():
    slow, quick = Point(256.0, 3e-4, 5e-5, wake=0.002), Point(1024.0, 2e-4, 4e-5, wake=0.001)
    known = Costs(1e-4, 5e-5, (replace(slow, rate=0.0, turn=2e-4), slow, quick))
    pairs = [tuple(Simulation(known, count, count / rate).load(2.0) for count in (16, 128)) for rate in (256, 1024)]
    idle, burst = Figures(0, 1.0, 0.01, 0.0, 0.0, 50.0, 0.0, 0.0, network=0.01), bursts(known)
    costs = costs_of(idle, burst, pairs, 1.0)
    assert (costs.message, costs.connection) == pytest.approx((known.message, known.connection), rel=0.05)
    for point, expected in zip(costs.points, known.points, strict=True):
        assert (point.turn, point.transfer) == pytest.approx((expected.turn, expected.transfer), rel=0.15)
    guess, truth = (Simulation(each, 400, 0.5).load(1.0) for each in (costs, known))
    assert guess.cpu == pytest.approx(truth.cpu, rel=0.1)


def bursts(known: Costs) -> Figures:
    """Figures of 64 workers that all send four times a second, each time read in one turn of 54 a second."""
    network = 54 * known.points[0].turn + 256 * known.message
    return Figures(64, 0.25, network, 256.0, 256.0, 54.0, 0.0, 0.0, network=network)
