"""The measurement of a GPU machine also runs on a CPU, with only the packages of that machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

import psutil
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.bench import gpu
from tests.bench.run_processes import RunProcesses

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(400)]
ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests/gpu/fifteen_minutes.sh"
STEP_SECONDS = 300.0
"""A step is shorter on a card; on two busy cores the import of torch takes 20 s."""
PRESENT = (
    *("torch", "numpy", "pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "safetensors", "nvidia-ml-py"),
    *("PyYAML", "psutil", "cloudpickle", "protobuf"),
)
"""Packages of an image with torch for CUDA; their requirements are installed too."""
BLOCKER = """
import sys
from importlib.machinery import PathFinder

BLOCKED = {names!r}


class Blocker(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if path is None and name in BLOCKED else super().find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = Blocker
"""


def block(folder: Path, names: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide top-level packages from all Python processes started from here on."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(BLOCKER.format(names=names))
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)


def wheels() -> list[str]:
    """Return the wheels that docs/gpu.md names."""
    (line,) = re.findall(r"pip download --no-deps -d wheels((?: [\w-]+)+)\n", (ROOT / "docs/gpu.md").read_text())
    return line.split()


def absent() -> set[str]:
    """Return the top-level packages of this environment that a GPU machine with the wheels lacks."""
    there, new = {canonicalize_name(name) for name in wheels()}, {canonicalize_name(n) for n in PRESENT}
    while new:  # wheels are installed without their requirements
        there |= new
        needs = [Requirement(text) for name in new for text in metadata.requires(name) or ()]
        needed = {canonicalize_name(n.name) for n in needs if n.marker is None or n.marker.evaluate({"extra": ""})}
        new = needed - there
    tops = metadata.packages_distributions()
    return {top for top, owners in tops.items() if not there & {canonicalize_name(owner) for owner in owners}}


def test_the_steps_fit_one_command_and_each_half_a_shorter_one() -> None:
    for steps, most in ((gpu.FIRST, 300), (gpu.SECOND, 300), (gpu.STEPS, 600)):
        ends = [end for _, end in gpu.limits(list(steps), None)]
        assert ends == sorted(ends)
        assert ends[-1] < most
    assert list(gpu.limits(["runs", "inference"], 85.0)) == [("runs", 65.0), ("inference", 85.0)]
    assert list(gpu.FIRST | gpu.SECOND) == list(gpu.STEPS)


@pytest.mark.parametrize("step", list(gpu.STEPS))
def test_a_step_prints_its_rows_without_a_card_and_with_the_listed_packages(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = absent()
    assert {"textual", "boto3", "websockets", "docker", "kubernetes", "aiohttp", "h5py"} <= names
    assert not {"torch", "zmq", "msgspec", "gymnasium", "pynvml", "typing_extensions", "xdist", "tests"} & names
    block(tmp_path / "path", names, monkeypatch)
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    command = [str(SCRIPT), "--device", "cpu", "--tiny", "--steps", step, "--seconds", str(STEP_SECONDS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "left out" not in done.stdout
    head, _, table = (tmp_path / "out/gpu.md").read_text().partition("\n\n")
    assert re.fullmatch(
        r"cpu \(\w+\) with \d+ cores, .*torch \S+, Python [\d.]+, \d{4}-\d\d-\d\d, commit .+\.", head
    )
    titles, rules, name, *rows = table.splitlines()
    assert (titles, rules, name) == ("| measured | figures |", "| --- | --- |", f"| **{step}** |  |")
    assert len(rows) >= (1 if step == "correctness" else 2)
    for row in rows:
        title, figures = re.fullmatch(r"\| (.+) \| (.+) \|", row).groups()
        assert re.search(r"\d", figures), row
        assert re.search(re.escape(title) + " +" + re.escape(figures.split(", ")[0]), done.stdout), row


def test_a_row_that_fails_fails_the_step_and_the_command_and_stands_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block(tmp_path / "path", {"zmq"}, monkeypatch)  # the bench starts without it, but no learner does
    command = [sys.executable, "-m", "tests.bench.gpu", "--device", "cpu", "--tiny", "--only", "racing-sac"]
    command += ["--steps", "runs", "--seconds", str(STEP_SECONDS), "--out", str(tmp_path / "gpu.md")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "runs: 1 rows failed: racing-sac, 2 workers, cpu" in done.stdout
    assert done.stdout.endswith("\nfailed: runs\n")
    row, step = (tmp_path / "gpu.md").read_text().splitlines()[-2:]
    assert re.search(r"racing-sac, 2 workers, cpu \| FAILED it never learned: .*No module named 'zmq'", row)
    assert step == "| **runs** | FAILED: ended with 1 |"


def test_a_step_that_takes_too_long_is_ended_and_fails_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.bench.gpu", "--device", "cpu", "--tiny", "--steps", "machine"]
    command += ["--seconds", "0.5", "--out", str(tmp_path / "gpu.md")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 1
    assert "machine: took longer than its 0 s" in done.stdout
    assert (tmp_path / "gpu.md").read_text() == "| **machine** | FAILED: took longer than its 0 s |\n"


def test_the_end_of_the_command_is_the_end_of_its_step_and_of_what_that_started() -> None:
    command = [sys.executable, "-m", "tests.bench.gpu", "--device", "cpu", "--tiny", "--steps", "runs"]
    bench = subprocess.Popen([*command, "--seconds", str(STEP_SECONDS)], cwd=ROOT, stdout=subprocess.DEVNULL)
    end, started = time.monotonic() + 120, []
    while len(started) < 3:  # the step, its learner and its evaluator
        assert time.monotonic() < end
        time.sleep(0.1)
        started = psutil.Process(bench.pid).children(recursive=True)
    bench.terminate()
    assert bench.wait(30) == 143
    _, alive = psutil.wait_procs(started, timeout=30)
    assert not alive


def test_a_learner_without_the_package_of_curves_trains_and_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block(tmp_path / "path", {"tensorboardX"}, monkeypatch)
    settings = yaml.safe_load((ROOT / "manifests/racing-sac.yaml").read_text())["train"]
    settings |= {"device": "cpu", "hidden": [16], "warmup_steps": 64, "sac": {"batch_size": 32}}
    # A folder with a short name: a Unix socket's path has little room.
    with tempfile.TemporaryDirectory(prefix="l2r-") as folder, RunProcesses(Path(folder), settings) as processes:
        learner = processes.start("learner")
        processes.start("worker")
        end = time.monotonic() + 200
        while not (records := processes.records()) or not records[-1]["updates"]:
            assert learner.poll() is None, processes.output("learner")
            assert time.monotonic() < end, processes.output("learner")
            time.sleep(0.1)
        learner.terminate()
        assert learner.wait(60) == 0
        lines = [line for line in processes.output("learner").splitlines() if "tensorboard" in line.lower()]
        assert "Traceback" not in processes.output("learner")
        assert list(Path(folder).rglob("metrics.jsonl"))
        assert not list(Path(folder).rglob("tensorboard"))
    assert len(lines) == 1
    assert "TensorBoard curves are not written: No module named 'tensorboardX'" in lines[0]
