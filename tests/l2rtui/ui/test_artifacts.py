"""Checkpoints in the app: a place is typed, what lies there is compared, fetched, and trained on from."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from l2rtui.backends.fake import FakeBackend
from l2rtui.config import user_name
from l2rtui.ui.widgets.virtual_table import VirtualTable
from runtime.base.object_store import open_store
from runtime.rl.checkpoints.checkpoint_files import Checkpoints, Mirror

SECOND = "ckpt-0000000020-000000000200"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with two checkpoints of a run, as its learner leaves them."""
    root = tmp_path / "results"
    own = Checkpoints(tmp_path / "own", keep=5)
    for updates in (10, 20):
        made = {"run": "dqn-s0", "seed": 0, "time": 1000.0 + updates, "eval_return": 1.5 * updates}
        own.save(updates, 10 * updates, {"x": np.full(64, updates, np.float32)}, {"made": made})
        mirror = Mirror(open_store(str(root), "dqn-s0", "1"), tmp_path / "own", 5, print)
        mirror.offer(own.names()[-1])
        mirror.close()
    return root


async def to_place(one, place: object) -> None:
    await one.press("colon", *"artifacts", "enter")
    await one.until(lambda: one.top == "ArtifactsScreen")
    if not one.field.display:
        await one.press("P")
        await one.until(lambda: one.field.display)
    one.field.value = str(place)
    await one.press("enter")


async def test_checkpoints_are_seen_compared_and_fetched_whole(desk, place, tmp_path):
    async with desk() as one:
        await to_place(one, place)
        await one.until(lambda: "10 updates" in one.words() and "20 updates" in one.words())
        assert "dqn-s0" in one.words()
        table = one.app.screen.query_one(VirtualTable)
        keys = sorted(table.model.rows)
        table.move_to(keys[0])
        await one.press("space")
        await one.until(lambda: table.marked)
        table.move_to(keys[1])
        await one.until(lambda: "100  →  200" in one.words() and "15  →  30" in one.words())
        assert "artifacts compare" in one.words()
        await one.press("D")
        await one.until(lambda: one.field.display)
        one.field.value = str(tmp_path / "best")
        await one.press("enter")
        await one.until(lambda: any("is whole" in said for said in one.says()))
        assert {each.name for each in (tmp_path / "best").iterdir()} == {
            f"{SECOND}.json",
            f"{SECOND}.safetensors",
        }
        await one.press("escape")
        await one.until(lambda: one.top == "ClusterScreen")


@pytest.mark.slow
async def test_a_run_trains_on_from_a_checkpoint_under_another_name(desk, place):
    async with desk() as one:
        run = next(iter((await one.backend.snapshot()).runs.values())).name
        for path in place.rglob("*.json"):
            _rename(path, run)
        await to_place(one, place)
        await one.until(lambda: "20 updates" in one.words())
        await one.press("R")
        await one.until(lambda: one.field.display)
        assert one.field.value == f"{run}-on"
        one.field.value = "Not A Name"
        await one.press("enter")
        await one.until(lambda: any("Not A Name" in said for said in one.says()))
        await one.press("R")
        await one.until(lambda: one.field.display)
        one.field.value = "went-on"
        await one.press("enter")
        await one.until(lambda: one.top == "ReviewScreen" and "Launch went-on" in one.words())
        assert "train.resume_from=" in one.words()
        await one.press("enter")
        await one.until(lambda: one.top == "ClusterScreen")
        spec = await one.backend.spec("went-on")
        assert Path(json.loads(spec.train)["resume_from"]).parent.parent == place
        assert spec.sets == (await one.backend.spec(run)).sets


def _rename(path: Path, run: str) -> None:
    """Let a manifest be of a run of this cluster, with a check sum that is right."""
    says = json.loads(path.read_text())
    says["facts"]["made"]["run"] = run
    del says["check"]
    says["check"] = hashlib.sha256(json.dumps(says, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(says))


async def test_what_cannot_be_had_is_said(desk, place, tmp_path):
    next(iter(sorted(place.rglob("*.json")))).write_text("{}")
    async with desk() as one:
        await to_place(one, "ftp://nowhere")
        await one.until(lambda: "ftp://nowhere is not a place for checkpoints" in one.words())
        await to_place_again(one, tmp_path / "empty")
        await one.until(lambda: "There is no folder" in one.words())
        await to_place_again(one, place)
        await one.until(lambda: "its manifest cannot be used" in one.words())
        await one.press("R")
        await one.until(lambda: one.field.display)
        one.field.value = "went-on"
        await one.press("enter")
        await one.until(lambda: any("cannot be used" in said for said in one.says()))
        assert one.top == "ArtifactsScreen"


async def to_place_again(one, place: object) -> None:
    await one.press("P")
    await one.until(lambda: one.field.display)
    one.field.value = str(place)
    await one.press("enter")


async def test_readonly_looks_and_takes_nothing(desk, place):
    async with desk(readonly=True) as one:
        await to_place(one, place)
        await one.until(lambda: "20 updates" in one.words())
        await one.press("D")
        await one.until(lambda: any("D (download) is off" in said for said in one.says()))
        assert not one.field.display


async def test_a_run_that_copies_its_checkpoints_nowhere_shows_those_in_its_own_folder(desk, place):
    backend = FakeBackend(owner=user_name())

    async def results(run: str) -> Path:
        return place

    backend.results = results
    async with desk(backend=backend) as one:
        await one.press("2", "C")
        await one.until(lambda: one.top == "ArtifactsScreen" and "20 updates" in one.words())
