"""``metrics --svg`` and ``--csv``: curves of runs and of the seeds of an experiment, in files and on the output."""

from __future__ import annotations

import csv
from xml.etree import ElementTree as ET

import pytest

from l2rtui.cli.main import main

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)

    def invoke(*words):
        code = main(["metrics", "--backend", "demo", *words])
        return (code, *capsys.readouterr())

    return invoke


def test_the_seeds_of_an_experiment_become_a_picture_and_a_table(run, tmp_path):
    code, out, err = run("racing-sac", "--svg", "c.svg", "--csv", "c.csv", "--mean", "--smooth", "--over", "time")
    assert (code, out) == (0, "")
    assert "of 2 runs" in err
    root = ET.fromstring((tmp_path / "c.svg").read_text())  # noqa: S314  (our own text)
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"return", "time since launch", "racing-sac (mean of 2 seeds, 95% interval)"} <= set(texts)
    assert "over time since launch, EMA over 2% of axis" in texts
    rows = list(csv.DictReader((tmp_path / "c.csv").read_text().splitlines()))
    assert {row["seed"] for row in rows} == {"0", "1"}
    assert sum(int(row["records"]) for row in rows) == int(err.splitlines()[-1].split()[0].replace(",", ""))


def test_each_run_is_a_line_and_the_table_goes_to_the_output(run):
    code, out, _ = run("--csv", "-")
    assert code == 0
    assert {row["run"] for row in csv.DictReader(out.splitlines())} == {
        "racing-sac-s0",
        "racing-sac-s1",
        "lidar-ppo",
    }
    code, out, _ = run("racing-sac", "--svg", "-")
    assert len(ET.fromstring(out).findall(f".//{SVG}g[1]/{SVG}polyline")) == 2  # noqa: S314  (our own text)


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("lidar-ppo", "--svg", "nowhere/c.svg"), 2, "nowhere/c.svg cannot be written"),
        (("lidar-ppo", "--svg", "c.svg", "--over", "miles"), 2, "env_steps"),
        (("nothing", "--csv", "-"), 1, "There is no run 'nothing'"),
    ],
)
def test_what_cannot_be_done_is_a_sentence(run, words, code, sentence):
    try:
        answer = run(*words)
    except SystemExit as error:
        pytest.fail(f"ended with {error}")
    assert answer[0] == code
    assert sentence in answer[2]
    assert "Traceback" not in answer[2]


def test_tensorboard_files_of_a_run_and_of_a_destroyed_one_are_named(tmp_path, monkeypatch, capsys):
    """Of the first the data folder, of the second the newest results; the command shows both."""
    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    folder = tmp_path / "l2rtui" / "local" / "results" / "old-0123456789abcdef" / "tensorboard"
    folder.mkdir(parents=True)
    assert main(["metrics", "old", "--tensorboard", "--backend", "local"]) == 0
    written = capsys.readouterr()
    assert written.out.split() == ["RUN", "FOLDER", "old", str(folder)]
    assert written.err.strip() == f"tensorboard --logdir {folder}"
    assert main(["metrics", "older", "--tensorboard", "--backend", "local"]) == 1
    assert "older" in capsys.readouterr().err
    assert main(["metrics", "racing-sac-s0", "--tensorboard", "--backend", "demo", "-o", "json"]) == 0
    written = capsys.readouterr()
    assert '"folder": "/l2r/tensorboard"' in written.out
    assert "l2rtui --backend demo port-forward racing-sac-s0/learner/0 6006:6006" in written.err
