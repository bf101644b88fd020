"""Errands and the most keys that they may take, pressed and counted."""

from __future__ import annotations

import json
import re

from l2rtui.backends.fake import FakeBackend
from l2rtui.config import user_name
from l2rtui.domain.history import Ending, HistoryEntry, HistoryRecord, LaunchFacts, RunOutcome
from l2rtui.domain.node import Gpu, Node
from l2rtui.services.history.launch_facts import spec_text
from l2rtui.services.history.store import HistoryStore
from l2rtui.services.spec import spec_file
from l2rtui.ui.widgets.virtual_table import VirtualTable

SPEC = """# A GPU for each seed
kind: learner-workers
name: drive
workers: [{name: w, replicas: 2}]
evaluator: {name: eval}
train: {environment: racing}
"""


def counted(most: int, *keys: str) -> tuple[str, ...]:
    assert len(keys) <= most
    return keys


async def test_three_seeds_on_exact_gpus_take_twelve_keys_and_their_curves_one_more(desk, tmp_path, monkeypatch):
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "drive.yaml").write_text(SPEC, "utf-8")
    monkeypatch.chdir(tmp_path)
    backend = FakeBackend(is_empty=True, owner=user_name())
    backend.put_node(Node("n0", tuple(Gpu("n0", index) for index in range(8))))
    async with desk(backend=backend, ready=False) as one:
        keys = counted(12, "P", "s", *"0-2", "enter", "V", "w", "w", "space", "enter", "enter")
        await one.press(keys[0])
        await one.until(lambda: one.top == "PlaceScreen" and one.app.screen.draft.specs, "the spec")
        await one.press(*keys[1:-1])
        await one.until(lambda: one.top == "ReviewScreen")
        await one.press(keys[-1])
        runs = one.cluster.panes.runs
        await one.until(lambda: one.top == "ClusterScreen" and len(runs.marked) == 3, "the runs are selected")
        snapshot = await backend.snapshot()
        places = {
            run.name: {(slot.node, slot.gpu) for pod in snapshot.pods_of(run.name) for slot in pod.slots}
            for run in snapshot.runs.values()
        }
        assert places == {f"drive-s{seed}": {("n0", seed)} for seed in range(3)}
        await one.press(*counted(4, "8"))
        await one.until(lambda: all(f"drive-s{seed}" in one.words() for seed in range(3)))
        assert one.cluster.panes.charts.display


async def test_curves_of_three_runs_are_compared_in_four_keys(desk):
    async with desk(demo=True, ready=False) as one:
        await one.until(lambda: len(one.cluster.metrics) == 3)
        await one.press(*counted(4, "asterisk", "8"))
        charts = one.cluster.panes.charts
        await one.until(lambda: len(charts.groups) == 3, "a line for each run")


async def test_why_a_run_does_not_learn_is_one_key(desk):
    async with desk(demo=True, ready=False) as one:
        await one.until(lambda: len(one.cluster.metrics) == 3)
        await one.press(*counted(1, "exclamation_mark"))
        await one.until(lambda: "✖ racing-sac-s1 racing-sac-s1-w-3" in one.words())
        await one.until(lambda: "137" in one.words() and "1 of 4" in one.words(), "what is wrong, and its effect")


async def test_all_of_ones_own_runs_are_destroyed_in_four_keys(desk):
    async with desk(ready=False) as one:
        me = {run.name for run in one.cluster.snapshot.runs.values() if run.owner == user_name()}
        assert me
        assert len(one.cluster.snapshot.runs) > len(me)
        keys = counted(4, "o", "asterisk", "ctrl+d", "y")
        await one.press(*keys[:-1])
        await one.until(lambda: one.top == "ConfirmScreen")
        assert re.search(f"Cancel  esc +Destroy  {keys[-1]} ", one.words()), "each button names its key"
        await one.press(keys[-1])
        await one.until(lambda: one.top == "ReceiptScreen")

        def is_gone() -> bool:
            one.backend.advance(1)
            return not me & {run.name for run in one.cluster.snapshot.runs.values()}

        await one.until(is_gone)
        assert one.cluster.snapshot.runs


async def test_a_past_run_is_launched_again_with_one_setting_changed_in_twelve_keys(desk, tmp_path):
    path = tmp_path / "old.yaml"
    path.write_text(SPEC, "utf-8")
    spec = spec_file.load(str(path)).spec
    times = 1.7e9, 1.7e9 + 60
    entry = HistoryEntry("drive", "a" * 32, "drive", 0, RunOutcome.DONE, *times, 1e5, 1.0, 1.0, backend="demo")
    with HistoryStore() as store:
        store.put([HistoryRecord(entry, LaunchFacts(spec_text(spec)), Ending(RunOutcome.DONE, times[1]))])
    async with desk(ready=False) as one:
        keys = counted(12, "H", "e", *"gamma=.9", "enter", "enter")
        await one.press(keys[0])
        await one.until(
            lambda: one.top == "HistoryScreen" and one.app.screen.query_one(VirtualTable).cursor_key, "the history"
        )
        await one.press(*keys[1:-1])
        await one.until(lambda: one.top == "ReviewScreen")
        await one.until(lambda: "launch --like aaaaaaaa --with gamma=.9" in one.words())
        await one.press(keys[-1])
        await one.until(lambda: one.cluster.snapshot.run_named("drive"))
        assert json.loads((await one.backend.spec("drive")).train)["sac"] == {"gamma": 0.9}
