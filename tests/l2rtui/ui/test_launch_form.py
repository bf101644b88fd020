"""Launch form: templates to choose from, and pods that start in waves."""

from __future__ import annotations

import re
from pathlib import Path

from textual.widgets import Input, Static

from l2rtui.services.spec import templates

SPEC = Path(__file__).parents[3] / "manifests" / "cartpole-ppo.yaml"


async def test_a_template_is_chosen_and_starts_in_waves(desk, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    templates.save("night", str(SPEC))
    async with desk(size=(120, 40), ready=False) as one:
        await one.press("L")
        await one.until(lambda: re.search("night +template · ", one.words()))
        await one.until(lambda: one.app.screen.query_one("#spec", Input).value == "night")
        one.app.screen.query_one("#wave", Input).value = "2"
        await one.press("enter")
        await one.until(lambda: one.top == "ReviewScreen")
        await one.until(lambda: "launch -t night --wave 2" in one.words())
        assert one.app.screen._prepared.plan.wave == 2
        await one.press("enter")
        await one.until(lambda: one.cluster.snapshot.run_named("cartpole-ppo"))
        launched = one.cluster.snapshot.run_named("cartpole-ppo").uid
        await one.until(lambda: one.cluster.panes.runs.cursor_key == launched, "the new run is selected")


async def test_waves_that_are_no_number_are_a_sentence(desk):
    async with desk(size=(80, 24), ready=False) as one:
        await one.press("L")
        await one.until(lambda: one.top == "LaunchScreen")
        await one.until(lambda: one.app.screen.query_one("#spec", Input).value)
        for text in ("-1", "x", "1e9", "123456789"):
            one.app.screen.query_one("#wave", Input).value = text
            await one.press("enter")
            await one.until(lambda t=text: f"{t!r} is no number of pods." in _error(one), text)
        assert one.top == "LaunchScreen"


async def test_the_command_line_takes_the_name_of_a_template(desk, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    templates.save("night", str(SPEC))
    async with desk(size=(120, 40), ready=False) as one:
        await one.press("colon", *"place ni", "tab")
        await one.until(lambda: "place night" in one.words())
        await one.press("enter")
        await one.until(lambda: one.top == "PlaceScreen")
        await one.until(lambda: "cartpole-ppo" in one.words())


def _error(one) -> str:
    return str(one.app.screen.query_one("#error", Static).render())
