"""Names on the command line: exact runs, experiments, taken names, earlier spellings."""

from __future__ import annotations

import errno
import json
from unittest.mock import Mock

import pytest

from l2rtui.cli.main import main
from l2rtui.services.spec import spec_file

SPEC = """\
kind: learner-workers
name: {name}
learner: {{command: ["true"]}}
workers: [{{name: w, command: ["true"]}}]
"""


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.fixture
def spec(tmp_path):
    def write(name):
        path = tmp_path / f"{name}.yaml"
        path.write_text(SPEC.format(name=name), "utf-8")
        return str(path)

    return write


def run(capsys, *words):
    code = main(["--backend", "demo", *words])
    done = capsys.readouterr()
    return code, done.out, done.err


def test_a_taken_name_is_refused_with_the_free_one_and_renamed_on_request(spec, capsys):
    code, out, err = run(capsys, "launch", "-f", spec("lidar-ppo"), "--yes")
    assert (code, out) == (3, "")
    assert "Add --rename to launch it as lidar-ppo-2." in err
    assert "a run named lidar-ppo exists" in err
    code, out, err = run(capsys, "launch", "-f", spec("lidar-ppo"), "--yes", "--rename", "-o", "json")
    assert (code, json.loads(out)["run"], json.loads(out)["experiment"]) == (0, "lidar-ppo-2", "lidar-ppo-2")
    assert "lidar-ppo exists already: this launch is named lidar-ppo-2." in err


def test_of_seeds_the_name_is_taken_that_all_of_them_can_have(spec, capsys):
    code, out, _ = run(
        capsys, "launch", "-f", spec("racing-sac"), "--seeds", "1-2", "--yes", "--rename", "-o", "name"
    )
    assert (code, out.split()) == (0, ["racing-sac-2-s1", "racing-sac-2-s2"])
    # A free name stays unchanged.
    code, out, _ = run(capsys, "launch", "-f", spec("fresh"), "--yes", "--rename", "-o", "name")
    assert (code, out.split()) == (0, ["fresh"])


@pytest.mark.parametrize(
    ("name", "used", "free"),
    [
        ("a", {"a"}, "a-2"),
        ("a", {"a", "a-2", "a-3"}, "a-4"),
        ("a-2", {"a-2"}, "a-3"),
        ("a-s1", {"a-s1"}, "a-s1-2"),
        ("x" * 40, {"x" * 40}, "x" * 38 + "-2"),
    ],
)
def test_free_names_count_up_and_stay_short_enough(spec, name, used, free):
    assert spec_file.load(spec(name)).free_name((), used) == free


def test_more_runs_than_were_named_want_a_word_more(capsys):
    for words in (
        ("kill", "racing-sac/w"),
        ("destroy", "experiment/racing-sac"),
        ("scale", "racing-sac/w", "1"),
        ("kill", "lidar-ppo", "exp/racing-sac", "--admin"),
    ):
        code, out, err = run(capsys, *words, "--yes")
        assert (code, out) == (3, ""), words
        assert "racing-sac-s0, racing-sac-s1" in err
        assert "Add --all-matching" in err
    code, out, _ = run(capsys, "scale", "experiment/racing-sac/w", "1", "--yes", "--all-matching", "-o", "name")
    assert (code, out.split()) == (0, ["racing-sac-s0/w", "racing-sac-s1/w"])
    # One run for each named seed.
    code, out, _ = run(capsys, "destroy", "racing-sac", "--seed", "0-1", "--yes", "--grace", "0", "-o", "name")
    assert (code, out.split()) == (0, ["racing-sac-s0", "racing-sac-s1"])


@pytest.mark.parametrize("verb", ["runs", "pods", "metrics"])
def test_lists_take_experiments_and_patterns_of_them(capsys, verb):
    def runs(*words):
        code, out, _ = run(capsys, verb, *words, "-o", "json")
        assert code == 0
        return {row["run"] for row in json.loads(out)}

    both = {"racing-sac-s0", "racing-sac-s1"}
    for words in (("experiment/racing-sac",), ("exp/racing-*",), ("racing-*",), ("racing-sac",)):
        assert runs(*words) == both
    if verb != "metrics":
        assert runs("racing-sac-s0") == {"racing-sac-s0"}
    if verb == "pods":
        assert runs("--run", "experiment/racing-sac") == runs("--run", "racing-*") == both
        assert runs("experiment/racing-sac/w") == both
    code, _, err = run(capsys, verb, "experiment/nothing")
    assert (code, "There is no" in err) == (1, True)


def test_the_old_spelling_of_like_works_with_a_note_and_as_names_a_user(capsys, spec):
    for words in (("--as", "nothing"), ("--as-run", "nothing")):
        code, _, err = run(capsys, "launch", *words, "--yes")
        assert code == 1
        assert "is written `launch --like RUN` now; --as names a user." in err
        assert "The history has no run nothing" in err
    code, _, err = run(capsys, "launch", "-f", spec("fresh"), "--as", "anna", "--yes")
    assert (code, "The demo backend has no users: --as means nothing there." in err) == (2, True)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (RuntimeError("can't start new thread"), "The limit of processes and threads is reached."),
        (
            ExceptionGroup("", [BlockingIOError(errno.EAGAIN, "busy")]),
            "The limit of processes and threads is reached.",
        ),
        (OSError(errno.EMFILE, "Too many open files"), "The limit of open files is reached."),
        (MemoryError(), "Memory ran out."),
    ],
)
def test_a_limit_of_the_user_is_a_sentence(capsys, monkeypatch, error, sentence):
    monkeypatch.setattr("asyncio.run", Mock(side_effect=error))
    code, _, said = run(capsys, "runs")
    assert code == 1
    assert said.startswith(f"l2rtui: {sentence}")
