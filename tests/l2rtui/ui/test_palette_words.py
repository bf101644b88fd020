"""Words by which people look for an action in the palette."""

from __future__ import annotations

import pytest
from textual.command import CommandList, CommandPalette

from l2rtui.ui.keys.palette import COMMANDS, SYNONYMS, is_meant
from l2rtui.ui.keys.table import KEYS

ACTIONS = [(entry.name, entry.tooltip) for entry in (*KEYS, *COMMANDS)] + [("charts", "")]


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("stop", "destroy"), ("restart", "kill"), ("restart", "relaunch"), ("undo", "cancel"),
        ("metrics", "charts"), ("plot", "charts"), ("curve", "charts"), ("tail", "log"), ("port", "forward"),
        ("queue", "owners"),
        ("colours", "theme"), ("settings", "reload"), ("yaml", "spec"), ("checkpoints", "artifacts"),
        ("search", "filter"), ("compare", "past runs"), ("quota", "owners"), ("errors", "faults"),
    ],
)  # fmt: skip
def test_a_word_of_others_finds_the_action(word, name):
    assert name in [action for action, sentence in ACTIONS if is_meant(word, action, sentence)]


def test_synonyms_are_of_actions_that_there_are():
    assert set(SYNONYMS) <= {name for name, _ in ACTIONS}


async def test_the_palette_finds_an_action_by_a_word_of_others(desk):
    async with desk(demo=True) as one:
        await one.press("ctrl+p", *"tail")
        await one.until(lambda: isinstance(one.app.screen, CommandPalette))

        def hits() -> str:
            return " ".join(str(option.prompt) for option in one.app.screen.query_one(CommandList).options)

        await one.until(lambda: "log" in hits())


async def test_the_help_screen_searches_as_the_palette_does(desk):
    async with desk(ready=False) as one:
        await one.press("question_mark", *"restart")
        await one.until(lambda: one.top == "HelpScreen" and "Kill pods, which come back" in one.words())
        await one.until(lambda: "Launch a run again" in one.words() and "Destroy a run" not in one.words())
        await one.press(*["backspace"] * 7, *"xyzzy")
        await one.until(lambda: "No key or command says 'xyzzy'" in one.words())
        await one.press("ctrl+u", "pagedown")
        body = one.app.screen.query_one("#body")
        await one.until(lambda: body.scroll_y > 0)
        await one.press("escape")
        await one.until(lambda: one.top == "ClusterScreen")


async def test_a_colon_leads_from_the_help_to_the_prompt(desk):
    async with desk(ready=False) as one:
        await one.press("question_mark", "colon")
        await one.until(lambda: one.top == "ClusterScreen" and one.cluster.command_line.is_open)
