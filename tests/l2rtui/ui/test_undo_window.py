"""Undo window: a confirmed change begins after its seconds, unless it is undone before."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from textual.app import App

from l2rtui.ui.state.app_context import UndoWindow
from l2rtui.ui.state.background import Background
from l2rtui.ui.state.connection_status import ConnectionStatus, right_of


async def test_only_the_newest_change_is_undone_and_the_others_begin():
    app = App()
    begun: list[str] = []
    async with app.run_test():
        background = Background(app, lambda: None)
        window = UndoWindow(background)
        window.start("at once", 0.0, lambda: begun.append("at once"))
        assert begun == ["at once"]
        assert window.undo_newest() == ""
        is_begun = asyncio.Event()
        window.start("killing a", 0.05, is_begun.set)
        window.start("killing b", 60.0, lambda: begun.append("b"))
        async with asyncio.timeout(30):
            while "killing b" not in background.doing:
                await asyncio.sleep(0)
        assert window.undo_newest() == "killing b"
        async with asyncio.timeout(30):
            await is_begun.wait()
            while background.doing:
                await asyncio.sleep(0)
        assert window.undo_newest() == ""
        assert begun == ["at once"]


def test_work_on_many_runs_leaves_the_header_its_context_and_health():
    background = Background(App(), lambda: None)
    with ExitStack() as stack:
        for number in range(12):
            stack.enter_context(background.busy(f"destroying worker-pods-s{number}"))
        stack.enter_context(background.busy("launching racing-sac-s0, " + ", ".join(f"r{n}" for n in range(40))))
        doing = background.doing
        assert doing.startswith("destroying worker-pods-s0 and 11 more, launching racing-sac-s0, r0")
        health = ConnectionStatus("lab", is_readonly=False, is_connected=True, busy=doing)
        shown = "".join(span.text for span in right_of((), health))
        assert len(shown) < 90
        assert shown.endswith(" ● live ")
        with background.busy("killing 2 pods"):
            assert background.doing.endswith("killing 2 pods")
    assert background.doing == ""
