"""Sharing a view: what one person sees, another opens by a link: filters, order, selection."""

from __future__ import annotations

import pytest

from l2rtui.backends.fake import FakeBackend
from l2rtui.config import Settings, user_name
from l2rtui.domain.selection.shared_view import SharedView, parse_view
from l2rtui.ui.app import L2RApp
from l2rtui.ui.home.selection import Pane
from tests.l2rtui.ui.textual_inside import notifications


def copied(one):
    return next(text.removeprefix("copied: ") for text in one.says() if text.startswith("copied: "))


async def opened(view, check):
    backend = FakeBackend(owner=user_name())
    app = L2RApp(Settings(backend="demo"), lambda: backend, clock=backend.now, view=view)
    async with app.run_test(size=(160, 45), notifications=True) as pilot:
        for _ in range(2_000):
            await pilot.pause(0.01)
            if app.screen is app.cluster and app.cluster.health.is_connected and app.shared_view is None:
                break
        await check(app, pilot)


@pytest.mark.slow
async def test_a_shared_view_opens_as_it_was(desk, tmp_path):
    async with desk(demo=True, has_toasts=True) as one:
        panes = one.cluster.panes
        await one.press("colon", *"pods status~R", "enter")
        await one.until(lambda: panes.focused_pane is Pane.PODS and panes.pods.model.filter_text)
        await one.press("colon", *"sort -restarts", "enter", "down", "down")
        await one.until(lambda: panes.pods.model.is_descending)
        shown = list(panes.pods.model.displayed)
        selected = one.cluster.snapshot.pods[panes.pods.cursor_key].name
        await one.press("colon", *"share", "enter")
        await one.until(lambda: any("copied" in text for text in one.says()))
        words = copied(one).split()
        assert words[:2] == ["l2rtui", "--view"]
        view = parse_view(words[2].strip("'"))
        await one.press("colon", *f"share {tmp_path}/view", "enter")
        await one.until((tmp_path / "view").exists)
        await one.until(lambda: parse_view((tmp_path / "view").read_text()) == view)
    assert (view.backend, view.pane, view.selected, view.has_all_pods) == ("demo", "pods", selected, True)

    async def check(app, pilot):
        panes = app.cluster.panes
        assert panes.focused_pane is Pane.PODS
        assert list(panes.pods.model.displayed) == shown
        assert app.cluster.snapshot.pods[panes.pods.cursor_key].name == selected
        assert app.cluster.sharing.current() == view
        assert not [text for text in notifications(app) if "not here" in text.message]

    await opened(view, check)


async def test_the_slot_under_the_cursor_is_shared(desk):
    async with desk() as one:
        await one.press("1", "right", "right", "down")
        slot = one.cluster.panes.slots.cursor_slot
        view = one.cluster.sharing.current()
    assert view.selected == str(slot)

    async def check(app, pilot):
        assert app.cluster.panes.focused_pane is Pane.SLOTS
        assert app.cluster.panes.slots.cursor_slot == slot

    await opened(view, check)


async def test_what_is_not_here_is_said_and_the_rest_is_shown():
    view = SharedView(
        pane="nodes", run="gone", selected="no-node", sorts=(("pods", "-weight"),), filters=(("nodes", "phortx1"),)
    )

    async def check(app, pilot):
        (sentence,) = [note.message for note in notifications(app) if "do not exist here" in note.message]
        assert "column weight of the pods, run gone, no-node" in sentence
        assert app.cluster.panes.nodes.model.filter_text == "phortx1"

    await opened(view, check)


async def test_a_filter_that_no_link_can_hold_is_said(desk):
    async with desk(has_toasts=True) as one:
        one.cluster.panes.runs.narrow(text="x" * 600)
        await one.press("colon", *"share", "enter")
        await one.until(lambda: any("filter.runs of the link has 600 characters" in text for text in one.says()))
