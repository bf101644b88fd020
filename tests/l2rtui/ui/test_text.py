"""Values to text: the grid's layout, ages, sparklines, the state of a run. Pure."""

from __future__ import annotations

import asyncio
import dataclasses
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from textual.app import App, ComposeResult
from textual.color import Color

from l2rtui.backends.fake import FakeBackend
from l2rtui.domain.ledger import DeviceUsage
from l2rtui.domain.metrics import PodMetrics
from l2rtui.domain.node import Gpu, GpuShare, GpuUse, Node, SlotId
from l2rtui.domain.quantity import counted
from l2rtui.domain.runstatus import run_status
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView, SetView
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import Role
from l2rtui.ui import text
from l2rtui.ui.dialogs.questions import silence_of
from l2rtui.ui.home.selection import Pane, Selection
from l2rtui.ui.state.connection_status import ConnectionStatus, right_of
from l2rtui.ui.state.snapshot_index import PodCounts
from l2rtui.ui.theme import THEMES, palette
from l2rtui.ui.widgets.cluster_tables import NodeTable, node_row
from l2rtui.ui.widgets.grid.lines import lay_out
from l2rtui.ui.widgets.metric_strip import MetricStrip, about_slot
from l2rtui.ui.widgets.pod_table import slot_text
from l2rtui.ui.widgets.status_bar import left_of, slots_of


def read(line) -> str:
    return "".join(span.text for span in line)


@pytest.mark.parametrize(
    ("width", "rows"),
    [
        (60, ["    results are kept in /tmp/results/cartpole-ppo-ab8db822"]),
        (44, ["    results are kept in", "      /tmp/results/cartpole-ppo-ab8db822"]),
        (30, ["    results are kept in /tmp/results/cartpole-ppo-ab8db822"]),  # the widget breaks within the path
    ],
)
def test_a_path_that_is_too_long_beside_its_label_stands_below_it(width, rows):
    line = (text.Span("    results are kept in "), text.Span("/tmp/results/cartpole-ppo-ab8db822"))
    assert [read(row).rstrip() for row in text.hanging(line, width)] == rows


@pytest.fixture
def demo() -> ClusterSnapshot:
    return asyncio.run(FakeBackend(owner="me").snapshot())


@pytest.mark.parametrize("width", [20, 40, 76, 90, 118, 200])
def test_each_slot_has_one_cell_inside_the_width_at_every_size(demo, width):
    grid = lay_out(demo, width)
    assert set(grid.slots) == set(demo.ledger.slots)
    cells = [(place.x, place.y) for place in grid.slots.values()]
    assert len(set(cells)) == len(cells)
    for slot, place in grid.slots.items():
        cell = read(grid.lines[place.y])[place.x]
        held = demo.ledger.slots[slot]
        assert cell in {"free": "·", "busy": "ABCabcx", "off": "─", "failed": "!", "unknown": "?"}[held.state]
    if width >= 40:
        assert max(map(len, map(read, grid.lines))) <= width + 2


def test_a_gpu_shows_how_busy_it_is_behind_its_number_without_moving_a_slot():
    gpus = tuple(Gpu("n", index) for index in range(12))
    uses = (GpuUse(0, 0.0), GpuUse(1, 52.0), GpuUse(10, 100.0), GpuUse(11, None, 1 << 30))
    measured = lay_out(ClusterSnapshot({"n": Node("n", gpus, gpu_use=uses)}), 200)
    bare = lay_out(ClusterSnapshot({"n": Node("n", gpus)}), 200)
    assert measured.shape == bare.shape
    heads = [part for line in measured.lines for part in read(line).replace("·", " ").split()]
    assert [part for part in heads if part[0].isdigit()][:3] == ["0", "1", "2"]
    shown = "".join(map(read, measured.lines))
    assert ("0 ▁" in shown, "1 ▅" in shown, "10█" in shown, "11 ·" in shown) == (True, True, True, True)
    assert "busy" in read(measured.header)
    assert "busy" not in read(bare.header)


def test_a_row_of_nodes_has_the_load_of_all_gpus_together():
    def cells(*uses):
        row = node_row(Node("n", tuple(Gpu("n", use.gpu) for use in uses), gpu_use=uses), ())
        keys = [column.key for column in NodeTable.COLUMNS]
        return [row.cells[keys.index(key)].text for key in ("gpu%", "gpu mem")]

    assert cells(GpuUse(0, 20.0, 10, 40), GpuUse(1, 80.0, 30, 40)) == ["50%", "50%"]
    assert cells(GpuUse(0, 20.0, 10, 40), GpuUse(1, None, 30, 0)) == ["-", "-"]
    assert cells() == ["-", "-"]


@pytest.mark.parametrize("slots", [1, 8, 9, 40, 64, 1024])
def test_a_device_with_many_slots_wraps(slots):
    node = Node("box", (Gpu("box", 0, slots=slots, is_cpu=True),))
    grid = lay_out(ClusterSnapshot({"box": node}), 76)
    assert len(grid.slots) == slots
    assert max(place.x for place in grid.slots.values()) < 76
    assert "· free" in read(grid.legend)


@pytest.mark.parametrize("width", [40, 50, 76, 90, 118, 200])
def test_the_legend_cuts_no_number_and_counts_the_runs_that_it_leaves_out(demo, width):
    legend = read(lay_out(demo, width).legend).rstrip()
    assert len(legend) <= width + 2
    free = sum(slot.state == "free" for slot in demo.ledger.slots.values())
    assert f"· free {free}" in legend
    names = ([text.shorten(run.name, most) for most in (20, 12, 8, 6)] for run in demo.runs.values())
    named = [forms for forms in names if any(f" {name} " in legend for name in forms)]
    left_out = len(demo.runs) - len(named)
    assert (f"+{counted(left_out, 'run')}" in legend) is bool(left_out)


def test_the_legend_cuts_a_name_before_it_names_no_run(demo):
    runs = {uid: replace(run, name=f"drift-impala-{run.seed}") for uid, run in demo.runs.items()}
    pods = {uid: replace(pod, run=pod.run and f"drift-impala-{pod.seed}") for uid, pod in demo.pods.items()}
    snapshot = dataclasses.replace(demo, runs=runs, pods=pods)
    legends = {width: read(lay_out(snapshot, width).legend).rstrip() for width in range(40, 130)}
    shortest = "B drift… 15   "
    unnamed = [width for width, legend in legends.items() if legend.startswith("+2 runs")]
    assert all(len(legends[width]) + len(shortest) > width for width in unnamed)
    assert any(legend.startswith(shortest) for legend in legends.values())
    assert legends[129].startswith("B drift-impala-0 15   C drift-impala-1")
    assert all(len(legend) <= width + 2 for width, legend in legends.items())


def test_the_legend_counts_the_runs_that_have_no_letter_of_their_own(demo):
    run, pod = next(iter(demo.runs.values())), PodView("", "")
    gpus = tuple(Gpu("n", index, slots=8) for index in range(4))
    runs = {f"u{one}": replace(run, uid=f"u{one}", name=f"r{one:02}", created=one) for one in range(27)}
    pods = {
        f"p{one}": replace(
            pod,
            uid=f"p{one}",
            name=f"p{one}",
            run=f"r{one:02}",
            node="n",
            devices=(DeviceUsage(one // 8, one % 8),),
        )
        for one in range(27)
    }
    legend = read(lay_out(ClusterSnapshot({"n": Node("n", gpus)}, pods, runs), 1000).legend)
    assert " r24 1 " in legend
    assert "+2 runs" in legend


def test_the_cursor_reaches_every_slot_and_stops_at_the_edges(demo):
    grid = lay_out(demo, 60)
    first, last = next(iter(grid.slots)), list(grid.slots)[-1]
    assert grid.shape.neighbour(first, -1, 0) == first
    assert grid.shape.neighbour(first, 0, -1) == first
    assert grid.shape.neighbour(last, 1, 0) == last
    assert grid.shape.neighbour(last, 0, 1) == last
    here, seen = first, {first}
    while (there := grid.shape.neighbour(here, 1, 0)) != here:
        seen.add(there)
        here = there
    assert seen == set(grid.slots)
    assert grid.slots[grid.shape.neighbour(first, 0, 1)].x == grid.slots[first].x


def test_a_node_that_takes_nothing_says_so(demo):
    assert "▲ cordoned" in read(lay_out(demo, 100).lines[-1])
    off = Node("n", (Gpu("n", 0),), ready=False)
    assert "▲ not ready" in read(lay_out(ClusterSnapshot({"n": off}), 100).lines[0])
    bare = lay_out(ClusterSnapshot({"n": Node("n")}), 100)
    assert "no device" in read(bare.lines[0])
    assert not bare.slots


@given(st.lists(st.floats(-1e9, 1e9), max_size=300), st.integers(0, 60))
def test_a_sparkline_is_as_wide_as_it_may_be(values, width):
    assert len(text.sparkline(values, width)) == min(len(values), width)


@given(st.text(max_size=40), st.integers(1, 30), st.booleans())
def test_text_is_fitted_to_terminal_columns(value, width, right):
    from rich.cells import cell_len

    from l2rtui.domain.sanitize import sanitize

    assert cell_len(text.fit(sanitize(value), width, right=right)) == width


def test_numbers_and_slots_read_well():
    assert (text.count(7610), text.count(None), text.decimal(1.234), text.decimal(12345.6)) == (
        "7,610",
        "-",
        "1.23",
        "12,346",
    )
    assert (text.percent(0.5, 2), text.percent(None, 2)) == ("25%", "-")
    slots = [SlotId("n1", 0, number) for number in (0, 1, 2, 5)] + [SlotId("n2", 1, 0)]
    assert text.slot_ranges(slots) == "n1/0.0-2, n1/0.5, n2/1.0"
    assert slot_text(PodView("u", "p")) == "-"


def test_the_state_of_a_run_comes_from_its_pods():
    run = RunView("r", "r", "r", sets=(SetView("w", Role.WORKER, 2),))
    up = PodView("a", "r-w-0", run="r", phase=Phase.RUNNING, ready=True)
    down = PodView("b", "r-w-1", run="r", phase=Phase.FAILED, exit_code=1)
    over = replace(down, phase=Phase.SUCCEEDED)
    assert run_status(run, ()).word == "Starting"
    assert run_status(run, (up, up)).word == "Running"
    assert run_status(run, (up, down)).sentence == "r-w-1 failed with exit 1"
    assert run_status(run, (over, over)).word == "Completed"
    assert run_status(replace(run, is_terminating=True), (up,)).sentence == "stopping, 1 pod left"
    assert run_status(replace(run, reason="Unsupervised", message="nobody"), (up,)).sentence == "nobody"


def test_the_status_bar_tells_how_true_it_is(demo):
    assert "connecting" in read(right_of((), ConnectionStatus("demo")))
    seen = ConnectionStatus("demo", is_connected=True)
    assert read(right_of((), seen)).split() == ["●", "live"]
    groups = left_of(demo, seen, PodCounts(failing=1), slots_of(demo.ledger))
    # Busy, free and off slots are all there are: who adds them up must not miss some.
    assert "slots 28/96  free 37  unusable 31  failing pods ✖ 1" in "".join(map(read, groups))
    assert read(groups[-1]) == "  nodes 3/3"  # a label and its number stay or go together
    stale = dataclasses.replace(seen, error="refused", silent_seconds=75, busy="launching r7")
    assert read(right_of((), stale)).split() == ["launching", "r7", "▲", "stale", "1m:", "refused"]
    assert "▲ partial: no rights" in read(right_of(("no rights",), seen))
    silent = dataclasses.replace(seen, unanswered_seconds=23.0)
    assert read(right_of(("no rights",), silent)).split() == ["▲", "no", "answer", "for", "20s"]


def test_a_question_names_each_supervisor_that_does_not_answer():
    context = SimpleNamespace(clock=lambda: 155.0)
    runs = (RunView("u", "run", "x", silent_since=100.0), RunView("v", "other", "x"))
    (line,) = silence_of(context, runs)
    assert read(line) == "▲ the supervisor of run has not answered for 50s"


@pytest.mark.parametrize(
    ("use", "shown"),
    [
        ((), "GPU3   A100   4 slots"),
        ((GpuUse(2, 50.0),), "GPU3   A100   4 slots"),
        ((GpuUse(3, 86.0, 12 << 30, 80 << 30),), "GPU3   A100   80Gi   4 slots   85% busy   12Gi in use"),
        ((GpuUse(3, 0.0),), "GPU3   A100   4 slots   0% busy"),
        ((GpuUse(3, None, watts=301.6, celsius=64.0),), "GPU3   A100   4 slots   302 W   64 °C"),
    ],
)
def test_a_slot_shows_what_is_in_use_of_its_gpu_where_it_is_measured(use, shown):
    node = Node("n", (Gpu("n", 3, model="A100"),), gpu_use=use)
    slot = ClusterSnapshot({"n": node}).ledger.slots[SlotId("n", 3, 0)]
    assert read(about_slot(slot, node, None, 0.0)[1]).split(maxsplit=1) == ["device", shown]


def test_a_pod_whose_simulator_hangs_does_not_look_well():
    usage = (DeviceUsage(3, 0),)
    pod = PodView("u", "p", "n", devices=usage, phase=Phase.RUNNING, ready=True, restarts=2, exit_code=137)
    snapshot = ClusterSnapshot({"n": Node("n", (Gpu("n", 3),))}, {"u": pod})
    slot = snapshot.ledger.slots[SlotId("n", 3, 0)]
    hung, ready = (PodMetrics("worker", simulator=state) for state in ("hung", "ready"))
    assert read(about_slot(slot, None, pod, 0.0, ready)[0]).startswith(" ● n/3.0 p, running, 2 restarts")
    assert read(about_slot(slot, None, pod, 0.0, hung)[0]).startswith(" ▲ n/3.0 p, running, 2 restarts")
    assert read(about_slot(slot, None, pod, 0.0, hung)[0]).endswith("its simulator is hung")
    lines = [read(line).split() for line in about_slot(slot, None, pod, 0.0, hung)]
    assert ["process", "restarts", "2", "last", "exit", "137"] in lines, (
        "what nobody knows, as its pid, is left out"
    )
    assert not any(words[0] == "place" for words in lines), "the first line says where it is"
    several = replace(pod, devices=(*usage, DeviceUsage(3, 1)))
    assert any(read(line).split()[0] == "place" for line in about_slot(slot, None, several, 0.0))


@pytest.mark.parametrize(("height", "shown"), [(1, 1), (3, 1), (4, 2), (6, 3), (9, 3)])
async def test_the_state_of_the_selection_may_take_a_line_from_the_figures(height, shown):
    class Strip(App[None]):
        def compose(self) -> ComposeResult:
            yield MetricStrip()

    app = Strip()
    async with app.run_test(size=(20, height)):
        strip = app.query_one(MetricStrip)
        strip.lines = (
            (text.Span(" ▲ r one two three four five six seven eight nine ten"),),
            *(((text.Span("   figure"),),) * 9),
        )
        assert sum("figure" not in strip.render_line(y).text for y in range(height)) == shown


def test_the_part_of_a_pod_is_shown_or_said_to_be_unknown():
    pod = PodView("u", "p", "n", devices=(DeviceUsage(3, 0), DeviceUsage(4, 0)))
    uses = (GpuUse(3, 86.0, shares=(GpuShare("u", 30.0, 2 << 30),)), GpuUse(4, 10.0))
    node = Node("n", (Gpu("n", 3), Gpu("n", 4)), gpu_use=uses)
    snapshot = ClusterSnapshot({"n": node}, {"u": pod})
    for selection in (Selection(Pane.PODS, pod_uid="u"), Selection(Pane.SLOTS, slot=SlotId("n", 3, 0))):
        lines = [read(line).strip() for line in selection.about(snapshot, None, 0.0, 80)]
        assert [line for line in lines if line.startswith("its share")] == [
            "its share of GPU3   30% busy   2Gi in use",
            "its share of GPU4   unknown: its processes cannot be told apart from those of others",
        ]


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (40, "return 4.5   6,997,700 env steps"),
        (32, "return 4.5   6,997,700 env steps"),
        (31, "return 4.5   6,997,700 env…"),
        (22, "return 4.5  …"),
        (10, "return …"),
        (4, "ret…"),
        (0, "…"),
    ],
)
def test_a_line_is_cut_between_words_and_says_so(width, shown):
    line = (text.Span("return "), text.Span("4.5"), text.Span("   6,997,700 env steps"))
    assert read(text.clip(line, width)) == shown


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_without_colours_faults_stand_out_most(theme):
    variables = {"background": theme.background, **theme.variables}
    light = {
        style: Color.parse(pen.color.get_truecolor().hex).brightness
        for style, pen in palette(variables, has_colours=False).items()
    }
    back = Color.parse(theme.background).brightness
    distance = {style: abs(level - back) for style, level in light.items()}
    assert max(distance, key=distance.get) is text.TextStyle.BAD
    assert distance[text.TextStyle.WARN] > distance[text.TextStyle.STRONG] > distance[text.TextStyle.OK]


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["learner-0", "w-0"], ["learner-0", "w-0"]),
        (["racing-sac-s0-w-10", "racing-sac-s1-w-10"], ["s0-w-10", "s1-w-10"]),
        (["racing-sac-s0-w-0", "lidar-ppo-w-1"], ["racin…-sac-s0-w-0", "lidar-ppo-w-1"]),
        (["a-very-long-name-indeed-0"], ["a-ver…e-indeed-0"]),
        (
            ["racing-sac-s0-learner-0", "racing-sac-s1-learner-0", "lidar-ppo-learner-0"],
            ["raci…0-learner-0", "raci…1-learner-0", "lida…o-learner-0"],
        ),
        (
            ["x-0-a-very-long-end-of-a-name", "y-1-a-very-long-end-of-a-name"],
            ["x-0-a…-of-a-name", "y-1-a…-of-a-name"],
        ),
        (
            [
                "a-common-start-0-a-common-end-0",
                "b-common-start-1-a-common-end-0",
                "a-common-start-1-a-common-end-0",
            ],
            ["a-com…mmon-end-0", "b-com…mmon-end-0", "a-com…mmon-end-0"],
        ),
    ],
)
def test_names_are_cut_where_they_agree(names, shown):
    short = text.apart(names, 16)
    assert [short[name] for name in names] == [name.replace("racin…-sac", "racin…sac") for name in shown]
    assert all(len(name) <= 16 for name in short.values())


@pytest.mark.parametrize("width", [12, 20, 33, 80])
def test_hints_break_between_keys_and_never_within_one(width):
    hints = ["enter show", "d diff", "c copy", "esc close"]
    lines = [read(line) for line in text.key_hints(hints, width)]
    assert [hint for line in lines for hint in line.split("   ")] == hints
    assert all(len(line) <= width for line in lines)


def test_the_main_action_of_a_dialog_is_a_button_and_other_hints_show_their_key():
    button, *rest = text.key_hints(["enter plan", "↑ ↓ choose"], 80, has_button=True)[0]
    assert button == text.Span(" enter plan ", text.TextStyle.BUTTON)
    assert [span.text for span in rest] == ["   ", "↑ ↓ ", "choose"]
