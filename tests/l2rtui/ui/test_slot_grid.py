"""The slot grid at its three levels: cells and cursor, what a tile says, idle holders, old figures, faults."""

from __future__ import annotations

import asyncio
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from l2rtui.backends.fake import FakeBackend
from l2rtui.domain.ledger import DeviceUsage, SlotState
from l2rtui.domain.node import CPU, Gpu, GpuUse, Node, SlotId
from l2rtui.domain.owners import LONG_SECONDS
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView
from l2rtui.domain.status import Level, Phase
from l2rtui.ui.saved_files import screen_strips
from l2rtui.ui.text import Span, TextStyle, wrapped
from l2rtui.ui.widgets.grid.figures import NO_FIGURES, GridFigures, RunFigure, compact, gauge, rate_of
from l2rtui.ui.widgets.grid.lines import lay_out
from l2rtui.ui.widgets.grid.shape import TileLine, TileRow, ZoomLevel


def read(line) -> str:
    return "".join(span.text for span in line)


def node(name="n", gpus=8, slots=4, cpus=0, *, uses=()) -> Node:
    cards = tuple(Gpu(name, number, memory_bytes=80 << 30, slots=slots) for number in range(gpus))
    cpu = Gpu(name, CPU, slots=cpus, is_cpu=True) if cpus else None
    return Node(name, cards, cpu_cores=8.0, cpu=cpu, gpu_use=uses)


def pod(name: str, gpu: int, slot: int | None = None, run: str = "r", **fields) -> PodView:
    usage = DeviceUsage(gpu, slot, 1)
    return PodView(name, name, "n", run=run, devices=(usage,), phase=Phase.RUNNING, ready=True, **fields)


def cluster(*nodes: Node, pods=(), runs=("r",)) -> ClusterSnapshot:
    views = {name: RunView(name, name, name, created=number) for number, name in enumerate(runs)}
    return ClusterSnapshot({own.name: own for own in nodes}, {own.uid: own for own in pods}, views)


@pytest.fixture
def demo() -> ClusterSnapshot:
    return asyncio.run(FakeBackend(owner="me").snapshot())


# --- positions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [ZoomLevel.NODE, ZoomLevel.GPU])
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 12), st.integers(0, 40)), min_size=1, max_size=4),
    st.integers(40, 200),
)
def test_every_slot_has_a_cell_of_its_own_that_shows_it_inside_the_width(level, sizes, width):
    nodes = [node(f"node{number}", *size) for number, size in enumerate(sizes)]
    snapshot = cluster(*nodes)
    grid = lay_out(snapshot, width, level=level)
    assert set(grid.slots) == set(snapshot.ledger.slots)
    assert len(set(grid.slots.values())) == len(grid.slots)
    lines = [read(line) for line in grid.lines]
    for cell in grid.slots.values():
        assert lines[cell.y][cell.x] == "·"
        assert cell.x < width
    assert all(len(line.rstrip()) <= width for line in lines)


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 4), st.integers(0, 8)), min_size=1, max_size=30),
    st.integers(24, 200),
)
def test_the_overview_has_a_cell_for_each_device_inside_the_width(sizes, width):
    snapshot = cluster(*(node(f"node{number}", *size) for number, size in enumerate(sizes)))
    grid = lay_out(snapshot, width, level=ZoomLevel.CLUSTER)
    assert set(grid.slots) == set(snapshot.ledger.slots)
    devices = {(slot.node, slot.gpu): cell for slot, cell in grid.slots.items()}
    assert len(set(devices.values())) == len(devices)
    lines = [read(line) for line in grid.lines]
    assert all(lines[cell.y][cell.x] == "·" for cell in devices.values())
    assert all(len(line.rstrip()) <= width for line in lines)


@pytest.mark.parametrize("level", list(ZoomLevel))
def test_a_slot_whose_holder_does_not_fit_is_marked_and_counted(level):
    astray = pod("p", 0, 1, flags=("names device 0, its plan says 1",))
    grid = lay_out(cluster(node(gpus=2), pods=(astray, pod("q", 1, 1))), 120, level=level)
    shown = {slot: read(grid.lines[cell.y])[cell.x] for slot, cell in grid.slots.items()}
    assert (shown[SlotId("n", 0, 1)], shown[SlotId("n", 1, 1)]) == ("≠", "A")
    assert "≠ mismatch 1" in read(grid.legend)


@pytest.mark.parametrize("level", list(ZoomLevel))
def test_the_cursor_reaches_every_stop_and_a_click_on_it_is_it(demo, level):
    shape = lay_out(demo, 90, level=level).shape
    here = next(iter(shape.slots))
    reached = {here}
    while (there := shape.neighbour(here, 1, 0)) != here:
        here = there
        reached.add(here)
    assert reached == {shape.stop(slot) for slot in shape.slots}
    assert all(shape.at(*shape.slots[slot]) == slot for slot in reached)
    assert shape.neighbour(here, 0, 1) == here
    narrow = lay_out(demo, 74 if level is not ZoomLevel.CLUSTER else 30, level=level).shape
    below = narrow.neighbour(SlotId("phortx1", 3, 0), 0, 1)
    assert (below.node, below.gpu) == ("phortx2", 3)
    assert shape.at(0, 10_000) is None


def test_a_click_anywhere_on_a_tile_is_its_first_slot(demo):
    shape = lay_out(demo, 100, level=ZoomLevel.GPU).shape
    cell = shape.slots[SlotId("phortx1", 2, 0)]
    rows = [y for y, row in enumerate(shape.rows) if isinstance(row, TileLine) and row.node == "phortx1"]
    assert {shape.at(cell.x, y) for y in rows} == {SlotId("phortx1", 2, 0)}
    assert shape.at(0, rows[1]) is None  # the names of the lines


def test_on_80_columns_stand_eight_gpus_of_four_slots_beside_each_other_at_every_level(demo):
    for level in ZoomLevel:
        grid = lay_out(demo, 74, level=level)
        assert len({cell.y for slot, cell in grid.slots.items() if slot.node == "phortx1"}) == 1


def test_the_level_is_the_nearest_that_shows_all_nodes():
    many = cluster(*(node(f"node{number:02}") for number in range(30)))
    levels = [lay_out(many, 100, level=None, room=room).shape.level for room in (200, 40, 12, 5)]
    assert levels == [ZoomLevel.GPU, ZoomLevel.NODE, ZoomLevel.CLUSTER, ZoomLevel.NODE]
    exact = lay_out(many, 100, level=None, room=12, is_exact=True)
    assert exact.shape.level is ZoomLevel.NODE
    # A machine without GPUs has no tiles.
    alone = cluster(Node("box", (Gpu("box", 0, slots=16, is_cpu=True),)))
    assert lay_out(alone, 100, level=None, room=50).shape.level is ZoomLevel.NODE


def test_a_node_that_runs_nothing_or_takes_nothing_is_one_line_among_tiles():
    busy, free = node("n", uses=(GpuUse(0, 90.0),)), node("free")
    off = replace(node("off"), is_schedulable=False)
    foreign = replace(pod("x", 0, 0, run="theirs"), node="off")
    full = {"level": None, "room": 30}
    grid = lay_out(cluster(busy, free, off, pods=(pod("p", 0, 0), foreign)), 120, **full)
    assert grid.shape.level is ZoomLevel.GPU
    assert set(grid.slots) == set(grid.snapshot.ledger.slots)
    lines = [read(line) for line in grid.lines]
    assert len(lines) == 1 + len(TileRow) + 2
    assert "▲ cordoned" in lines[-1]
    assert lines[-1].count("x") == 1
    assert [y for y in range(len(lines)) if grid.is_band(y)] == [0, len(lines) - 2, len(lines) - 1]
    # The reason goes before the numbers of the GPUs, where both do not fit.
    assert "▲ cordoned" in read(lay_out(grid.snapshot, 68, **full).lines[-1])
    # A run on it needs its figures, also where the node takes no other pods.
    held = lay_out(cluster(busy, off, pods=(pod("p", 0, 0), replace(foreign, run="r"))), 120, **full)
    assert len(held.lines) == 2 * (1 + len(TileRow))
    # Without another node nothing is folded, nor at a level that was chosen.
    assert len(lay_out(cluster(free), 120, **full).lines) == 1 + len(TileRow)
    chosen = lay_out(cluster(busy, free, pods=(pod("p", 0, 0),)), 120, level=ZoomLevel.GPU)
    assert len(chosen.lines) == 2 * (1 + len(TileRow))
    # A shape made before is dropped once the node is used.
    used = cluster(busy, free, pods=(pod("p", 0, 0), replace(pod("q", 0, 0), node="free")))
    before = lay_out(cluster(busy, free, pods=(pod("p", 0, 0),)), 120, **full)
    assert len(lay_out(used, 120, before=before, **full).lines) == 2 * (1 + len(TileRow))


def test_a_bar_has_the_colour_of_its_load_and_a_letter_that_of_its_run():
    use = (GpuUse(0, 90.0, 48 << 30), GpuUse(1, 20.0, 0))
    grid = lay_out(cluster(node(gpus=2, uses=use), pods=[pod("p", 0, 0)]), 100, level=ZoomLevel.GPU)
    rows = {row.row: grid.line(y) for y, row in enumerate(grid.shape.rows) if isinstance(row, TileLine)}
    bars = {row: [span.style for span in line if "█" in span.text] for row, line in rows.items()}
    assert bars[TileRow.BUSY] == [TextStyle.WARN, TextStyle.OK]
    assert bars[TileRow.MEMORY] == [TextStyle.OK]
    assert [span.style for span in rows[TileRow.SLOTS] if span.text == "A"] == [TextStyle.HUE0]
    assert {span.style for span in rows[TileRow.MEMORY] if span.text.strip() == "0%"} == {TextStyle.FAINT}


# --- what a tile says -------------------------------------------------------------------------------------------


def tile(snapshot: ClusterSnapshot, gpu: int, figures: GridFigures = NO_FIGURES, width: int = 100) -> list[str]:
    """The lines of one tile, each without the blanks at its end."""
    grid = lay_out(snapshot, width, level=ZoomLevel.GPU, figures=figures)
    left = grid.slots[SlotId("n", gpu, 0)].x - 2
    rows = [y for y, row in enumerate(grid.shape.rows) if isinstance(row, TileLine)]
    return [read(grid.line(y))[left : left + grid.shape.tile].rstrip() for y in rows[: len(TileRow)]]


def test_a_tile_has_slots_load_memory_and_the_rate_of_its_run():
    use = GpuUse(0, 50.0, 20 << 30)
    snapshot = cluster(node(gpus=2, uses=(use,)), pods=[pod("p", 0, 0)])
    slots, busy, memory, rate = tile(snapshot, 0, GridFigures({"r": RunFigure(1861.4)}))
    assert slots.split() == ["0", "A", "·", "·", "·"]
    assert busy.endswith(" 50%")
    assert memory.endswith(" 25%")
    assert busy.count("█") > memory.count("█") > 0
    assert rate.split() == ["1,861"]


def test_what_nobody_measures_is_unknown_and_not_nothing():
    bare = cluster(node(gpus=2), pods=[pod("p", 0, 0)])
    assert [line.split()[-1] for line in tile(bare, 0)[1:]] == ["?", "?", "?"]
    partly = cluster(node(gpus=2, uses=(GpuUse(0, None, 1 << 30),)), pods=[pod("p", 0, 0)])
    assert [line.split()[-1] for line in tile(partly, 0)[1:3]] == ["?", "1%"]
    # A free GPU holds no run: there is no rate to be known.
    assert tile(bare, 1)[3].split() == ["free"]
    overview = read(lay_out(partly, 100, level=ZoomLevel.CLUSTER).lines[0])
    assert overview.split()[-1] == "A?·?"


def test_runs_on_a_gpu_show_the_sum_of_their_rates():
    known = RunFigure(1000.0)
    assert read(rate_of([known, known], 12)) == "       2,000"
    assert read(rate_of([known, known], 4)) == "2.0k"
    assert read(rate_of([known, RunFigure()], 6)) == "     ?"
    here, there = ("n", 0), ("n", 1)
    own, spread = RunFigure(1000.0, devices=frozenset({here})), RunFigure(1000.0, devices=frozenset({here, there}))
    assert read(rate_of([own], 12, here)) == "       1,000"
    # A record has the rate of the whole run: no part of it is known.
    assert read(rate_of([own, spread], 12, here)).strip() == ""
    assert read(rate_of([own, spread], 12, here, 350.0)) == "         350"


@pytest.mark.parametrize("width", [6, 8, 12, 18])
def test_a_run_that_needs_somebody_goes_before_its_rate(width):
    stalled = rate_of([RunFigure(5.0, "2m", Level.BAD, "stalled")], width)
    assert "✖" in read(stalled)
    assert "stalled" in read(stalled) or read(stalled).endswith("…"), "a word is not cut without a sign"
    assert stalled[-1].style is TextStyle.BAD
    assert len(read(stalled)) == width
    silent = rate_of([RunFigure(None, "2m")], width)
    assert read(silent).endswith("2m")
    assert silent[-1].style is TextStyle.WARN


@given(st.floats(0, 1e13))
def test_a_number_takes_four_characters_at_most(number):
    assert len(compact(number)) <= 4


@given(st.none() | st.floats(-1, 2), st.integers(6, 40))
def test_a_gauge_is_as_wide_as_its_tile(share, width):
    assert len(read(gauge(share, width, TextStyle.PLAIN))) == width


def test_old_figures_say_how_old_they_are():
    snapshot = cluster(node(gpus=2, uses=(GpuUse(0, 50.0),)), pods=[pod("p", 0, 0)])
    fresh = lay_out(snapshot, 100, level=ZoomLevel.GPU)
    old = lay_out(snapshot, 100, level=ZoomLevel.GPU, figures=GridFigures(age="2m"))
    assert "ago" not in read(fresh.header)
    assert old.header[0] == Span("▲ of 2m ago  ", TextStyle.WARN)


def test_a_node_that_takes_nothing_is_marked_where_only_its_name_has_room():
    snapshot = cluster(node("a"), replace(node("b"), is_schedulable=False))
    row = read(lay_out(snapshot, 100, level=ZoomLevel.CLUSTER).lines[0])
    assert "b   ▲─" in row
    assert row.count("▲") == 1


def test_two_bars_beside_a_name_are_named_above():
    busy = replace(node("n", gpus=8), cpu_used=4.0, memory_bytes=100, memory_used_bytes=10)
    grid = lay_out(cluster(busy), 66, level=ZoomLevel.NODE)
    assert read(grid.lines[0]).startswith("n    ▅▁ 0")
    assert read(grid.header).startswith("node cpu and mem, then ")


def test_the_legend_gives_up_blanks_before_a_meaning():
    pods = (pod("p", 0, 0), pod("x", 1, 0, run="other"))
    off = replace(node("m"), is_schedulable=False)
    snapshot = cluster(node("n"), off, pods=pods)
    wide, narrow = (read(lay_out(snapshot, width, level=ZoomLevel.NODE).legend) for width in (100, 44))
    assert "x others 1   · free 30   ─ unusable 32" in wide
    assert "x others 1  · free 30  ─ unusable 32" in narrow


# --- idle holders -----------------------------------------------------------------------------------------------


def test_an_idle_holder_has_a_word_on_its_tile_a_glyph_elsewhere_and_a_count():
    snapshot = cluster(node(gpus=2, uses=(GpuUse(0, 1.0), GpuUse(1, 1.0))), pods=[pod("p", 0, 0)])
    figures = GridFigures({}, {("n", 0): "3h"})
    assert tile(snapshot, 0, figures)[1].endswith("idle 3h")
    narrow = cluster(node(gpus=8, uses=(GpuUse(0, 1.0),)), pods=[pod("p", 0, 0)])
    assert tile(narrow, 0, figures, 70)[1].endswith("idle3h")
    assert tile(narrow, 0, GridFigures({}, {("n", 0): "≥31m"}), 70)[1].endswith(" ○≥31m")
    for level in (ZoomLevel.NODE, ZoomLevel.CLUSTER):
        grid = lay_out(snapshot, 100, level=level, figures=figures)
        assert read(grid.lines[0]).count("○") == 1
        assert "○ idle 1" in read(grid.legend)


# --- on the screen ----------------------------------------------------------------------------------------------


async def test_the_grid_of_the_app_shows_rates_idle_holders_and_the_age_of_all_of_it(desk):
    async with desk(demo=True, size=(160, 45)) as one:
        cluster_screen, grid = one.cluster, one.cluster.panes.slots
        await one.until(lambda: len(cluster_screen.metrics) == 3)
        await one.until(lambda: grid.shown_level is ZoomLevel.GPU)
        # Each run collects on several GPUs, so the rate of a GPU is that of its workers, where these are read.
        await one.until(lambda: grid.figures.rates, "rates of workers")
        device, rate = next(iter(grid.figures.rates.items()))
        snapshot = cluster_screen.snapshot
        workers = {slot.pod_uid for slot in snapshot.ledger.of_gpu(*device)} & cluster_screen.content.records.keys()
        assert rate == sum(cluster_screen.content.records[uid].rate or 0.0 for uid in workers)
        await one.until(lambda: re.search(rf"steps/s .* {rate:,.0f} ", one.words()))
        # The evaluator of the demo leaves its GPU nearly alone.
        one.backend.advance(LONG_SECONDS + 60)
        cluster_screen.content.draw_ages()
        await one.until(lambda: "idle ≥11m" in one.words())
        assert "○ idle 1" in one.words()
        one.backend.outage = "the wire is cut"
        one.backend.advance(1)  # the next look at the cluster fails
        await one.until(lambda: "▲ of" in one.words(), "the age of what was last heard")
        one.backend.outage = ""
        await one.until(lambda: "▲ of" not in one.words())


async def test_a_key_brings_the_grid_nearer_and_the_cursor_stays(desk):
    async with desk(size=(80, 24)) as one:
        grid = one.cluster.panes.slots
        await one.press("1", "down", "right")
        slot = grid.cursor_slot
        assert slot is not None
        assert all(f" {number}" in one.words() for number in range(8))
        await one.press("greater_than_sign", "greater_than_sign")
        assert grid.shown_level is ZoomLevel.GPU
        assert grid.cursor_slot == slot
        await one.until(lambda: "busy" in one.words() and "mem" in one.words())
        await one.press("less_than_sign", "less_than_sign", "less_than_sign")
        assert grid.shown_level is ZoomLevel.CLUSTER
        assert "each GPU: who holds most of it" in one.words()
        await one.press("right")
        assert (grid.cursor_slot.gpu, grid.cursor_slot.slot) == (slot.gpu + 1, 0)


async def test_a_scroll_bar_takes_no_column_off_the_tiles(desk):
    async with desk(demo=True, size=(80, 24)) as one:
        grid = one.cluster.panes.slots
        await one.press("1", "greater_than_sign")
        await one.until(lambda: grid.shown_level is ZoomLevel.GPU and grid.max_scroll_y > 0)
        percentages = [line.count("%") for line in one.words().splitlines() if "┃  busy" in line]
        assert percentages
        assert set(percentages) == {8}


def brightness(one, text: str) -> list[tuple[bool, bool]]:
    """Bold and reverse of every piece of the screen with this text."""
    segments = (segment for strip in screen_strips(one.app) for segment in strip)
    styles = [segment.style for segment in segments if segment.style and text in segment.text]
    return [(bool(style.bold), bool(style.reverse)) for style in styles]


@pytest.mark.parametrize("has_colours", [True, False])
async def test_faults_are_blocks_of_light_with_and_without_colour(desk, monkeypatch, has_colours):
    if not has_colours:
        monkeypatch.setenv("NO_COLOR", "1")
    async with desk(demo=True, size=(160, 45)) as one:
        await one.until(lambda: "✖ Degraded" in one.words())
        await one.until(lambda: brightness(one, "Degraded") == [(True, True)])
        assert brightness(one, "!")[0] == (True, True)
        assert all(not reverse for _, reverse in brightness(one, "Running"))


async def test_staged_replicas_show_their_seed_as_no_index_is_shown(desk, tmp_path, monkeypatch):
    (tmp_path / "manifests").mkdir()
    spec = "kind: learner-workers\nname: grid\nlearner: {slots: 0}\nworkers: [{name: w0}, {name: w1}]\n"
    (tmp_path / "manifests" / "grid.yaml").write_text(spec, "utf-8")
    monkeypatch.chdir(tmp_path)
    async with desk(size=(120, 40)) as one:
        await one.press("P")
        await one.until(lambda: one.top == "PlaceScreen" and one.app.screen.draft.specs)
        await one.press("s", *"3,7,10-11", "enter", "a")
        grid = one.app.screen.view.grid
        await one.until(lambda: len(grid.ghosts) == 8)
        staged = {seat.run: grid.ghosts[slot] for slot, seat in one.app.screen.draft.taken().items()}
        texts = {run: span.text for run, span in staged.items()}
        assert texts == {"grid-s3": "3", "grid-s7": "7", "grid-s10": "a", "grid-s11": "b"}
        assert {span.style for span in staged.values()} == {TextStyle.STAGED}
        assert "a seed 10  b seed 11" in one.words()
        slots = one.cluster.snapshot.ledger.slots
        assert all(slots[slot].state is SlotState.FREE for slot in grid.ghosts)


@given(st.lists(st.text("ab ", max_size=30), max_size=5), st.integers(10, 40), st.integers(1, 5), st.integers(0, 4))
def test_a_line_is_broken_between_words_and_loses_none_while_there_are_rows(texts, width, rows, indent):
    line = tuple(Span(text) for text in texts)
    result = wrapped(line, width, rows, indent)
    assert 1 <= len(result) <= rows
    assert all(len(read(row).rstrip()) <= width for row in result)
    shown, full = "".join(map(read, result)).split(), read(line).split()
    is_cut = any("…" in word for word in shown)
    assert is_cut or "".join(shown) == "".join(full)
    if all(len(word) <= width - indent for word in full):
        unbounded = wrapped(line, width, 1000, indent)
        assert "".join("".join(map(read, unbounded)).split()) == "".join(full)


async def test_a_long_sentence_about_a_slot_is_broken_where_there_is_room(desk):
    async with desk(size=(120, 40)) as one:
        await one.press("1")
        detail = one.cluster.panes.detail
        await one.until(lambda: "phortx1/0.0" in "".join(map(read, detail._rows[:1])))
        text = "".join(map(read, detail._rows[:3]))
        assert "racing-sac-s0-learner-0" in text
        assert "racing-sac-s0-learner-0, running" in " ".join(text.split())
        assert "…" not in text


async def test_a_node_that_goes_while_the_grid_is_hidden_does_not_end_the_app(desk):
    """On a small terminal another list is shown; the layout of before must not be drawn with the nodes of now."""
    async with desk(size=(80, 24)) as shown:
        await shown.press("1")
        await shown.until(lambda: "phortx2" in shown.words())
        await shown.press("2")
        await shown.until(lambda: "lidar-ppo" in shown.words() and "phortx2" not in shown.words())
        shown.backend.drop_node("phortx2")
        shown.backend.advance(1.0)
        await shown.until(lambda: "phortx2" not in shown.cluster.snapshot.nodes)
        pod = next(iter(shown.cluster.snapshot.pods.values()))
        shown.backend.put_pod(replace(pod, restarts=pod.restarts + 1))
        await shown.until(lambda: shown.cluster.snapshot.pods[pod.uid].restarts == pod.restarts + 1)
        await shown.press("1")
        await shown.until(lambda: "phortx1" in shown.words())
        assert "phortx2" not in shown.words()
        assert shown.fault is None
