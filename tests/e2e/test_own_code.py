"""A project of two files with a package trains on this machine, and an edited one starts again without pip."""

from __future__ import annotations

import os
import time
from datetime import datetime

import pytest

from tests.fakes.own_code import EDIT, FAULT, FAULT_REASON, write_project

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(300)]

PREPARATION_SECONDS = 10.0
"""Limit from the command to the end of the setup, on a machine whose cores have no other work."""


def trains(home) -> float:
    """Wait until the run learns; return the mean return of its episodes."""

    def mean_return():
        now = home.metrics("cart")
        return now if now and now["updates"] >= 1 and now["mean_return"] is not None else None

    return home.wait("updates and episodes of own code", mean_return)["mean_return"]


def launched(home, spec) -> tuple[float, str]:
    """Launch; return the seconds until the first process has left the setup behind, and the output of the setup."""
    began = time.time()
    home.run("launch", "-f", str(spec), "--yes")
    log = home.wait(
        "a process after its setup",
        lambda: "waiting for the learner" in (text := home.run("logs", "cart", "--timestamps")) and text,
    )
    lines = [line for line in log.splitlines() if "setup: " in line or "install" in line.lower()]
    for line in lines:
        print(f"{datetime.fromisoformat(line[:23] + '+00:00').timestamp() - began:6.2f} s  {line[25:]}")
    first = next(line for line in log.splitlines() if "waiting for the learner" in line)
    return datetime.fromisoformat(first[:23] + "+00:00").timestamp() - began, "\n".join(lines)


def test_edited_code_trains_again_within_seconds_and_without_pip(home, tmp_path):
    spec = write_project(tmp_path / "project")
    first, log = launched(home, spec)
    assert "Successfully installed gustlib-1.0" in log
    assert trains(home) == 0.0
    home.run("destroy", "cart", "--yes")

    (spec.parent / "reward.py").write_text(EDIT)
    second, log = launched(home, spec)
    assert "Successfully installed" not in log
    assert trains(home) == pytest.approx(100.0)
    others = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    print(f"first launch {first:.1f} s, edited {second:.1f} s, load {others:.1f} per core")
    assert second < PREPARATION_SECONDS * others
    home.run("destroy", "cart", "--yes")


def test_an_environment_that_fails_after_its_setup_is_the_reason_of_the_run(home, tmp_path):
    spec = write_project(tmp_path / "project")
    (spec.parent / "reward.py").write_text(FAULT)
    home.run("launch", "-f", str(spec), "--yes")
    # Preflight cannot know it: the package of the setup is missing there.
    home.wait("the reason of the run", lambda: FAULT_REASON in str(home.json("runs")), 30)
    home.run("destroy", "cart", "--yes")


WRITING = """\
import os
from pathlib import Path

Path("runs", "a").mkdir(parents=True)
Path("runs", "a", "model.pt").write_text("weights")
Path("settings.txt").write_text("changed by the run")
Path("__pycache__").mkdir()
Path("__pycache__", "train.pyc").write_text("cache")
Path(os.environ["L2R_DIR"], "best.pt").write_text("best weights")
"""


def test_files_that_a_program_writes_survive_the_destroy(home, tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(WRITING)
    (folder / "settings.txt").write_text("as sent")
    (folder / "job.yaml").write_text(
        "kind: job\nname: writes\nworkdir: .\nsetup: [[sh, -c, echo built > built.txt]]\n"
        "job: {command: [python, train.py]}\n"
    )
    for words in ((), ("--purge",)):
        home.run("launch", "-f", str(folder / "job.yaml"), "--yes")
        home.run("wait", "writes", "--for=done")
        receipt = home.json("destroy", "writes", "--yes", *words)
        assert bool(receipt["kept"]) is not bool(words), "--purge removes them"
    (kept,) = (home.root / "state").rglob("results/*")
    files = {str(path.relative_to(kept)): path.read_text() for path in kept.rglob("*") if path.is_file()}
    assert files == {
        "best.pt": "best weights",
        "workdir/runs/a/model.pt": "weights",
        "workdir/settings.txt": "changed by the run",
    }
