"""results: results of destroyed runs on this machine are listed and removed; those of an existing run never."""

from __future__ import annotations

import json
import os
import time

import pytest

from l2rtui.backends.local.paths import StateFolder
from l2rtui.backends.local.state_files import RunRecord
from l2rtui.cli.main import main
from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec
from runtime.base.atomic_files import write_atomic

DAY = 86400.0


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = StateFolder(tmp_path / "l2rtui" / "local")
    for name, days in (("race-aaaaaaaa", 40), ("race-bbbbbbbb", 2), ("pole-cccccccc", 90)):
        data = folder.results / name / "checkpoints"
        data.mkdir(parents=True)
        (data / "ckpt").write_bytes(b"x" * 10_000)
        then = time.time() - days * DAY
        for path in (data / "ckpt", data, data.parent):
            os.utime(path, (then, then))
    return folder


def add_run(root, name, train="{}"):
    import msgspec

    run = root.run(name)
    run.data.mkdir(parents=True)
    (run.data / "metrics").write_text("m", "utf-8")
    spec = RunSpec(Kind.LEARNER_WORKERS, name, name, (SetSpec("w", Role.WORKER, ("true",)),), train=train)
    record = RunRecord(
        uid="f" * 32,
        spec=spec,
        owner="me",
        node="n",
        boot="b",
        cwd="/",
        created=time.time(),
        endpoint="",
        socket_dir="",
        pods=(),
        backoff_seconds=1.0,
        log_max_bytes=1 << 20,
    )
    write_atomic(run.record, msgspec.json.encode(record))


def run(capsys, *words):
    code = main(["--backend", "local", "results", *words])
    done = capsys.readouterr()
    return code, done.out, done.err


def ids(capsys, *words):
    code, out, _ = run(capsys, *words, "-o", "json")
    assert code == 0
    return [document["id"] for document in json.loads(out)]


def test_the_list_has_sizes_ages_and_runs_the_newest_first(root, capsys):
    code, out, err = run(capsys)
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [
        ["race-bbbbbbbb", "race"],
        ["race-aaaaaaaa", "race"],
        ["pole-cccccccc", "pole"],
    ]
    assert "in all" in err
    documents = json.loads(run(capsys, "ls", "race", "-o", "json")[1])
    assert [(document["state"], document["size_bytes"] >= 10_000) for document in documents] == [("kept", True)] * 2
    assert documents[0]["age_seconds"] == pytest.approx(2 * DAY, abs=60)


def test_one_is_removed_by_its_id_and_a_name_of_several_is_refused_with_them(root, capsys):
    code, _, err = run(capsys, "rm", "race", "--yes")
    assert code == 2
    assert "race has left results 2 times: race-bbbbbbbb, race-aaaaaaaa. Name one of them." in err
    assert run(capsys, "rm", "race-aaaaaaaa", "--yes")[0] == 0
    assert run(capsys, "rm", "pole", "--yes")[0] == 0  # this run has only one
    assert ids(capsys) == ["race-bbbbbbbb"]
    assert [path.name for path in root.results.iterdir()] == ["race-bbbbbbbb"]
    code, _, err = run(capsys, "rm", "race-bbbbbbbx", "--yes")
    assert (code, "Did you mean race-bbbbbbbb?" in err) == (1, True)
    assert run(capsys, "rm", "../runs", "--yes")[0] == 1


def test_results_of_a_run_that_is_there_stay(root, capsys):
    add_run(root, "race")
    add_run(root, "later", json.dumps({"resume_from": str(root.results / "race-bbbbbbbb")}))
    states = {row["id"]: row["state"] for row in json.loads(run(capsys, "-o", "json")[1])}
    assert states == {
        "race": "running",
        "later": "running",
        "race-bbbbbbbb": "used",
        "race-aaaaaaaa": "kept",
        "pole-cccccccc": "kept",
    }
    assert run(capsys)[1].count("not destroyed") == 2  # they may have ended
    for name, sentence in (("later", "later is of a run that is there"), ("race-bbbbbbbb", "is used by later")):
        code, _, err = run(capsys, "rm", name, "--yes")
        assert (code, sentence in err) == (3, True), err
    assert run(capsys, "prune", "--older", "0s", "--yes")[0] == 0
    assert sorted(ids(capsys)) == ["later", "race", "race-bbbbbbbb"]


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (("--older", "30d"), ["race-bbbbbbbb"]),
        (("--keep", "1"), ["race-bbbbbbbb", "pole-cccccccc"]),
        (("--keep", "1", "--older", "60d"), ["race-bbbbbbbb", "race-aaaaaaaa", "pole-cccccccc"]),
        (("race", "--older", "30d"), ["race-bbbbbbbb", "pole-cccccccc"]),
        (("--size", "1Gi"), ["race-bbbbbbbb", "race-aaaaaaaa", "pole-cccccccc"]),
        (("--size", "45k"), ["race-bbbbbbbb", "race-aaaaaaaa"]),
        (("--size", "1k"), []),
        (("--size", "1k", "--keep", "1"), ["race-bbbbbbbb", "pole-cccccccc"]),
    ],
)
def test_prune_removes_by_age_number_and_size(root, capsys, words, left):
    assert run(capsys, "prune", *words, "--yes")[0] == 0
    assert ids(capsys) == left


def test_mistakes_name_the_next_step(root, capsys):
    assert "needs --older SPAN, --keep N or --size SIZE" in run(capsys, "prune", "--yes")[2]
    code, _, err = run(capsys, "prune", "--size", "10 GB")
    assert (code, "argument --size: '10 GB' is not a quantity: did you mean 10Gi?" in err) == (2, True)
    assert "results rm needs ids. See `l2rtui --backend local results ls`." in run(capsys, "rm", "--yes")[2]
    assert "Add --yes" in run(capsys, "rm", "pole")[2]
    assert main(["--backend", "demo", "results"]) == 2
    assert "Results of the demo backend lie in its volumes" in capsys.readouterr().err
