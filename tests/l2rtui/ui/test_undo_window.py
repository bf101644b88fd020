"""Undo window: a confirmed change begins after its seconds, unless it is undone before."""

from __future__ import annotations

import asyncio

from textual.app import App

from l2rtui.ui.state.background import Background
from l2rtui.ui.state.undo_window import UndoWindow


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
