"""Pictures of the screens at three sizes, with the clock standing still; ``--snapshot-update`` renews them."""

from __future__ import annotations

import pytest

from l2rtui.backends.fake import FakeBackend
from l2rtui.config import Settings
from l2rtui.ui.app import L2RApp

pytestmark = pytest.mark.usefixtures("without_frames")


def still_app() -> L2RApp:
    backend = FakeBackend(owner="me")
    return L2RApp(Settings(backend="demo"), lambda: backend, clock=backend.now)


async def settle(pilot) -> None:
    """Wait for everything that comes by itself: rows, numbers, the log of the selection."""
    cluster = pilot.app.cluster
    for _ in range(1000):
        await pilot.pause(0.02)
        is_quiet = not cluster.is_settling and not cluster.panes.log_pane.is_redrawing
        run = cluster.panes.selection.run(cluster.snapshot)
        pods = cluster.snapshot.pods_of(run.name, "w") if run is not None else ()
        is_quiet = is_quiet and all(pod.uid in cluster.content.records for pod in pods if pod.ready)
        if is_quiet and len(cluster.metrics) == 3 and len(cluster.panes.log_pane.ring):
            return
    raise AssertionError("the screen does not come to rest")


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (160, 45)], ids=str)
def test_home(snap_compare, size):
    async def before(pilot) -> None:
        await settle(pilot)
        await pilot.press("down")
        await settle(pilot)

    assert snap_compare(still_app(), terminal_size=size, run_before=before)


def test_destroy_question(snap_compare, monkeypatch):
    monkeypatch.setattr("l2rtui.ui.dialogs.questions.user_name", lambda: "me")

    async def before(pilot) -> None:
        await settle(pilot)
        await pilot.press("down")
        await settle(pilot)
        await pilot.press("ctrl+d")

    assert snap_compare(still_app(), terminal_size=(80, 24), run_before=before)


def test_help(snap_compare):
    async def before(pilot) -> None:
        await settle(pilot)
        await pilot.press("question_mark")

    assert snap_compare(still_app(), terminal_size=(120, 40), run_before=before)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (160, 45)], ids=str)
def test_place_mode(snap_compare, size, tmp_path, monkeypatch):
    (tmp_path / "manifests").mkdir()
    sets = ", ".join(f"{{name: w{number}}}" for number in range(4))
    spec = f"kind: learner-workers\nname: grid\nlearner: {{slots: 0}}\nworkers: [{sets}]\n"
    (tmp_path / "manifests" / "grid.yaml").write_text(spec, "utf-8")
    monkeypatch.chdir(tmp_path)

    async def before(pilot) -> None:
        await settle(pilot)
        await pilot.press("P")
        for _ in range(1000):
            await pilot.pause(0.02)
            if pilot.app.screen.draft.specs:
                break
        await pilot.press("s", *"0-5", "enter", "a")
        for _ in range(1000):
            await pilot.pause(0.02)
            if pilot.app.screen.facts is not None:
                break

    assert snap_compare(still_app(), terminal_size=size, run_before=before)


def test_charts(snap_compare):
    async def before(pilot) -> None:
        await settle(pilot)
        await pilot.press("8")
        await settle(pilot)

    assert snap_compare(still_app(), terminal_size=(120, 40), run_before=before)
