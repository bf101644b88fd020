"""``experiments``: rows of the demo, and of real runs, checked against their raw records."""

from __future__ import annotations

import json

import numpy as np
import pytest

from l2rtui.cli.main import main
from tests.l2rtui.cli.conftest import eventually

FIELDS = [
    *("experiment", "runs", "queued", "live", "stalled", "done", "failed"),
    *("mean_return", "low", "high", "best_seed", "worst_seed"),
    *("variant", "spec_id", "place", "repeated_seeds", "title"),
]
SEEDS = 12
SPEC = """\
kind: learner-workers
name: pole
learner: {}
workers:
  - name: w
    replicas: 1
train:
  environment: CartPole-v1
  algorithm: ppo
  num_envs: 4
  segment_steps: 64
  total_env_steps: 2048
  ppo: {batch_steps: 512, minibatch_size: 256, epochs: 2}
"""


@pytest.fixture
def demo(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def invoke(*words):
        code = main(["experiments", "--backend", "demo", *words])
        return (code, *capsys.readouterr())

    return invoke


@pytest.mark.slow
def test_an_experiment_is_an_object_with_the_documented_fields(demo):
    code, out, _ = demo("-o", "json")
    documents = json.loads(out)
    assert code == 0
    assert [sorted(document) for document in documents] == [sorted(FIELDS), sorted(FIELDS)]
    assert [document["experiment"] for document in documents] == ["lidar-ppo", "racing-sac"]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("racing-*",), ["racing-sac"]),
        (("--filter", "runs>=2 live=2"), ["racing-sac"]),
        (("--filter", "failed>0"), []),
        ((), ["lidar-ppo", "racing-sac"]),
    ],
)
def test_names_and_filters_choose(demo, words, names):
    code, out, _ = demo(*words, "-o", "name")
    assert (code, out.split()) == (0, names)


def test_what_is_not_there_is_a_sentence(demo):
    code, _, err = demo("racing")
    assert code == 1
    assert "There is no experiment 'racing': the experiments are lidar-ppo, racing-sac." in err
    code, _, err = demo("--filter", "colour=red")
    assert code == 2
    assert "There is no column 'colour'" in err


def last_returns(home):
    """Return the last return written by the learner of each seed, from the raw records of its folder."""
    last = {}
    for file in home.glob("state/**/metrics.jsonl"):
        records = [json.loads(line) for line in file.read_text().splitlines()]
        learner = [record for record in records if record["l2r"] == "learner"][-1]
        reported = learner["mean_return"] if learner.get("eval_return") is None else learner["eval_return"]
        (run,) = (part for part in file.parts if part.startswith("pole-s"))
        last[int(run.removeprefix("pole-s"))] = reported
    return last


def interval_by_hand(values):
    """Return the 95 % percentile bootstrap interval of a mean, with independent random numbers."""
    drawn = np.random.default_rng(7).choice(values, (100_000, len(values)))
    return np.percentile(drawn.mean(axis=1), [2.5, 97.5])


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_twelve_seeds_on_eight_slots_end_and_their_row_agrees_with_their_raw_records(local):
    # A run is two pods: four of twelve seeds run at a time, and the others wait.
    local.env |= {"L2RTUI_SLOTS_PER_CORE": "8", "L2RTUI_MAX_CPU_SLOTS": "8"}
    path = local.home / "spec.yaml"
    path.write_text(SPEC)
    launched = local.json("launch", "-f", str(path), "--seeds", "0-11", "--queue", "--yes")
    assert [len(run["pods"]) for run in launched] == [2] * 4 + [0] * 8
    assert len(local.json("slots")) == 8

    def row():
        (document,) = local.json("experiments")
        return document

    for number in range(1, SEEDS + 1):  # a deadline for each
        eventually(lambda number=number: row()["done"] >= number, f"{number} of {SEEDS} seeds to end")
    last = last_returns(local.home)
    assert sorted(last) == list(range(SEEDS))
    document = row()
    values = np.array(list(last.values()))
    assert document["mean_return"] == pytest.approx(values.mean())
    # Limits of two bootstraps differ by 0.06 of the deviation of the mean: the tolerance is five times that.
    assert [document["low"], document["high"]] == pytest.approx(
        interval_by_hand(values), abs=0.3 * values.std() / len(values) ** 0.5
    )
    assert document["best_seed"] == max(last, key=last.get)
    assert document["worst_seed"] == min(last, key=last.get)
    counts = {"runs": SEEDS, "queued": 0, "live": 0, "stalled": 0, "done": SEEDS, "failed": 0}
    assert {name: document[name] for name in counts} == counts
    assert len(local.json("destroy", "pole", "--yes", "--all-matching")) == SEEDS
    past = {run["seed"]: (run["run"], run["state"]) for run in local.json("history")}
    assert past == {seed: (f"pole-s{seed}", "done") for seed in range(SEEDS)}
