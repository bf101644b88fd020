"""Text from outside can only be shown: no name, message or log line reaches the terminal as an order."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace
from textual.worker import WorkerFailed

from l2rtui.backends.fake import FakeBackend
from l2rtui.domain.ledger import DeviceUsage
from l2rtui.domain.log import LogLine
from l2rtui.domain.node import Gpu, Node
from l2rtui.domain.snapshot import PodView
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import Role
from l2rtui.errors import BackendError
from tests.l2rtui.ui.textual_inside import background_screens, compositor

EVIL = (
    "\x1b]52;c;ZXZpbA==\x07\x1b]0;title\x07\x1b[2J\x1b[6n\x9b31m\x90q\x9c\u202e\u200b\x07\r\n\t"
    "[red]markup[/red][@click=app.quit]x[/] $(reboot)"
)
FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200b-\u200f]")


def terminal_bytes(app) -> str:
    """What is written to the terminal for the whole screen, without the renderer's own sequences."""
    from rich.console import Console

    size = app.size
    update = compositor(app.screen).render_update(full=True, screen_stack=background_screens(app))
    console = Console(width=size.width, height=size.height, force_terminal=True, color_system="truecolor")
    written = update.render_segments(console)
    return re.sub(r"\x1b\[[0-9;]*[mH]", "", written)


async def test_no_text_from_outside_reaches_the_terminal_as_an_order(desk):
    backend = FakeBackend(is_empty=True)
    backend.put_node(Node(f"n{EVIL}", (Gpu(f"n{EVIL}", 0, model=EVIL),), message=EVIL))
    pod = PodView(
        "uid",
        f"p{EVIL}",
        node=f"n{EVIL}",
        owner=EVIL,
        run=EVIL,
        set_name=EVIL,
        role=Role.WORKER,
        devices=(DeviceUsage(0, 0),),
        phase=Phase.PENDING,
        reason=EVIL,
        message=EVIL,
    )
    backend.put_pod(pod)
    async with desk(backend=backend, ready=False) as one:
        one.app.ctx.is_admin = True
        await one.until(lambda: len(one.cluster.panes.pods.model.rows))
        one.cluster.panes.log_pane.extend([LogLine(1.0, f"p{EVIL}", EVIL), LogLine(2.0, "p", EVIL, is_mark=True)])
        await one.press("A", "3")
        screens = [terminal_bytes(one.app)]
        assert "[red]markup[/red]" in screens[0]
        for keys in (["d"], ["escape", "K"], ["escape", "1", "d"], ["escape", "question_mark"]):
            await one.press(*keys)
            await one.pilot.pause()
            screens.append(terminal_bytes(one.app))
        await one.press("escape")
        one.app.background.say(f"failed: {EVIL}", is_error=True, title=EVIL)
        backend.outage = EVIL
        backend.advance(1)
        await one.until(lambda: "stale" in one.words())
        backend.put_pod(replace(pod, uid="other"))
        await one.pilot.pause(0.2)
        screens.append(terminal_bytes(one.app))
        for screen in screens:
            assert not FORBIDDEN.search(screen.replace("\n", "")), FORBIDDEN.findall(screen.replace("\n", ""))


async def test_an_error_of_the_backend_is_shown_as_it_is(desk):
    async with desk() as one:

        async def broken(*_):
            raise BackendError(f"cannot kill {EVIL}", "[b]Try again.[/b]")

        one.backend.kill = broken
        await one.press("2", "down", "3", "K", "y")
        await one.until(one.says)
        assert "[b]Try again.[/b]" in one.says()[0]
        assert not FORBIDDEN.search(terminal_bytes(one.app).replace("\n", ""))


async def test_a_defect_ends_the_app_with_a_report_that_holds_no_values(desk, capsys):
    async def explode():
        secret = "hunter2"
        raise ValueError(f"no {len(secret)}")

    apps = []

    async def work():
        async with desk() as one:
            apps.append(one.app)
            one.app.background.start(explode(), group="test", what="a defect")
            await one.until(lambda: one.fault)

    with pytest.raises(WorkerFailed, match="no 7"):
        await work()
    report = capsys.readouterr().err
    assert "ValueError: no 7" in report
    assert "hunter2" not in report
    assert apps[0].return_code == 1
