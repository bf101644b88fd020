"""``owners`` over the in-memory cluster."""

from __future__ import annotations

import json

import pytest

from l2rtui.cli.main import main

FIELDS = [
    *("owner", "project", "pods", "runs", "slots", "cpu_slots", "gpus"),
    *("idle_gpus", "unknown_gpus", "idle", "gpu_hours"),
]


@pytest.fixture
def demo(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def invoke(*words):
        code = main([*words, "--backend", "demo"])
        return (code, *capsys.readouterr())

    return invoke


def test_the_slots_of_owners_are_those_that_slots_lists(demo):
    documents = json.loads(demo("owners", "-o", "json")[1])
    assert [list(document) for document in documents] == [FIELDS] * len(documents)
    held = {}
    for slot in json.loads(demo("slots", "-o", "json")[1]):
        if slot["owner"]:
            own = held.setdefault(slot["owner"], (set(), set()))
            own[0].add(slot["id"])
            own[1].add(slot["id"].partition(".")[0])
    assert {document["owner"]: (document["slots"], document["gpus"]) for document in documents} == {
        owner: (len(slots), len(gpus)) for owner, (slots, gpus) in held.items()
    }
    assert [document["slots"] for document in documents] == sorted(
        (document["slots"] for document in documents), reverse=True
    )


def test_a_filter_chooses_and_a_column_that_is_not_there_is_a_sentence(demo):
    code, out, _ = demo("owners", "--filter", "slots>=12", "-o", "name")
    assert (code, len(out.split())) == (0, 1)
    code, _, err = demo("owners", "--filter", "money>3")
    assert code == 2
    assert "There is no column 'money'" in err


def test_a_history_that_cannot_be_read_leaves_the_hours_unknown(demo, tmp_path):
    file = tmp_path / "l2rtui" / "history" / "runs.db"
    file.mkdir(parents=True)
    (file / "in-the-way").write_text("")
    code, out, _ = demo("owners", "-o", "json")
    assert code == 0
    assert all(document["gpu_hours"] is None for document in json.loads(out))
