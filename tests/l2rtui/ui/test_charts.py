"""Charts: dots where the values are, scales and marks that can be read, and keys that change what is drawn."""

from __future__ import annotations

import csv
import math
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from l2rtui.domain.curves.chart import ChartSettings, CurveGroup, SeedCurve, figures_of, grouped
from l2rtui.domain.curves.run_curve import Axis, CurveRecord, RunCurve
from l2rtui.ui.text import BANDS, HUES, decimal
from l2rtui.ui.theme import DARK, THEMES, palette, theme_names
from l2rtui.ui.widgets.chart_lines import SPREAD, PlotLine, chart_lines, pictures, plot
from l2rtui.ui.widgets.charts import ChartView
from tests.l2rtui.ui.test_widgets import stage

NAN = math.nan


def seed(name, values, **fields):
    curve = RunCurve()
    for number, value in enumerate(values):
        curve.add(CurveRecord(1.7e9 + number, 100.0 * number, 10.0 * number, {"return": value}))
    return SeedCurve(name, curve, **fields)


def drawing(groups, width=80, height=14, settings=None, cursor=None):
    drawn = pictures(groups, settings or ChartSettings(), width, height, figures_of(groups))
    lines = chart_lines(groups, drawn, width, height, cursor)
    return ["".join(span.text for span in line) for line in lines], lines


# --- dots ------------------------------------------------------------------------------------------------------
def dots(rows):
    """Columns and rows of all dots of a plot."""
    at = ((0, 1, 2, 6), (3, 4, 5, 7))
    for y, row in enumerate(rows):
        for x, char in enumerate("".join(part.text for part in row)):
            bits = ord(char) - 0x2800 if ord(char) >= 0x2800 else 0
            yield from ((2 * x + dx, 4 * y + dy) for dx in (0, 1) for dy in range(4) if bits >> at[dx][dy] & 1)


def test_a_line_goes_through_its_values_without_a_gap():
    rows = plot([PlotLine([0.0, 1.0, 0.5, 0.5])], 2, 2)
    points = set(dots(rows))
    assert {(0, 7), (1, 0), (2, 4), (3, 4)} <= points
    assert {y for x, y in points if x == 1} == set(range(7))
    assert len({x for x, _ in points}) == 4


def test_a_column_without_a_value_is_bridged_and_nothing_is_drawn_before_the_first():
    points = set(dots(plot([PlotLine([NAN, 0.0, NAN, NAN, 1.0, NAN])], 3, 1)))
    assert {x for x, _ in points} == {1, 2, 3, 4}
    assert {(1, 3), (2, 2), (3, 1), (4, 0)} <= points


def test_a_spread_is_shaded_behind_its_line_and_belongs_to_it():
    line = PlotLine([0.5] * 4, [0.0] * 4, [1.0] * 4)
    rows = plot([PlotLine([NAN] * 4), line], 2, 5)
    texts = ["".join(part.text for part in row) for row in rows]
    assert texts[0] == texts[4] == SPREAD * 2
    assert SPREAD not in texts[2]
    assert {part.owner for row in rows for part in row} == {1}
    blank = plot([PlotLine([NAN, NAN], [NAN, NAN], [NAN, NAN])], 1, 1)
    assert [(part.text, part.owner) for part in blank[0]] == [(" ", -1)]


@given(
    st.lists(st.lists(st.floats(0, 1) | st.just(NAN), min_size=12, max_size=12), max_size=4),
    st.integers(1, 6),
)
def test_every_value_has_a_dot_and_rows_fill_the_width(lines, height):
    rows = plot([PlotLine(values) for values in lines], 6, height)
    assert all(sum(len(part.text) for part in row) == 6 for row in rows)
    columns = {x for x, _ in dots(rows)}
    assert {x for values in lines for x, value in enumerate(values) if not math.isnan(value)} <= columns


# --- charts ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("width", "height"), [(36, 6), (78, 8), (120, 14), (160, 40), (300, 90), (20, 3)])
def test_charts_fill_exactly_the_width_at_any_size(width, height):
    groups = grouped([seed(f"run-{number}", [float(number)] * 30) for number in range(3)], by_experiment=False)
    texts, _ = drawing(groups, width, height)
    assert len(texts) <= height
    assert all(len(text) <= width for text in texts)
    assert len({len(text) for text in texts[1:]}) == 1


def test_scales_have_labels_on_both_axes():
    texts, _ = drawing([CurveGroup("a", (seed("a", [float(number) for number in range(100)]),))])
    shown = "\n".join(texts)
    assert "100┤" in shown
    assert "0┤" in shown
    assert texts[-1].split()[:3] == ["0", "2,000", "4,000"]
    time, _ = drawing([CurveGroup("a", (seed("a", [1.0, 2.0] * 300),))], settings=ChartSettings(Axis.TIME))
    assert "4m" in time[-1].split()


def test_an_outlier_is_an_arrow_at_the_edge_and_leaves_the_scale_to_the_others():
    texts, _ = drawing([CurveGroup("a", (seed("a", [-900.0, 6880.0, *(500.0 + n % 9 for n in range(100))]),))], 160)
    assert texts[2].count("▲") == 1, "the first row of the plot"
    assert texts[-2].count("▼") == 1
    assert "508┤" in "\n".join(texts) or "510┤" in "\n".join(texts)


def test_each_line_has_a_mark_of_its_own_at_its_end_and_before_its_name():
    runs = [seed(f"r{number}", [float(number)] * 20) for number in range(9)]
    texts, lines = drawing(grouped(runs, by_experiment=False), 100, 24)
    for number in range(9):
        assert f"{number + 1} ━ r{number}" in texts[0]
    marks = [
        span.text for line in lines[2:-1] for span in line if span.text in set("123456789") and span.style in HUES
    ]
    assert sorted(marks) == list("123456789")


def test_a_run_keeps_its_hue_beside_a_run_without_records():
    groups = grouped([SeedCurve("empty", RunCurve()), seed("full", [1.0, 2.0, 3.0])], by_experiment=False)
    texts, (names, *rows) = drawing(groups)
    assert "1 ━ empty" in texts[0]
    (hue,) = {span.style for span in names if span.text == "2 ━ "}
    assert {span.style for row in rows[1:] for span in row if span.style in HUES} == {hue}
    assert "1 -" in texts[1]


def test_the_cursor_reads_the_values_of_all_lines_where_it_stands():
    runs = [seed("a", [float(number) for number in range(101)]), seed("b", [7.0] * 30)]
    texts, _ = drawing(grouped(runs, by_experiment=False), cursor=30)
    at = next(part for part in texts[0].split("   ") if part.startswith(" │ at"))
    assert at.endswith("env steps")
    position = float(at.split()[2].replace(",", ""))
    read = texts[1].split()
    assert float(read[read.index("1") + 1]) == pytest.approx(position / 100, abs=2)
    assert read[read.index("2") + 1] == "7.00"  # the last value of a run that had ended before
    assert all("│" in text[39:41] for text in texts[2:-1])
    newest, _ = drawing(grouped(runs, by_experiment=False))
    assert "100.00" in newest[1]


@pytest.mark.parametrize("length", [3, 700, 5_000])
def test_a_title_shows_the_newest_value_as_tables_do_unless_curves_are_smoothed(length):
    groups = grouped([seed("a", [float(number) for number in range(length)])], by_experiment=False)
    newest = f"return  {decimal(length - 1.0)} "
    assert newest in drawing(groups)[0][1]
    smoothed = ChartSettings(smoothing=0.1)
    assert newest not in drawing(groups, settings=smoothed)[0][1]
    assert "EMA" in " ".join(smoothed.facts)


def test_the_mean_of_seeds_is_read_with_its_interval_and_their_number():
    runs = [seed(f"s{number}", [float(number)] * 20, seed=number, experiment="e") for number in range(3)]
    texts, _ = drawing(grouped(runs, by_experiment=True))
    assert "e 3 seeds" in texts[0]
    assert "1.00 [0.00 to 2.00] n=3" in texts[1]
    assert SPREAD in "\n".join(texts)


def test_old_records_and_missing_ones_are_said():
    texts, _ = drawing([CurveGroup("a", (seed("a", [1.0]),), "2m old")])
    assert "▲ 2m old" in texts[0]
    assert "No metric record yet" in drawing([CurveGroup("b", (SeedCurve("b", RunCurve()),))])[0][0]
    assert "No metric record yet" in drawing([])[0][0]
    groups = [CurveGroup("a", (seed("a", [1.0]),))]
    lines = chart_lines(groups, pictures(groups, ChartSettings(), 60, 12, ("entropy",)), 60, 12)
    assert any("no value of it yet" in span.text for line in lines for span in line)


def test_names_from_other_people_cannot_write_to_the_terminal():
    texts, _ = drawing([CurveGroup("evil\x1b[31m", (seed("evil\x1b[31m", [1.0]),))])
    assert "\x1b" not in "".join(texts)


# --- the app ---------------------------------------------------------------------------------------------------
async def opened(one):
    """Open the charts of the selected run, and wait for its records from before the app."""
    await one.press("8")
    charts = one.cluster.panes.charts
    await one.until(lambda: charts.groups and all(s.curve.is_complete for g in charts.groups for s in g.seeds))
    return charts


async def test_keys_choose_axis_smoothing_window_and_figure(desk):
    async with desk(demo=True) as one:
        charts = await opened(one)
        await one.until(lambda: "over env steps · not smoothed" in one.words())
        await one.press("x", "f", "w", "n")
        await one.until(lambda: "over time since launch · EMA over 2% of axis · newest 1/4" in one.words())
        await one.until(lambda: "return alone" in one.words())
        assert charts.figures == ("return",)
        await one.press("n")
        await one.until(lambda: charts.figures == ("env_steps_per_second",))
        await one.press("N", "N", "x", "x", "f", "f", "w", "w")
        await one.until(lambda: "over env steps · not smoothed" in one.words())
        assert len(charts.figures) > 4


async def test_the_seeds_of_an_experiment_are_drawn_as_their_mean(desk):
    async with desk(demo=True) as one:
        one.cluster.panes.runs.move_to(one.cluster.snapshot.run_named("racing-sac-s1").uid)
        charts = await opened(one)
        assert [group.name for group in charts.groups] == ["racing-sac-s1"]
        await one.press("b")
        await one.until(lambda: [len(group.seeds) for group in charts.groups] == [2])
        await one.until(lambda: "racing-sac 2 seeds" in one.words())
        await one.until(lambda: "n=2" in one.words())
        assert "mean and 95% interval" in one.words()
        await one.press("2", "asterisk", "8")
        await one.until(lambda: {group.name for group in charts.groups} == {"racing-sac", "lidar-ppo"})
        await one.press("b")
        await one.until(lambda: len(charts.groups) == 3)


async def test_the_cursor_moves_by_keys_and_mouse_and_leaves_at_the_end():
    charts = ChartView()
    async with stage(charts, size=(160, 14)) as (app, pilot):
        charts.show([CurveGroup("a", (seed("a", [float(number) for number in range(100)]),))])

        async def has_cursor(*keys: str) -> bool:
            await pilot.press(*keys)
            return "│ at" in "\n".join(app.shown())

        assert not await has_cursor()
        assert await has_cursor("left", "left")
        assert not await has_cursor("right", "right")
        assert await has_cursor("g")
        assert not await has_cursor("G")
        assert await has_cursor("pageup")
        assert not await has_cursor("G")
        await pilot.click(charts, offset=(30, 4))
        assert await has_cursor()
        assert not await has_cursor(*["pagedown"] * 14)


async def test_figures_are_drawn_alone_one_after_the_other():
    charts = ChartView()
    async with stage(charts, size=(160, 14)) as (_, pilot):
        charts.show([CurveGroup("a", (seed("a", [1.0, 2.0, 3.0]),))])
        everything = charts.figures
        await pilot.press("n")
        assert charts.figures == everything[:1]
        await pilot.press("N")
        assert charts.figures == everything
        await pilot.press("N")
        assert charts.figures == everything[-1:]


async def test_new_records_are_added_to_those_that_were_read_back(desk):
    async with desk(demo=True) as one:
        charts = await opened(one)
        curve = charts.groups[0].seeds[0].curve
        before = curve.num_records
        assert before > 40
        await one.pass_time(30, lambda: curve.num_records >= before + 25)
        newest = curve.last[Axis.TIME]
        assert one.backend.now() - newest < 10


async def test_charts_are_exported_as_a_picture_and_as_a_table(desk, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with desk(demo=True) as one:
        await opened(one)
        await one.press("n", "colon", *"export c.svg", "enter")
        await one.until(lambda: any(said.startswith("saved chart of 1 curve in ") for said in one.says()))
        root = ET.fromstring((tmp_path / "c.svg").read_text())  # noqa: S314  (our own text)
        assert len(root.findall(".//{http://www.w3.org/2000/svg}polyline")) == 1
        await one.press("colon", *"export c.csv", "enter")
        await one.until((tmp_path / "c.csv").exists)
        rows = list(csv.DictReader((tmp_path / "c.csv").read_text().splitlines()))
        assert sum(int(row["records"]) for row in rows) > 40


async def test_help_opens_at_the_keys_of_the_charts_and_the_bar_lists_them(desk):
    async with desk() as one:
        await opened(one)
        await one.until(lambda: "x axis" in one.words().splitlines()[-1])
        await one.press("question_mark")
        await one.until(lambda: one.top == "HelpScreen")
        await one.until(lambda: "In the charts" in one.words())


async def test_charts_can_be_read_without_anything_beyond_ascii(desk):
    async with desk(demo=True) as one:
        await opened(one)
        await one.press("b", "f")
        for theme in ("l2r-ascii", "l2r-dark"):
            one.app.theme = theme
            await one.until(lambda theme=theme: one.words().isascii() is (theme == "l2r-ascii"))


def test_a_line_inside_a_band_leaves_no_hole_in_it():
    runs = [
        seed(f"s{number}", [number * 10.0 + step for step in range(50)], seed=number, experiment="e")
        for number in range(3)
    ]
    _, lines = drawing(grouped(runs, by_experiment=True))
    inside = [span for line in lines[2:-1] for span in line if span.style in BANDS]
    assert any("░" in span.text for span in inside)
    assert any("⠀" < char <= "⣿" for span in inside for char in span.text), "the line has the band behind it"
    styles = palette(DARK.to_color_system().generate())
    assert all(
        styles[band].bgcolor and styles[band].color == styles[hue].color
        for band, hue in zip(BANDS, HUES, strict=True)
    )


@pytest.mark.parametrize("name", theme_names())
@pytest.mark.parametrize("has_colours", [True, False])
def test_every_theme_has_bands(name, has_colours):
    from textual.theme import BUILTIN_THEMES

    themes = {theme.name: theme for theme in THEMES} | BUILTIN_THEMES
    styles = palette(themes[name].to_color_system().generate(), has_colours=has_colours)
    assert all(styles[band].bgcolor is not None for band in BANDS)
