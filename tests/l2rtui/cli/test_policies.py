"""Placement by measurements from the command line and from a spec file, over the in-memory cluster."""

from __future__ import annotations

import json

import pytest

from l2rtui.cli import main as entry

SPEC = "kind: job\nname: mine\njob: {command: [sleep, '60'], replicas: 4, slots: 1}\n"


@pytest.fixture(autouse=True)
def demo(monkeypatch, tmp_path):
    monkeypatch.setenv("L2RTUI_BACKEND", "demo")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.mark.parametrize("policy", ["least-busy", "free-memory"])
@pytest.mark.parametrize("is_in_file", [True, False])
def test_a_plan_goes_to_gpus_where_most_is_left(policy, is_in_file, tmp_path, capsys):
    assert entry.main(["slots", "--state", "free", "-o", "json"]) == 0
    field = {"least-busy": "gpu_use_percent", "free-memory": "gpu_memory_used_bytes"}[policy]
    figures = {slot["id"]: slot[field] for slot in json.loads(capsys.readouterr().out)}
    spec = tmp_path / "spec.yaml"
    spec.write_text(f"{SPEC}placement: {{policy: {policy}}}\n" if is_in_file else SPEC)
    words = ["plan", "-f", str(spec), *(() if is_in_file else ("--policy", policy)), "-o", "json"]
    assert entry.main(words) == 0
    slots = [slot for pod in json.loads(capsys.readouterr().out)["runs"][0]["pods"] for slot in pod["slots"]]
    # Four replicas on four devices: each takes its share of a device, and the next has more elsewhere.
    assert len({slot.rpartition(".")[0] for slot in slots}) == 4
    assert {figures[slot] for slot in slots} == {min(figures.values())}


def test_a_policy_that_does_not_exist_is_refused_with_those_that_do(tmp_path, capsys):
    spec = tmp_path / "spec.yaml"
    spec.write_text(f"{SPEC}placement: {{policy: least-bussy}}\n")
    assert entry.main(["plan", "-f", str(spec)]) != 0
    assert "placement.policy is 'least-bussy'" in capsys.readouterr().err
