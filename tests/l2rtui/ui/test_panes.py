"""Panes of the home screen: the room that each takes, sizes by keys and mouse, and what the next start keeps."""

from __future__ import annotations

import asyncio
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from l2rtui.config import state_dir
from l2rtui.ui.dialogs.dialog import DetailScreen
from l2rtui.ui.home.pane_sizes import Need, ScreenState, heights, read_screen_state, write_screen_state
from l2rtui.ui.text import Span, TextStyle
from l2rtui.ui.widgets.grid.shape import ZoomLevel
from l2rtui.ui.widgets.metric_strip import MetricStrip
from tests.fakes.load_generator import PER_RUN, LoadBackend
from tests.l2rtui.ui.test_widgets import stage

SHARES = st.none() | st.floats(0.02, 0.95)
NEEDS = st.lists(st.builds(Need, st.integers(1, 12), st.integers(1, 200), st.integers(1, 5), SHARES), min_size=1)


@given(st.integers(1, 120), NEEDS)
def test_all_lines_are_divided_and_no_pane_has_less_than_one(total, needs):
    result = heights(total, needs)
    assert len(result) == len(needs)
    assert min(result) >= 1
    assert sum(result) == max(total, len(needs))


def test_a_long_list_gets_the_lines_that_an_empty_log_would_waste():
    full = heights(40, [Need(8, 8), Need(5, 65, 4), Need(5, 12, 4), Need(5, 10_000, 5)])
    empty = heights(40, [Need(8, 8), Need(5, 65, 4), Need(5, 12, 4), Need(5, 5, 5)])
    assert empty[1] > full[1] + 3
    assert empty[3] == 5
    # Where nobody can fill the screen the rest goes to the log, whose lines come.
    assert heights(40, [Need(8, 8), Need(5, 6, 4), Need(5, 6, 4), Need(5, 5, 5)]) == [8, 6, 6, 20]


def test_a_size_of_ones_own_goes_before_what_suits_and_leaves_the_others_their_least():
    assert heights(40, [Need(8, 8, 1, 0.5), Need(5, 65), Need(5, 5)])[0] == 20
    assert heights(40, [Need(8, 8, 1, 0.95), Need(5, 65), Need(5, 5)]) == [30, 5, 5]


# --- what a start keeps -----------------------------------------------------------------------------------------


def test_the_state_of_the_screen_is_read_back():
    state = ScreenState({"slots": 0.5, "runs": 0.25}, 0.7, "gpu")
    write_screen_state(state)
    assert read_screen_state() == state
    assert (state_dir() / "screen.json").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'{"heights": {"slots": 7}}',
        b'{"heights": {"slots": -0.5}}',
        b'{"heights": {"slots": "big"}}',
        b'{"heights": {"slots": NaN}}',
        b'{"slots_width": 1e999}',
        b'{"level": 3}',
        b"\xff\xfe\x00",
        b'{"x": ' + b"[" * 3000,
        b'{"heights": {' + b",".join(b'"p%d": 0.5' % number for number in range(99)) + b"}}",
        b" " * 1_000_000,
    ],
)
def test_a_state_that_is_garbage_is_as_good_as_none(garbage):
    path = state_dir() / "screen.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(garbage)
    assert read_screen_state() == ScreenState()


async def test_unknown_names_and_levels_of_a_later_version_do_no_harm(desk):
    path = state_dir() / "screen.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"heights": {"orbit": 0.5}, "level": "atom", "colour": "red"}', "utf-8")
    async with desk(size=(120, 40)) as one:
        assert one.cluster.panes.slots.level is None
        assert "5 Log" in one.words()


def test_a_state_that_cannot_be_written_or_read_stops_nothing(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("", "utf-8")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    write_screen_state(ScreenState(level="gpu"))
    assert read_screen_state() == ScreenState()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (state_dir() / "screen.json").mkdir(parents=True)
    write_screen_state(ScreenState(level="gpu"))
    assert read_screen_state() == ScreenState()


# --- keys and mouse ---------------------------------------------------------------------------------------------


def lines(one) -> dict[str, int]:
    panes = one.cluster.panes
    return {
        "slots": panes.slots.outer_size.height,
        "runs": panes.runs.outer_size.height,
        "lower": panes.widget(panes.lower).outer_size.height,
        "log": panes.logs.outer_size.height,
    }


@pytest.mark.slow
@pytest.mark.parametrize("size", [(120, 40), (160, 45)])
async def test_keys_make_panes_higher_and_wider_and_the_next_start_has_them(desk, size):
    async with desk(size=size) as one:
        before, width = lines(one), one.cluster.panes.slots.outer_size.width
        await one.press("1", "left_curly_bracket", "left_curly_bracket")
        await one.until(lambda: lines(one)["slots"] == before["slots"] - 2, "slots with two lines less")
        assert lines(one)["runs"] == before["runs"] + 2
        await one.press("5", "right_curly_bracket")  # the log is the last: its upper edge moves
        await one.until(lambda: lines(one)["log"] == before["log"] + 1, "a line more of the log")
        await one.press("right_parenthesis")
        await one.until(lambda: one.cluster.panes.slots.outer_size.width == width + 2, "wider slots")
        assert sum(lines(one).values()) == sum(before.values()) == size[1] - 2
        after = lines(one), one.cluster.panes.slots.outer_size.width
    assert read_screen_state().heights
    async with desk(size=size) as one:
        await one.until(lambda: (lines(one), one.cluster.panes.slots.outer_size.width) == after, "the same sizes")
        await one.press("equals_sign")
        await one.until(lambda: lines(one) == before and one.cluster.panes.slots.outer_size.width == width)
    assert read_screen_state() == ScreenState()


async def test_on_a_small_terminal_list_and_log_share_the_screen(desk):
    async with desk(size=(80, 24)) as one:
        panes = one.cluster.panes
        high = panes.runs.outer_size.height
        await one.press("right_curly_bracket", "right_curly_bracket")
        await one.until(lambda: panes.runs.outer_size.height == high + 2)
        assert panes.runs.outer_size.height + panes.logs.outer_size.height == 24 - 3
        await one.press("z")
        await one.until(lambda: panes.runs.outer_size.height > high + 6, "the whole screen")
        await one.press("right_curly_bracket", "z")
        await one.until(lambda: panes.runs.outer_size.height == high + 2, "as before the zoom")


async def test_the_mouse_drags_the_edges_of_panes(desk):
    async with desk(size=(160, 45)) as one:
        panes, pilot = one.cluster.panes, one.pilot
        before, width = lines(one), panes.slots.outer_size.width
        edge = panes.runs.region.y
        await pilot.mouse_down(offset=(60, edge))
        await pilot.hover(offset=(60, edge - 3))
        await one.until(lambda: lines(one)["slots"] == before["slots"] - 3, "slots lower by three lines")
        await pilot.hover(offset=(60, edge - 2))
        await pilot.mouse_up(offset=(60, edge - 2))
        await one.until(lambda: lines(one)["slots"] == before["slots"] - 2)
        assert lines(one)["runs"] == before["runs"] + 2
        assert one.app.mouse_captured is None
        await pilot.hover(offset=(60, 5))  # the edge is let go
        assert lines(one)["slots"] == before["slots"] - 2
        await pilot.mouse_down(offset=(width - 1, 4))
        await pilot.hover(offset=(width - 11, 4))
        await pilot.mouse_up(offset=(width - 11, 4))
        await one.until(lambda: panes.slots.outer_size.width == width - 10, "narrower slots")
        # No pane can be dragged away.
        await pilot.mouse_down(offset=(60, panes.runs.region.y))
        await pilot.hover(offset=(60, 0))
        await pilot.mouse_up(offset=(60, 0))
        await one.until(lambda: lines(one)["slots"] == 4)


async def test_a_click_in_a_framed_table_is_the_row_under_the_pointer(desk):
    async with desk(size=(160, 45)) as one:
        runs = one.cluster.panes.runs
        names = list(runs.model.displayed)
        await one.pilot.click(offset=(8, runs.content_region.y + 2))
        await one.until(lambda: runs.cursor_key == names[1])
        await one.pilot.click(offset=(8, runs.region.y))  # the frame is no row
        assert runs.cursor_key == names[1]


async def test_many_runs_take_the_room_of_a_log_without_lines(desk):
    backend = LoadBackend(30 * PER_RUN, clock=None)
    async with desk(size=(120, 40), backend=backend, ready=False) as one:
        await one.until(lambda: len(one.cluster.panes.runs.model.rows) == 30)
        first = lines(one)
        assert first["log"] > 6  # its lines may still come
        backend.advance(10)
        one.cluster.content.draw_ages()
        await one.until(lambda: lines(one)["log"] == 5, "an empty log of five lines")
        assert lines(one)["runs"] > first["runs"]


async def test_charts_leave_room_for_six_runs_before_the_grid_has_tiles(desk):
    async with desk(size=(160, 45), backend=LoadBackend(6 * PER_RUN, clock=None), ready=False) as one:
        runs = one.cluster.panes.runs
        await one.until(lambda: len(runs.model.rows) == 6)
        await one.press("8")
        await one.until(lambda: lines(one)["lower"] >= 11, "charts")
        await one.until(lambda: runs.size.height >= 1 + 6, "a heading and six runs")


async def test_the_level_of_the_grid_is_kept(desk):
    async with desk(size=(120, 40)) as one:
        grid = one.cluster.panes.slots
        await one.until(lambda: grid.shown_level is ZoomLevel.GPU, "tiles")
        await one.press("1", "less_than_sign")
        assert grid.shown_level is ZoomLevel.NODE
        await one.press("less_than_sign", "less_than_sign")
        assert grid.shown_level is ZoomLevel.CLUSTER
    async with desk(size=(120, 40)) as one:
        await one.until(lambda: one.cluster.panes.slots.shown_level is ZoomLevel.CLUSTER)


async def test_the_focus_is_a_frame_of_another_line(desk):
    async with desk(size=(120, 40)) as one:
        panes = one.cluster.panes

        def frames() -> dict[str, str]:
            return {name: panes.screen.query_one(f"#{name}").styles.border_left[0] for name in ("slots", "runs")}

        assert frames() == {"slots": "round", "runs": "heavy"}
        await one.press("1")
        await one.until(lambda: frames() == {"slots": "heavy", "runs": "round"})


async def test_on_a_low_terminal_a_rule_takes_the_place_of_the_frame(desk):
    async with desk(demo=True, size=(48, 10)) as one:
        await one.until(lambda: all(f"racing-sac-s{number}" in one.words() for number in (0, 1)))
        await one.press("1")
        await one.until(lambda: "phortx1" in one.words() and "free 37" in one.words())
        await one.pilot.resize_terminal(80, 24)
        await one.until(lambda: "┏" in one.words(), "a frame")


async def test_on_a_narrow_terminal_nothing_is_parted_from_what_it_belongs_to(desk):
    async with desk(size=(80, 24)) as one:
        await one.press("H")
        await one.until(
            lambda: "esc close" in one.words() and "/ filter" in one.words(), "the hints in one piece each"
        )
        await one.press("escape", "m")
        await one.until(lambda: one.top == "MenuScreen", "the menu")
        assert "l2r…" not in one.words(), "no column for commands that are all cut"
        await one.press("escape")
        await one.pilot.resize_terminal(60, 24)
        await one.press("question_mark")
        await one.until(lambda: "Type into" in one.words(), "the help")
        lines = one.words().splitlines()
        first = next(place for place, line in enumerate(lines) if "Type into" in line)
        second = lines[first + 1].strip(" │┃")
        assert "or see its output".endswith(second), second
        assert lines[first + 1].index(second) == lines[first].index("Type into"), (
            "the second row begins below the first"
        )
        await one.press("escape")
        await one.pilot.resize_terminal(80, 24)
        await one.press("P")
        await one.until(lambda: one.top == "PlaceScreen" and "free after" in one.words(), "place mode")
        free = re.search(r"free after (\d+)  seeds", one.words())
        assert free is not None, "a number is whole"


# --- lines that are read on a screen of their own ---
async def test_what_does_not_fit_on_a_line_goes_on_below_its_text(desk):
    field = (
        Span("   learns on ", TextStyle.DIM),
        Span("cuda:0 " + "NVIDIA A100-SXM4-80GB   " * 3 + "7Gi by PyTorch"),
    )
    described = (Span(f"    events:  {'one word after the other ' * 5}end"),)
    path = (Span(f"   {'x' * 150}END"),)
    async with desk(size=(80, 24)) as one:
        await one.app.push_screen(DetailScreen([field, described, path]))
        await one.until(lambda: re.search(r"│ {15}NVIDIA", one.words()))
        words = one.words()
        assert re.search(r"│ {5}learns on cuda:0 .*\n.*│ {15}NVIDIA .*7Gi by PyTorch", words)
        assert re.search(r"│ {6}events:  one word .*\n.*│ {6}[a-z]", words)
        assert "END" in words
        assert words.count("x") >= 150, "nothing is left out"


async def test_descriptions_in_the_list_of_the_launch_form_are_aligned(desk, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "manifests"
    await asyncio.to_thread(folder.mkdir)
    for name in ("a", "much-longer", "much-longer-than-" + "half-of-this-screen-" * 3):
        text = f"# About {name}.\nname: {name}\nkind: learner-workers\n"
        await asyncio.to_thread((folder / f"{name}.yaml").write_text, text, "utf-8")
    async with desk(size=(120, 40)) as one:
        await one.press("L")
        await one.until(lambda: one.words().count("2 slots") >= 2 and "much-longer-than-…" in one.words())
        rows = [row for row in one.words().split("\n") if " slots " in row and "│    " in row]
        assert len({row.index(" slots ") for row in rows}) == 1


async def test_a_sentence_that_is_longer_than_the_only_line_ends_with_a_sign():
    strip = MetricStrip()
    async with stage(strip, size=(40, 1)) as (app, pilot):
        strip.lines = ((Span("drift-impala-w-8 waits: ImagePullBackOff: not found"),), (Span("next"),))
        await pilot.pause()
        assert app.shown() == ["drift-impala-w-8 waits: …"]
