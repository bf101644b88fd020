"""Tables and logs as their users meet them: what is drawn again, what is kept, what is found."""

from __future__ import annotations

import json
import random
import time
from contextlib import asynccontextmanager

import pytest
from textual.app import App

from l2rtui.domain.log import LogLine
from l2rtui.domain.selection.filter_language import number_of
from l2rtui.tables.column import TableColumn
from l2rtui.ui.saved_files import screen_strips
from l2rtui.ui.text import Span
from l2rtui.ui.widgets.log_pane import LogPane
from l2rtui.ui.widgets.log_ring import JsonMode, LogRing, bounded, entry_of, present
from l2rtui.ui.widgets.log_search import Match, pan_to
from l2rtui.ui.widgets.table_model import Row, RowModel
from l2rtui.ui.widgets.virtual_table import VirtualTable

COLUMNS = (
    TableColumn("name", "name", most=12),
    TableColumn("state", "state"),
    TableColumn("size", "size", right=True, rank=1),
)


def row(number: int, state: str = "ok", *, is_fault: bool = False) -> Row:
    return Row(
        f"uid-{number}",
        (Span(f"row-{number}"), Span(state), Span(str(number * 7 % 1000))),
        (f"row-{number}", state, number * 7 % 1000),
        is_fault,
    )


class Stage(App[None]):
    """One widget and nothing else; counts the lines that are drawn."""

    def __init__(self, widget) -> None:
        super().__init__()
        self.widget = widget
        self.drawn: list[int] = []
        draw = widget.render_line

        def counted(y: int):
            self.drawn.append(y)
            return draw(y)

        widget.render_line = counted

    def compose(self):
        yield self.widget

    def on_mount(self) -> None:
        self.widget.focus()

    def shown(self) -> list[str]:
        return [strip.text.rstrip() for strip in screen_strips(self)]


@asynccontextmanager
async def stage(widget, size=(60, 12)):
    app = Stage(widget)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield app, pilot


def passes(text: str, one: Row) -> bool:
    model = RowModel(COLUMNS)
    model.replace([one])
    model.set_filter(text=text)
    return bool(model.displayed)


# --- rows -----------------------------------------------------------------------------------------------------


def test_every_word_of_a_filter_must_be_there_and_those_after_a_bang_must_not():
    assert passes("ROW ok", row(1))
    assert not passes("row !ok", row(1))
    assert passes("row !", row(1))


@pytest.mark.parametrize(
    ("text", "is_shown"),
    [
        ("size>=700", True),
        ("size>700", False),
        ("size<=700 size>699", True),
        ("state=ok", True),
        ("state=O", False),
        ("state~O", True),
        ("state!=ok", False),
        ("state!~x", True),
        ("siz=700", True),
        ("color=red", False),
        ("size>x", False),
        ("name=row-100 !bad", True),
    ],
)
def test_a_filter_compares_with_columns(text, is_shown):
    assert passes(text, row(100)) is is_shown


@pytest.mark.parametrize(
    ("shown", "number"),
    [
        ("7,610", 7610),
        ("3/4", 3),
        ("61%", 61),
        ("2h03m", 7380),
        ("1d02h", 93600),
        ("16Gi", 2**34),
        ("v12", 12),
        ("-", None),
    ],
)
def test_numbers_are_read_as_they_are_shown(shown, number):
    assert number_of(shown) == number


def test_rows_are_made_anew_only_from_what_is_another_object():
    made = []

    def make(source):
        made.append(source[0])
        return row(source[0])

    model = RowModel(COLUMNS)
    one, two, three = [(number, object()) for number in (1, 2, 3)]
    model.set_sources([("uid-1", one), ("uid-2", two)], make)
    model.set_sources([("uid-1", one), ("uid-2", two), ("uid-3", three)], make)
    assert made == [1, 2, 3]
    model.set_sources([("uid-2", (2, two[1]))], make)
    assert made == [1, 2, 3]
    assert list(model.rows) == ["uid-2"]


def test_rows_sort_filter_and_come_and_go_as_if_all_were_arranged_anew():
    chance = random.Random(7)
    model = RowModel(COLUMNS)
    truth: dict[str, Row] = {}
    model.sort_by(2, descending=True)
    model.set_filter(text="!bad")
    for _ in range(300):
        changed = [row(chance.randrange(60), chance.choice(["ok", "bad", "slow"])) for _ in range(3)]
        removed = [f"uid-{chance.randrange(60)}" for _ in range(2)]
        for key in removed:
            truth.pop(key, None)
        truth.update((one.key, one) for one in changed)
        model.update(changed, removed)
        good = [one for one in truth.values() if "bad" not in one.cells[1].text]
        assert {*model.displayed} == {one.key for one in good}
        sizes = [model.rows[key].sort[2] for key in model.displayed]
        assert sizes == sorted(sizes, reverse=True)


def test_without_a_sort_column_the_callers_order_counts():
    model = RowModel(COLUMNS)
    model.replace([row(1), row(2), row(3)])
    model.replace([row(3), row(1), row(4)])
    assert model.displayed == ["uid-3", "uid-1", "uid-4"]
    assert model.replace([row(3), row(1), row(4)]) == (False, [])


@pytest.mark.parametrize("width", range(1, 60))
def test_columns_fit_and_the_first_one_stays(width):
    model = RowModel(COLUMNS)
    model.replace([row(100_000), row(5, "a very long state indeed")])
    shown = dict(model.visible_columns(width, 2))
    assert 0 in shown
    if width >= 40:
        assert sum(shown.values()) + 2 * (len(shown) - 1) <= width


# --- table ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_changed_row_draws_its_own_line_and_rows_out_of_sight_draw_nothing():
    table = VirtualTable(COLUMNS)
    async with stage(table) as (app, pilot):
        table.set_rows(row(number) for number in range(100_000))
        await pilot.pause()
        app.drawn.clear()
        table.update_rows([row(3, "new")])
        await pilot.pause()
        assert set(app.drawn) == {4}
        app.drawn.clear()
        table.update_rows([row(90_000, "new")])
        await pilot.pause()
        assert not app.drawn
        await pilot.press("G")
        assert table.cursor_key == "uid-99999"
        assert "row-99999" in app.shown()[-1]
        await pilot.press("g", "pagedown")
        assert table.cursor_key == "uid-10"


async def test_a_hundred_events_a_second_on_thousands_of_rows_paint_the_rows_in_sight_that_changed():
    table = VirtualTable(COLUMNS)
    async with stage(table) as (app, pilot):
        table.set_rows(row(number) for number in range(5_000))
        await pilot.pause()
        app.drawn.clear()
        changed = [number * 47 % 5_000 for number in range(1, 1_001)]  # ten seconds of them, in batches of a tenth
        in_sight = [number for number in changed if number < 5]
        for start in range(0, len(changed), 10):
            table.update_rows([row(number, "no") for number in changed[start : start + 10]])
            await pilot.pause()
        assert in_sight
        assert sorted(app.drawn) == sorted(number + 1 for number in changed if number < table.size.height - 1)
        assert all("no" in app.shown()[number + 1] for number in in_sight)


async def test_a_cell_that_widens_its_column_draws_the_table_anew_and_the_column_shrinks_when_its_row_goes():
    table = VirtualTable(COLUMNS)
    async with stage(table) as (app, pilot):
        table.set_rows([row(1), row(2), row(3)])
        await pilot.pause()
        app.drawn.clear()
        wide = Row("uid-2", (Span("row-2"), Span("a much longer state"), Span("14")), ("row-2", "long", 14))
        table.update_rows([wide])
        await pilot.pause()
        assert {0, 1, 2, 3} <= set(app.drawn)

        def columns() -> set[int]:
            header, *rows = app.shown()[:4]
            return {header.index("size") + len("size"), *map(len, rows)}  # numbers end where their header ends

        (end,) = columns()
        table.update_rows([], ["uid-2"])
        await pilot.pause()
        header, first, second = app.shown()[:3]
        assert header.index("size") + len("size") == len(first) == len(second) < end


def test_a_column_gives_back_the_room_of_a_long_cell_that_became_short_and_keeps_three_characters():
    model = RowModel(COLUMNS)
    model.replace([row(1), row(2, "CrashLoopBackOff")])
    model.update([row(2, "CrashLoopBack")])
    assert model.widths[1] == len("CrashLoopBackOff")
    model.update([row(2, "Running")])
    assert model.widths[1] == len("Running")


def test_rows_that_are_equal_in_the_sort_column_keep_the_callers_order():
    model = RowModel(COLUMNS)
    model.sort_by(1)
    model.replace([row(2), row(3, "new")])
    model.replace([row(1), row(2), row(3)])
    assert model.displayed == ["uid-1", "uid-2", "uid-3"]


def test_new_columns_do_not_keep_the_widths_of_rows_that_are_gone():
    model = RowModel(COLUMNS)
    model.replace([row(1, "CrashLoopBackOff")])
    model.set_columns((*COLUMNS[:2], TableColumn("size", "bytes", right=True)))
    model.replace([row(2)])
    assert model.widths == [len("row-2"), len("state"), len("bytes")]


async def test_the_cursor_leaves_rows_that_go_with_their_columns():
    table = VirtualTable(COLUMNS)
    async with stage(table) as (_, pilot):
        table.set_sources([("uid-1", (1,))], lambda source: row(*source))
        await pilot.pause()
        assert table.cursor_key == "uid-1"
        table.set_columns(COLUMNS[:2])
        table.set_sources([], lambda source: row(*source))
        await pilot.pause()
        assert table.cursor_key is None


async def test_the_scroll_bar_covers_no_character():
    columns = (TableColumn("name", "name"), TableColumn("age", "age", right=True))
    table = VirtualTable(columns)
    async with stage(table, size=(22, 5)) as (app, pilot):
        table.set_rows(Row(str(number), (Span("n" * 13), Span("1h09m")), ("n", 1)) for number in range(9))
        await pilot.pause()
        assert table.show_vertical_scrollbar
        assert table.scrollable_content_region.width == 21
        assert app.shown()[1][:21].endswith(" 1h09m")


async def test_numbers_are_never_cut():
    columns = (TableColumn("name", "name"), TableColumn("rate", "rate", most=4, right=True))
    table = VirtualTable(columns)
    async with stage(table) as (app, pilot):
        table.set_rows([Row("a", (Span("n"), Span("1,234,567")), ("n", 1234567))])
        await pilot.pause()
        assert app.shown()[1].endswith(" 1,234,567")


async def test_the_cell_under_the_cursor_keeps_its_text_between_brackets():
    columns = (TableColumn("name", "name"), TableColumn("w", "w", is_cell=True), TableColumn("end", "end"))
    table = VirtualTable(columns)
    async with stage(table) as (app, pilot):
        table.set_rows([Row("a", (Span("n"), Span("3/4 ✖"), Span("z")), ("n", 3, "z"))])
        await pilot.pause()
        before = app.shown()[1]
        await pilot.press("right")
        await pilot.pause()
        after = app.shown()[1]
        assert "[3/4 ✖]" in after
        assert after.replace("[", " ").replace("]", " ") == before


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nmae=x", "There is no column 'nmae'. Did you mean name? esc shows all."),
        ("colour=x", "There is no column 'colour'. The columns are name, state, size. esc shows all."),
        ("s=x", "'s' may be state or size. esc shows all."),
        ("name=x", "No row matches the filter. esc shows all."),
        ("word", "No row matches the filter. esc shows all."),
    ],
)
async def test_a_filter_that_names_no_column_says_so(text, sentence):
    table = VirtualTable(COLUMNS)
    async with stage(table, size=(100, 6)) as (app, pilot):
        table.set_rows([row(1)])
        table.narrow(text=text)
        await pilot.pause()
        assert sentence in app.shown()[1]
        table.scope = "These are some."
        table.refresh()
        await pilot.pause()
        assert "These are some. esc shows all." in app.shown()[1]


async def test_the_cursor_keeps_its_key_and_falls_to_the_neighbour_when_that_is_gone():
    table = VirtualTable(COLUMNS)
    async with stage(table) as (app, pilot):
        table.set_rows([row(1), row(2), row(3)])
        await pilot.press("j")
        table.set_rows([row(0), row(1), row(2), row(3)])
        assert table.cursor_key == "uid-2"
        table.set_rows([row(0), row(1), row(3)])
        assert table.cursor_key == "uid-3"
        table.set_rows([])
        assert table.cursor_key is None
        await pilot.press("j", "enter", "space", "G", "g", "full_stop", "comma")
        await pilot.pause()
        assert any("Nothing here." in line for line in app.shown())


async def test_a_click_selects_and_a_click_on_the_header_sorts():
    table = VirtualTable(COLUMNS)
    async with stage(table) as (_, pilot):
        table.set_rows([row(1), row(2), row(3)])
        await pilot.pause()
        await pilot.click(VirtualTable, offset=(4, 2))
        assert table.cursor_key == "uid-2"
        await pilot.click(VirtualTable, offset=(4, 0))
        await pilot.click(VirtualTable, offset=(4, 0))
        assert (table.model.sort_column, table.model.is_descending) == (0, True)
        assert table.cursor_key == "uid-2"


async def test_wide_characters_keep_the_columns_straight():
    table = VirtualTable(COLUMNS)
    async with stage(table) as (app, pilot):
        table.set_rows([Row("a", (Span("日本語日本語日本語"), Span("ok"), Span("1")), ("a", "ok", 1)), row(2)])
        await pilot.pause()
        from rich.cells import cell_len

        first, second = app.shown()[1], app.shown()[2]
        assert cell_len(first[: first.index("ok")]) == cell_len(second[: second.index("ok")])


# --- ring -----------------------------------------------------------------------------------------------------


def lines(first: int, last: int, text: str = "line {}") -> list[LogLine]:
    return [LogLine(1000.0 + number, "run-w-0", text.format(number)) for number in range(first, last)]


def test_a_full_ring_drops_the_oldest_and_counts_them():
    ring = LogRing(capacity=10)
    ring.extend(map(entry_of, lines(0, 35)))
    assert [entry.text for entry in ring] == [f"line {number}" for number in range(25, 35)]
    assert (ring.dropped, ring.rows) == (25, 10)
    assert ring.at(0) == (0, 0)
    assert ring.at(10) is None


def test_lines_are_harmless_however_they_leave_the_ring():
    ring = LogRing(capacity=10)
    ring.extend(lines(0, 4, "line {}\x1b]0;title\x07\x1b[2J\u202e"))
    assert ring[1].text == "line 1\\u202e"
    assert [entry.text for entry in ring] == [f"line {number}\\u202e" for number in range(4)]
    ring.wrap(4)
    ring.extend(lines(4, 6, "\x9b2J語語 {}"))
    assert ring[4].text == "語語 4"
    assert ring.rows == 4 * 3 + 2 * 2


def test_of_a_line_that_is_too_long_the_rest_is_not_even_kept():
    (kept,) = bounded([LogLine(1.0, "p", "x" * 10_000_000)])
    assert len(kept.text) < 20_000
    assert "10000000 characters in all" in kept.text


@pytest.mark.parametrize("width", [0, 1, 3, 7, 80])
def test_each_screen_line_belongs_to_one_part_of_one_line(width):
    ring = LogRing(capacity=20)
    ring.wrap(width)
    for size in (0, 1, 6, 7, 8, 30, 5):
        ring.extend([entry_of(LogLine(1.0, "p", "x" * size)), entry_of(LogLine(1.0, "p", "語" * size))])
    ring.extend(map(entry_of, lines(0, 12)))
    seen = [ring.at(number) for number in range(ring.rows)]
    assert None not in seen
    assert seen == sorted(seen)
    assert {number for number, _ in seen} == set(range(len(ring)))
    assert all(ring.at(ring.row_of(number)) == (number, 0) for number in range(len(ring)))


def test_metric_records_are_written_compactly_and_broken_ones_as_they_are():
    text = '{"l2r":"learner","time":1.5,"env_steps":7610,"policy_lag":[0,1.25,4],"mean_return":null,"ok":true}'
    entry = entry_of(LogLine(1.0, "p", text))
    (short,) = present(entry, JsonMode.TABLE)
    assert short.text == "learner env_steps=7,610 policy_lag=0/1.25/4 ok=True"
    assert [one.text for one in present(entry, JsonMode.RAW)] == [text]
    assert [one.text for one in present(entry, JsonMode.PRETTY)][:2] == ["{", '  "l2r": "learner",']
    broken = entry_of(LogLine(1.0, "p", text[:-10]))
    assert present(broken, JsonMode.TABLE) == (broken,)


def test_a_line_keeps_its_own_colours_but_none_that_hide_text():
    entry = entry_of(LogLine(1.0, "p", "plain \x1b[1;32mgreen\x1b[0m \x1b[8mhidden\x1b[0m \x1b[30;40mblack\x1b[0m"))
    assert entry.text == "plain green hidden black"
    (first, last, green), *others = entry.colours
    assert (entry.text[first:last], green.bold, green.color.number) == ("green", True, 2)
    assert not any(style.color or style.bgcolor or style.conceal for _, _, style in others)


# --- log ------------------------------------------------------------------------------------------------------


async def test_following_stops_when_scrolled_back_and_what_is_read_stays_where_it_is():
    log = LogPane()
    log.ring = LogRing(capacity=100)
    async with stage(log) as (app, pilot):
        log.extend(lines(0, 100))
        await pilot.pause(0.2)
        assert "line 99" in app.shown()[-1]
        await pilot.press("k", "k")
        assert not log.is_following
        top = app.shown()[0]
        log.extend(lines(100, 130))
        await pilot.pause(0.2)
        assert app.shown()[0] == top
        assert log.ring.dropped == 30
        await pilot.press("f")
        assert "line 129" in app.shown()[-1]
        await pilot.press("g")
        assert "line 30" in app.shown()[0]
        await pilot.press("G")
        assert log.is_following


async def test_search_goes_from_hit_to_hit_and_round():
    log = LogPane()
    async with stage(log) as (app, pilot):
        log.extend(lines(0, 200))
        await pilot.pause(0.2)
        log.find("LINE 5")
        while "searching" in log.search_fact:
            await pilot.pause()
        assert log.hits == 11
        await pilot.press("n")
        marked = [line for line in app.shown() if line.startswith("▸")]
        assert marked == ["▸ line 5"]
        await pilot.press("N")
        assert "▸ line 59" in app.shown()
        assert log.search_fact == "/line 5, 11 of 11"
        log.find("")
        assert log.hits == 0
        assert log.search_fact == ""
        log.find("nowhere")
        while "searching" in log.search_fact:
            await pilot.pause()
        assert log.search_fact == "/nowhere, no match"


async def test_a_hit_beyond_the_right_edge_comes_in_sight_and_each_of_a_line_has_its_turn():
    log = LogPane()
    async with stage(log, size=(40, 10)) as (app, pilot):
        log.extend([*lines(0, 30), LogLine(31.0, "p", f"needle {'x' * 80} needle {'y' * 30}"), *lines(40, 60)])
        await pilot.pause(0.2)
        log.find("needle")
        await pilot.pause()
        shown = "".join(app.shown())
        assert "xx needle yy" in shown
        assert log.search_fact == "/needle, 2 of 2"
        await pilot.press("N")
        assert "▸ needle xx" in "\n".join(app.shown())
        assert log.search_fact == "/needle, 1 of 2"
        await pilot.press("N")
        assert "xx needle yy" in "".join(app.shown())
        await pilot.press("w", "n")
        assert "needle yy" in "".join(app.shown())


async def test_a_search_for_a_column_moves_the_table_to_it():
    log = LogPane()

    def record(second: int) -> str:
        figures = {f"figure_{number}": number + second for number in range(20)}
        return json.dumps({"l2r": "learner", **figures, "value_loss": second + 0.5}, separators=(",", ":"))

    async with stage(log, size=(60, 10)) as (app, pilot):
        log.extend([LogLine(float(second), "p", record(second)) for second in range(5)])
        await pilot.pause(0.2)
        assert "value loss" not in app.shown()[0]
        log.find("value_loss")
        await pilot.pause(0.2)
        assert "value loss" in app.shown()[0]
        assert log.search_fact == "/value_loss, 5 of 5"
        assert next(line for line in app.shown() if line.startswith("▸")).endswith(" 4.50")
        log.find("figure 0")
        await pilot.pause()
        assert "figure 0" in app.shown()[0]


@pytest.mark.parametrize(
    ("match", "pan", "room", "ends", "expected"),
    [
        (Match(5, 9), 0, 40, (), 0),  # in sight
        (Match(5, 9), 20, 40, (), 0),  # to the left: back to the start of the line
        (Match(50, 54), 40, 40, (), 40),  # in sight where the line stands
        (Match(90, 94), 0, 40, (), 80),
        (Match(90, 94), 0, 40, (10, 30, 70, 96, 120), 70),  # a table moves by columns
        (Match(2, 6), 60, 8, (40,), 0),
    ],
)
def test_a_line_moves_no_further_than_its_match_needs(match, pan, room, ends, expected):
    assert pan_to(match, pan, room, ends) == expected


async def test_wrapped_lines_are_whole_and_long_ones_can_be_panned():
    log = LogPane()
    async with stage(log, size=(40, 10)) as (app, pilot):
        log.restart(run="run", is_merged=True, empty="")
        log.extend([LogLine(1.0, "run-w-0", "".join(f"{number:03d} " for number in range(30)))])
        await pilot.pause(0.2)
        assert "029" not in "".join(app.shown())
        await pilot.press("right", "right", "right", "right", "right")
        assert "029" in "".join(app.shown())
        await pilot.press("w")
        shown = [line[8:] for line in app.shown() if line.strip()]
        assert app.shown()[0].startswith("  w-0 │ 000")
        assert "".join(shown).replace(" ", "") == "".join(f"{number:03d}" for number in range(30))


async def test_why_there_is_nothing_is_broken_where_it_is_too_long():
    why = "This run copies its checkpoints nowhere. Launch with a folder or a bucket to have them."
    for widget in (VirtualTable(COLUMNS, empty=why), LogPane()):
        async with stage(widget, size=(40, 10)) as (app, pilot):
            if isinstance(widget, LogPane):
                widget.restart(run="", is_merged=False, empty=why)
                await pilot.pause()
            assert why in " ".join(" ".join(app.shown()).split())


async def test_a_rush_of_lines_is_drawn_ten_times_a_second_at_most():
    log = LogPane()
    async with stage(log) as (app, pilot):
        app.drawn.clear()
        began = time.monotonic()
        for number in range(200):
            log.extend(lines(number * 50, number * 50 + 50))
            if number % 20 == 0:
                await pilot.pause(0.02)
        await pilot.pause(0.2)
        frames = app.drawn.count(0)
        assert frames <= (time.monotonic() - began) / 0.1 + 2
        assert len(log.ring) == 10_000
        assert log.ring.dropped == 0
        assert "line 9999" in app.shown()[-1]


async def test_a_line_that_goes_on_beyond_an_edge_says_so():
    log = LogPane()
    async with stage(log, size=(40, 4)) as (app, pilot):
        log.extend(
            [LogLine(1.0, "p", "".join(f"{number:03d} " for number in range(30))), LogLine(1.0, "p", "語" * 30)]
        )
        await pilot.pause(0.2)
        first, second = app.shown()[:2]
        assert first.startswith("  000 001")
        assert first.endswith("…")
        assert second.endswith("…")
        await pilot.press("right", "right", "right", "right", "right")
        await pilot.pause()
        assert app.shown()[0].startswith("  …")
        assert app.shown()[0].rstrip().endswith("029")
        await pilot.press("w")
        await pilot.pause()
        assert not any("…" in line for line in app.shown())


async def test_wrapping_a_stopped_log_keeps_the_line_in_view_and_a_marker_is_gone_to():
    log = LogPane()
    async with stage(log, size=(40, 10)) as (app, pilot):
        log.extend(lines(0, 200, "line {} " + "x" * 90))
        await pilot.pause(0.2)
        await pilot.press("pageup", "pageup")
        top = app.shown()[0].split("x")[0]
        assert "line 1" in top
        for key in ("t", "w", "w", "w"):
            await pilot.press(key)
            await pilot.pause()
            assert top.strip() in app.shown()[0]
        await pilot.press("M")
        await pilot.pause()
        assert "marked at" in app.shown()[-1]
        assert log.is_following
