"""`l2r-runtime setup`: setup commands run once for all processes of a run, and a failure is everybody's reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.own_code import make_wheel

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.process


def command(folder: Path, setup: object, *argv: str) -> list[str]:
    return [sys.executable, "-m", "runtime", "setup", str(folder), json.dumps(setup), "--", *argv]


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def run(folder: Path, setup: object, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(folder, setup, *argv), capture_output=True, text=True, timeout=60, check=False)


def test_setup_runs_once_and_then_the_command(tmp_path):
    setup = [python("print('made'); open('made', 'a').write('x')".replace("made'", f"{tmp_path}/made'", 2))]
    for _ in range(2):
        done = run(tmp_path, setup, *python("import sys; sys.exit(7)"))
        assert done.returncode == 7, done.stderr
    assert (tmp_path / "made").read_text() == "x"


def test_processes_that_start_together_run_it_once(tmp_path):
    setup = [python(f"import time; time.sleep(0.5); open({str(tmp_path / 'made')!r}, 'a').write('x')")]
    argv = command(tmp_path, setup, *python("print('runs')"))
    processes = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert all(output.endswith("runs\n") for output in outputs)
    assert sum("setup:" in output for output in outputs) == 1
    assert (tmp_path / "made").read_text() == "x"


def test_a_failure_ends_with_the_last_line_of_the_command(tmp_path):
    setup = [python("print('working'); print('no such package'); print(); raise SystemExit(3)")]
    done = run(tmp_path, setup, *python("print('runs')"))
    assert done.returncode == 1
    assert "working\nno such package\n" in done.stdout
    assert "runs" not in done.stdout
    assert done.stderr.strip().endswith("ended with exit code 3: no such package")
    assert run(tmp_path, setup, *python("0")).returncode == 1  # tried again, as after an outage of the index
    assert run(tmp_path, [python("0")], *python("0")).returncode == 0


@pytest.mark.parametrize(
    ("setup", "sentence"),
    [([["no-such-program"]], "no-such-program cannot be started: No such file"), ("pip", "COMMANDS is no list")],
)
def test_what_cannot_be_started_is_a_sentence(tmp_path, setup, sentence):
    done = run(tmp_path, setup, *python("0"))
    assert done.returncode in (1, 2)
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_a_stopped_setup_is_neither_done_nor_failed(tmp_path):
    setup = [python("print('sleeps', flush=True); import time; time.sleep(60)")]
    process = subprocess.Popen(command(tmp_path, setup, *python("0")), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while process.stdout.readline() != "sleeps\n":
        pass
    process.terminate()
    assert process.wait(timeout=30) == 143
    assert not (tmp_path / "setup.done").exists()
    assert not (tmp_path / "setup.failed").exists()
    process.stdout.close()


def test_packages_of_unchanged_requirements_are_not_installed_again(tmp_path):
    """A change of the code alone runs the other commands only; a changed requirement runs pip."""
    tree, store = tmp_path / "tree", tmp_path / "store"
    tree.mkdir()
    file = make_wheel(tree, "SIZE = 1")
    (tree / "requirements.txt").write_text(f"./{file}\n")
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "-r", "requirements.txt"]
    show = python("import gustlib; print('gusts', gustlib.SIZE)")

    def prepared(name: str) -> str:
        packages = tmp_path / name
        packages.mkdir()
        argv = command(tmp_path / f"{name}-marks", [pip, python("print('made')")], *show)
        argv[4:4] = ["--store", str(store)]
        env = {**os.environ, "PIP_TARGET": str(packages), "PYTHONPATH": f"{packages}:{ROOT}"}
        done = subprocess.run(argv, cwd=tree, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert "setup: " in done.stdout
        assert "made\n" in done.stdout
        assert done.stdout.endswith("gusts 1\n")
        return done.stdout

    assert "Successfully installed gustlib" in prepared("first")
    (tree / "code.py").write_text("")
    assert "Successfully installed" not in prepared("second")
    with (tree / "requirements.txt").open("a") as file:
        file.write("# renewed\n")
    assert "Successfully installed gustlib" in prepared("third")
