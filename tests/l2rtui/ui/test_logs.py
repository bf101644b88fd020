"""Logs side by side: panes that keep what they show, patterns, spans, markers, saving."""

from __future__ import annotations

import asyncio
import re

import pytest

from l2rtui.backends.fake import FakeBackend
from l2rtui.domain.log import LogLine
from l2rtui.errors import BackendError


async def test_up_to_four_panes_keep_what_they_were_opened_with(desk):
    async with desk(demo=True) as one:
        logs = one.cluster.panes.logs
        for number in range(3):
            await one.press("vertical_line", "down")  # the list keeps the focus: the next row can be kept too
            await one.until(lambda number=number: len(logs.controllers) == number + 2)
            assert one.cluster.panes.focused_pane == "runs"
        await one.press("vertical_line")
        await one.until(lambda: any("Four panes are open" in sentence for sentence in one.says()))
        assert len(logs.controllers) == 4
        await one.until(lambda: all(len(log.pane.ring) for log in logs.controllers))
        assert len({log.selection.title for log in logs.controllers}) == 3
        await one.press("5")
        for left in (3, 2, 1):
            await one.press("x")
            await one.until(lambda left=left: len(logs.controllers) == left)
        await one.press("x")
        await one.until(lambda: any("last log stays" in sentence for sentence in one.says()))


async def test_a_screenshot_shows_the_pane_from_which_it_was_asked_for(desk, tmp_path):
    async with desk(size=(120, 40)) as one:
        await one.press("5")
        keys = one.words().splitlines()[-1]
        await one.press("colon", *f"screenshot {tmp_path}/x.txt", "enter")
        await one.until(lambda: any("x.txt" in sentence for sentence in one.says()))
        lines = (tmp_path / "x.txt").read_text().splitlines()
        assert next(line for line in lines if " 5 Log " in line)[0] == "┏"
        assert lines[-1].rstrip() == keys.rstrip()


async def test_a_log_that_may_not_be_read_is_told_once(desk, monkeypatch):
    async def refuses(_backend, pod, _query):
        raise BackendError(f"You may not read the log of {pod.name}.")
        yield

    monkeypatch.setattr(FakeBackend, "logs", refuses)
    async with desk() as one:
        stream, pane = one.cluster.panes.logs.active.stream, one.cluster.panes.log_pane
        await one.until(lambda: not stream.is_open)
        texts = [entry.text for entry in pane.ring if "may not read" in entry.text]
        assert texts
        assert len(texts) == len(set(texts))


@pytest.mark.slow
async def test_marked_pods_are_one_log_with_a_colour_and_a_prefix_each(desk):
    async with desk() as one:
        await one.press("A", "3", "g", "space", "space", "space", "l")
        await one.until(lambda: one.cluster.panes.logs.active.selection.title == "3 marked pods")
        pane = one.cluster.panes.log_pane
        await one.until(lambda: len({entry.pod for entry in pane.ring}) == 3)
        assert len(set(pane.hues.values())) == 3


async def test_patterns_hide_lines_that_are_there_and_lines_that_come(desk):
    async with desk() as one:
        pane = one.cluster.panes.log_pane
        await one.press("5", "ampersand", *"learner", "enter")
        await one.until(lambda: pane.log_filter.include == "learner" and len(pane.ring))
        assert all("learner" in f"{entry.pod} {entry.text}" for entry in pane.ring)
        pane.extend([LogLine(1.0, "p", "a learner"), LogLine(2.0, "p", "something else")])
        assert pane.ring[len(pane.ring) - 1].text == "a learner"
        await one.press("exclamation_mark", *"a l", "enter")
        await one.until(lambda: pane.log_filter.exclude == "a l")
        assert not any("a learner" in entry.text for entry in pane.ring)
        await one.press("ampersand", *[key for _ in "learner" for key in ["backspace"]], *"((", "enter")
        await one.until(lambda: any("is no pattern" in sentence for sentence in one.says()))
        assert pane.log_filter.include == "learner"


@pytest.mark.slow
async def test_a_pattern_that_would_take_years_is_refused(desk):
    async with desk() as one:
        pane = one.cluster.panes.log_pane
        await one.press("5", "ampersand", *"reward", "enter")
        await one.until(lambda: pane.log_filter.include == "reward")
        pane.extend([LogLine(1.0, "p", f"reward {'a' * 4_000}!")])
        for key in ("ampersand", "exclamation_mark"):
            one.app.clear_notifications()
            await one.press(key, *["backspace"] * len("reward"), *"(a+)+$", "enter")
            await one.until(lambda: any("'(a+)+$'" in text and "takes too long" in text for text in one.says()))
            assert (pane.log_filter.include, pane.log_filter.exclude) == ("reward", "")
            assert "aaaa" in one.words(), "the log is as it was"
        await one.press("4")
        await one.until(lambda: one.app.focused is one.cluster.panes.nodes)


@pytest.mark.slow
async def test_a_pattern_that_takes_too_long_on_lines_that_come_is_removed(desk):
    async with desk(demo=True) as one:
        pane = one.cluster.panes.log_pane
        await one.press("5", "ampersand", *"(a+)+$", "enter")
        await one.until(lambda: pane.log_filter.include)
        pane.extend([LogLine(1.0, "p", f"{'a' * 4_000}!"), LogLine(2.0, "p", "the line behind it")])
        await one.until(lambda: any("& and ! hide nothing now" in text for text in one.says()))
        await one.until(lambda: "the line behind it" in one.words())
        assert not pane.log_filter.include
        assert not pane.hidden


async def last_of(progress):
    """Return what a destroy has yielded last."""
    return [step async for step in progress][-1]


async def test_the_log_of_a_run_that_is_gone_is_not_called_followed(desk):
    async with desk() as one:
        panes = one.cluster.panes
        await one.until(lambda: "following" in str(panes.log_pane.border_title))
        for run in one.cluster.snapshot.runs.values():
            destroying = asyncio.create_task(last_of(one.backend.destroy(run, grace_seconds=0.0)))
            await one.pass_time(60.0, destroying.done)
        await one.until(lambda: "ended" in str(panes.log_pane.border_title))
        assert "following" not in str(panes.log_pane.border_title)


async def test_records_are_a_table_again_when_a_pattern_is_taken_away(desk):
    async with desk(demo=True, ready=False) as one:
        pane = one.cluster.panes.log_pane
        await one.until(lambda: any(entry.is_row for entry in pane.ring))
        await one.press("5", "ampersand", *"l2r", "enter")
        await one.until(lambda: pane.log_filter.include)
        await one.press("ampersand", *["backspace"] * len("l2r"), "enter")
        await one.until(lambda: not pane.log_filter.include)
        assert any(entry.is_row for entry in pane.ring)
        assert not any(entry.text.startswith("{") for entry in pane.ring)


async def test_a_log_that_its_patterns_hide_is_not_said_to_be_empty(desk):
    async with desk() as one:
        await one.press("5", "ampersand", *"no such text", "enter")
        await one.until(lambda: "The patterns (& and !) hide all lines" in one.words())
        assert "Nothing has been written" not in one.words()


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_a_log_that_is_still_read_is_not_said_to_be_empty(desk, monkeypatch, size):
    has_answered = asyncio.Event()

    async def answers_late(_backend, _pod, _query):
        await has_answered.wait()
        return
        yield

    monkeypatch.setattr(FakeBackend, "logs", answers_late)
    async with desk(demo=True, size=size, ready=False) as one:
        await one.press("exclamation_mark")
        await one.until(lambda: "Loading…" in one.words())
        assert "Nothing has been written" not in one.words()
        has_answered.set()
        await one.until(lambda: "Nothing has been written yet." in one.words())
        assert "Loading…" not in one.words()


async def test_a_key_chooses_how_far_back_and_save_writes_what_is_shown(desk, tmp_path):
    async with desk(demo=True) as one:
        desk_ = one.cluster.panes.logs.controllers[0]
        await one.press("5", "greater_than_sign", "greater_than_sign", "less_than_sign")
        await one.until(lambda: desk_.selection.since_seconds == 60.0)
        await one.until(lambda: "last 1m" in str(desk_.pane.border_title))
        await one.press("M", "J")
        await one.until(lambda: any("marked at" in entry.text for entry in desk_.pane.ring))
        assert any(entry.text.startswith('{"l2r"') for entry in desk_.pane.ring)
        await one.press("ctrl+s")
        one.cluster.command_line.prompt.value = str(tmp_path / "out.log")
        await one.press("enter")
        await one.until((tmp_path / "out.log").exists)
        assert len((tmp_path / "out.log").read_text().splitlines()) == len(desk_.pane.ring)
        await one.press("5", "ctrl+s")
        one.cluster.command_line.prompt.value = str(tmp_path / "out.log")
        await one.press("enter")
        await one.until(lambda: any("it is there already" in sentence for sentence in one.says()))


async def test_the_command_line_of_a_log_says_all_that_the_pane_shows(desk):
    async with desk() as one:
        await one.press("5", *["greater_than_sign"] * 2, "ampersand", *"reward", "enter")
        await one.until(lambda: one.cluster.panes.log_pane.log_filter.include)
        name = one.cluster.panes.logs.active.selection.title
        assert (
            one.cluster.log_actions.cli_equivalent()
            == f"l2rtui --backend demo logs {name} -f --since 5m --grep reward"
        )
        await one.press("c")
        assert one.app.clipboard == one.cluster.log_actions.cli_equivalent()


async def test_digits_go_to_panes_from_the_log_too(desk):
    async with desk() as one:
        for digit, pane in (("2", "runs"), ("3", "pods"), ("4", "nodes"), ("1", "slots")):
            await one.press("5")
            assert one.app.focused is one.cluster.panes.log_pane
            await one.press(digit)
            assert one.app.focused.id == pane


async def test_four_logs_stand_in_two_rows_where_one_row_leaves_them_too_little_text(desk):
    async with desk(demo=True, size=(160, 45)) as one:
        logs = one.cluster.panes.logs
        await one.press("5", "z", "vertical_line", "vertical_line", "vertical_line")
        await one.until(lambda: len(logs.controllers) == 4 and logs.controllers[3].pane.size.width)
        await one.until(lambda: {log.pane.region.y for log in logs.controllers} != {logs.region.y})
        assert all(log.pane.size.width >= 70 for log in logs.controllers)
        first, *others = [str(log.pane.border_title) for log in logs.controllers]
        assert "9 pods" in first
        assert all("pinned" in title and "9 pods" not in title for title in others)
        await one.press("x", "x", "x")
        await one.until(lambda: logs.controllers[0].pane.size.width >= 155)


@pytest.mark.slow
async def test_the_menu_holds_what_applies_to_the_selected_object(desk):
    async with desk() as one:

        async def ids(*keys: str) -> set[str]:
            await one.press(*keys, "m")
            await one.until(lambda: one.top == "MenuScreen")
            choices = one.app.screen.query_one("#choices")
            names = {choices.get_option_at_index(number).id for number in range(choices.option_count)}
            assert not re.search(r"\wl2rtui ", one.words()), "a column between text and command"
            assert len(names) == choices.option_count <= 12
            await one.press("escape")
            return names

        assert {"run.destroy", "run.relaunch", "view.spec"} <= (of_run := await ids("2", "down"))
        assert not {"pod.shell", "pod.simulators", "set.grow"} & of_run
        assert not {"set.grow", "run.destroy"} & await ids("right"), "a learner alone is not scaled"
        assert {"set.grow", "set.shrink"} <= await ids("right")
        assert {"pod.shell", "pod.attach", "log.previous"} <= (of_pod := await ids("escape", "3"))
        assert not {"pod.simulators", "run.relaunch"} & of_pod
        assert {"pod.simulators", "pod.shell"} <= await ids("G")
        assert await ids("4") == {"view.detail", "run.place", "run.launch"}
