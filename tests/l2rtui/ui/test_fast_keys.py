"""Keys that come faster than screens: asked for twice, answered too early, asked for again while it is going."""

from __future__ import annotations

import asyncio

import pytest
from textual import events
from textual.geometry import Size

from l2rtui.errors import UsageError
from l2rtui.services import launcher
from l2rtui.ui.dialogs.dialog import DetailScreen
from l2rtui.ui.home.selection import Pane
from l2rtui.ui.text import Span
from l2rtui.ui.widgets.run_table import RunRows, run_row, sets_of
from tests.fakes.load_generator import generate_cluster


def strike(one, *keys: str) -> None:
    """Press keys without a pause between them."""
    for key in keys:
        one.app.post_message(events.Key(key, key if len(key) == 1 else None))


async def leave(one, home: str, key: str) -> None:
    """Close what came up behind the last key."""
    for _ in range(12):
        if one.top != home:
            await one.press("escape")
    await one.until(lambda: one.top == home, f"the home screen after {key}")
    assert one.fault is None, key


@pytest.mark.slow
@pytest.mark.timeout(600)  # many keys in one app
async def test_a_screen_that_is_opened_and_closed_in_a_breath_leaves_the_home_screen(desk, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with desk(size=(124, 34)) as one:
        home = one.top
        for key in ("L", "P", "d", "y", "m", "question_mark", "V"):
            for _ in range(3):
                strike(one, key, "escape")
                await asyncio.sleep(0)
                strike(one, key, "escape")
                await one.pilot.pause()
            await leave(one, home, key)


async def test_two_descriptions_may_be_asked_for_at_once(desk):
    async with desk(size=(124, 34)) as one:
        home = one.top
        lines = ((Span("told"),),)
        one.app.push_screen(DetailScreen(lines, "one"))
        one.app.push_screen(DetailScreen(lines, "two"))
        await one.until(lambda: "two" in one.words(), "the second description")
        strike(one, "escape", "escape")
        await one.until(lambda: one.top == home, "the home screen")


async def test_a_dialog_is_answered_once(desk):
    async with desk(size=(124, 34)) as one:
        home, answers = one.top, list[object]()
        dialog = DetailScreen(((Span("told"),),))
        one.app.push_screen(dialog, answers.append)
        dialog.dismiss(None)
        dialog.dismiss(None)
        await one.until(lambda: one.top == home, "the home screen")
        await one.until(lambda: answers, "the answer")
        dialog.dismiss(None)
        await one.pilot.pause()
        assert (one.top, answers) == (home, [None])


async def test_a_line_that_is_pasted_or_sent_by_a_script_reaches_its_field_whole(desk):
    async with desk() as one:
        strike(one, "3", "slash", *"lidar w-1", "enter")
        await one.until(
            lambda: not one.cluster.command_line.is_open and one.cluster.panes.pods.model.filter_text, "the filter"
        )
        assert one.cluster.panes.pods.model.filter_text == "lidar w-1"
        assert one.top == "ClusterScreen", "none of the letters was a key"
        assert one.cluster.focused is one.cluster.panes.pods


async def test_the_key_behind_a_filter_acts_on_what_the_filter_left(desk):
    async with desk(demo=True) as one:
        strike(one, "2", "j", "3", "slash", *(name := "racing-sac-s0-w-2"), "enter", "K")
        await one.until(lambda: one.top == "ConfirmScreen", "the question")
        await one.until(lambda: name in "".join(one.words().split("Kill")[1:]), "the pod's name")


async def test_a_letter_takes_the_place_of_the_search_before(desk):
    async with desk() as one:
        for text in ("first", "second"):
            strike(one, "5", "slash", *text, "enter")
            await one.until(lambda text=text: one.cluster.panes.log_pane.search == text, "the search")


async def test_a_command_and_the_key_behind_it(desk):
    async with desk() as one:
        strike(one, "colon", *"help", "enter", "escape", "colon", *"nodes", "enter", "d")
        await one.until(lambda: one.top == "DetailScreen", "the description")
        assert one.fault is None


async def test_a_paste_and_enter_behind_it(desk):
    async with desk() as one:
        strike(one, "3", "slash")
        one.app.post_message(events.Paste("lidar"))
        strike(one, "enter")
        await one.until(
            lambda: not one.cluster.command_line.is_open and one.cluster.panes.pods.model.filter_text, "the filter"
        )
        assert one.cluster.panes.pods.model.filter_text == "lidar"


async def test_a_pattern_that_is_pasted_behind_its_key_reaches_the_line_whole(desk):
    async with desk() as one:
        panes = one.cluster.panes
        for key, field in (("ampersand", "include"), ("exclamation_mark", "exclude")):
            strike(one, "5", key, *f"wKxn {field}", "enter")
            pattern = f"wKxn {field}"
            await one.until(
                lambda field=field, pattern=pattern: getattr(panes.log_pane.log_filter, field) == pattern,
                "the pattern",
            )
            assert (one.top, panes.focused_pane) == ("ClusterScreen", Pane.LOG)


async def test_the_name_of_a_file_may_follow_its_key_at_once(desk, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with desk() as one:
        await one.press("3")
        await one.until(lambda: one.cluster.panes.log_pane.received, "lines")
        strike(one, "5", "ctrl+s", *"kept.log", "enter")
        await one.until((tmp_path / "kept.log").exists, "the file")


async def test_a_span_of_time_is_of_the_pane_that_has_just_got_the_focus(desk):
    async with desk() as one:
        await one.press("5", "vertical_line")
        await one.until(
            lambda: (
                len(one.cluster.panes.logs.controllers) == 2
                and one.cluster.panes.logs.controllers[1].pane.has_focus
            )
        )
        strike(one, "x", "greater_than_sign", "greater_than_sign")
        await one.until(lambda: one.cluster.panes.logs.controllers[0].since == 2, "the last 5m of the first log")
        assert len(one.cluster.panes.logs.controllers) == 1


async def test_a_log_that_is_closed_twice_is_closed_once(desk):
    async with desk() as one:
        await one.press("5", "vertical_line")
        await one.until(
            lambda: (
                one.cluster.panes.logs.controllers[-1].pane.has_focus
                and len(one.cluster.panes.logs.controllers) == 2
            )
        )
        strike(one, "x", "x", "2")
        await one.until(lambda: len(one.cluster.panes.logs.controllers) == 1, "the first log alone")
        await one.pilot.pause()
        assert one.fault is None


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_enter_right_behind_a_key_that_opens_something_ends_nothing(desk, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with desk(size=(124, 34)) as one:
        home = one.top
        before = await one.backend.snapshot()
        for key in ("L", "P", "V", "I", "C", "i", "m", "colon"):
            strike(one, "3", key, "enter")
            await one.pilot.pause()
            await leave(one, home, key)
        assert await one.backend.snapshot() == before


@pytest.mark.parametrize("is_sound", [True, False])
async def test_a_plan_that_is_ready_when_its_form_is_closed_shows_nothing(desk, monkeypatch, is_sound):
    """Enter there would launch it."""
    may_go_on, prepared = asyncio.Event(), launcher.prepare

    async def slow(*args, **kwargs):
        await may_go_on.wait()
        try:
            if not is_sound:
                raise UsageError("It cannot be.", "Do not.")
            return await prepared(*args, **kwargs)
        finally:
            asyncio.get_running_loop().call_soon(ended.set)

    ended = asyncio.Event()
    monkeypatch.setattr(launcher, "prepare", slow)
    async with desk() as one:
        home = one.top
        await one.press("L")
        await one.until(lambda: "racing-sac.yaml" in one.words(), "the examples")
        await one.press("enter", "escape")
        await one.until(lambda: one.top == home, "the home screen")
        may_go_on.set()
        await ended.wait()
        await one.pilot.pause()
        assert (one.top, one.fault) == (home, None)


async def test_a_path_may_be_typed_where_an_example_is_chosen(desk):
    async with desk() as one:
        await one.press("L")
        await one.until(lambda: "racing-sac.yaml" in one.words(), "the examples")
        strike(one, *"manifests/none.yaml", "enter")
        await one.until(lambda: "none.yaml" in one.words() and "here is no" in one.words(), "what is wrong with it")
        assert one.top == "LaunchScreen"


async def test_keys_behind_a_step_of_the_cursor_act_on_the_row_it_has_reached(desk):
    async with desk() as one:
        pods = one.cluster.panes.pods
        await one.press("2", "j", "3", "g")
        second = one.cluster.snapshot.pods[pods.model.displayed[1]].name
        strike(one, "j", "K")
        await one.until(lambda: one.top == "ConfirmScreen", "the question")
        await one.until(lambda: second in "".join(one.words().split("Kill")[1:]), "the second pod's name")


@pytest.mark.slow
async def test_a_key_that_nothing_took_does_not_answer_a_question_that_comes_behind_it(desk):
    async with desk() as one:
        await one.press("2", "j", "3", "g")
        before = set(one.cluster.snapshot.pods)
        strike(one, "Y", "enter", "3", "K")  # enter goes from the pods to their log, and is none of the question's
        await one.until(lambda: one.top == "ConfirmScreen", "the question")
        for _ in range(20):
            await one.pilot.pause()
        assert one.top == "ConfirmScreen"
        assert set(one.cluster.snapshot.pods) == before


def test_rows_that_were_made_ahead_are_shown_only_while_they_are_true():
    snapshot = generate_cluster(60, 1_000.0)
    pods = {run.name: snapshot.pods_of(run.name) for run in snapshot.runs.values()}
    rows, first = RunRows(), next(iter(snapshot.runs.values()))
    sets = sets_of(snapshot.runs.values())

    rows.make_ahead(snapshot.runs.values(), pods.__getitem__)
    plain = run_row(first, pods[first.name], None, sets)
    assert rows.row(first, pods[first.name], None, sets) == plain

    rows.make_ahead(snapshot.runs.values(), pods.__getitem__)
    fewer = pods[first.name][1:]
    assert rows.row(first, fewer, None, sets) == run_row(first, fewer, None, sets) != plain
    rows.make_ahead(snapshot.runs.values(), pods.__getitem__)
    assert rows.row(first, pods[first.name], None, ()) == run_row(first, pods[first.name], None, ())


async def test_slots_are_drawn_on_a_narrower_terminal_before_they_hear_of_it(desk, monkeypatch):
    async with desk(size=(160, 45)) as one:
        grid = one.app.cluster.panes.slots
        grid.move_to(max(grid.snapshot.ledger.slots, key=lambda slot: grid.slots[slot].x))
        # As Textual has it for a moment when a screen comes up again.
        monkeypatch.setattr(type(grid), "size", Size(60, grid.size.height))
        lines = [grid.render_line(y) for y in range(grid.size.height)]
        assert {line.cell_length for line in lines} == {60}
