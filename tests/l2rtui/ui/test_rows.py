"""Rows and log filters as values: one cell and one sort value for each column, and lines that a filter displays."""

from __future__ import annotations

import re
from itertools import compress

import pytest
from msgspec.structs import replace

from l2rtui.domain.ledger import DeviceUsage
from l2rtui.domain.log import KubeEvent, LogLine
from l2rtui.domain.metrics import PodMetrics, RunMetrics
from l2rtui.domain.node import Gpu, GpuShare, GpuUse, Node
from l2rtui.domain.runstatus import Learning, LearningState
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView, SetView
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import Role
from l2rtui.ui.state.learning_states import NOT_READ, RecordAges
from l2rtui.ui.state.snapshot_index import SnapshotIndex
from l2rtui.ui.text import TextStyle, fit
from l2rtui.ui.widgets import pod_table, run_table
from l2rtui.ui.widgets.cluster_tables import EventTable, NodeTable, event_row, node_row
from l2rtui.ui.widgets.log_ring import JsonMode, LogEntry, LogFilter, LogStore, entry_of
from l2rtui.ui.widgets.metric_strip import about_pod
from l2rtui.ui.widgets.table_model import RowModel
from tests.l2rtui.ui.test_widgets import stage

POD = PodView("u", "r-w-0", "n", "me", "r", "w", Role.WORKER, devices=(DeviceUsage(0, 1),), phase=Phase.RUNNING)
RUN = RunView("u", "r", "e", "me", sets=(SetView("learner", Role.LEARNER, 1), SetView("w", Role.WORKER, 1)))
RECORD = PodMetrics(
    "worker", simulator="lost", simulator_restarts=2, simulator_fps=31.0, rank=1, world_size=4, round=3, step="x"
)
STEPPING = PodMetrics("worker", rate=1203.6)
METRICS = RunMetrics("r", env_steps=7610, mean_return=-3.0, returns=(-5.0, -3.0))


@pytest.mark.parametrize("record", [None, RECORD, STEPPING])
@pytest.mark.parametrize("reported", [[], [RECORD], [STEPPING], [RECORD, STEPPING]])
def test_a_pod_has_a_cell_and_a_sort_value_for_each_column(record, reported):
    fields = pod_table.record_fields(reported)
    row = pod_table.pod_row(POD, record, fields)
    assert len(row.cells) == len(row.sort) == len(pod_table.columns_for(fields))


def test_of_all_runs_the_table_of_pods_leaves_out_simulators_before_nodes_and_owners():
    fields = pod_table.record_fields([RECORD])
    own, all_runs = (RowModel(pod_table.columns_for(fields, is_all=is_all)) for is_all in (False, True))
    for model in (own, all_runs):
        model.replace([pod_table.pod_row(POD, RECORD, fields)])
    shown = {
        model: {model.columns[number].key for number, _ in model.visible_columns(70, 2)}
        for model in (own, all_runs)
    }
    assert "node" in shown[own] & shown[all_runs]
    assert "owner" in shown[all_runs] - shown[own]
    assert "sim" in shown[own] - shown[all_runs]


def test_a_pod_that_does_not_fit_its_place_says_so_behind_its_status():
    fields = frozenset({"mismatch"})
    columns = [column.title for column in pod_table.columns_for(fields)]
    row, other = (pod_table.pod_row(POD, None, fields, "", texts) for texts in (("is on m", "sees all"), ()))
    assert [row.cells[columns.index("mismatch")].text, other.cells[columns.index("mismatch")].text] == [
        "is on m; sees all",
        "-",
    ]
    assert len(row.cells) == len(columns)
    assert (row.is_fault, other.is_fault) == (True, False)


def test_a_lost_simulator_is_a_fault_of_its_pod():
    assert not pod_table.pod_row(POD).is_fault
    assert pod_table.pod_row(POD, RECORD).is_fault


@pytest.mark.parametrize(
    "down",
    [
        {"reason": "CrashLoopBackOff", "restarts": 4},
        {"phase": Phase.PENDING},
        {"phase": Phase.FAILED},
        {"phase": Phase.SUCCEEDED},
    ],
)
@pytest.mark.parametrize("old", ["", "40s"])
def test_a_pod_that_is_down_has_neither_rate_nor_simulator_whatever_its_last_record_says(down, old):
    record = PodMetrics("worker", rate=492.0, simulator="ready", simulator_fps=101.0)
    fields = pod_table.record_fields([record])
    titles = [column.title for column in pod_table.columns_for(fields)]
    pod = replace(POD, ready=False, **down)
    cells = dict(
        zip(titles, (cell.text for cell in pod_table.pod_row(pod, record, fields, old).cells), strict=True)
    )
    assert [cells[title] for title in ("steps/s", "simulator", "fps")] == ["-", "-", "-"]
    said = "\n".join("".join(span.text for span in line) for line in about_pod(pod, 0.0, record, old=old))
    assert not re.search("492|101|simulator|prints none", said)
    up = "\n".join("".join(span.text for span in line) for line in about_pod(POD, 0.0, record))
    assert re.search("(?s)ready.*101 fps.*492", up)


def test_a_warning_is_one_without_its_colour_and_without_the_column_of_the_level():
    warning, normal = (
        event_row(KubeEvent(1.0, level, "Failed", "Pod p", level)) for level in ("Warning", "Normal")
    )
    assert [row.cells[2].text for row in (warning, normal)] == ["▲ Failed", "Failed"]
    model = RowModel(EventTable.COLUMNS)
    model.replace([warning, normal])
    model.set_filter(text="reason=Failed")
    assert len(model.displayed) == 2


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (76, "pod status node slot age steps/s"),
        (116, "pod status role node slot restarts exit age steps/s simulator fps"),
    ],
)
def test_a_slot_is_never_shown_without_its_node(width, columns):
    fields = pod_table.record_fields([RECORD, STEPPING]) - {"rank", "round", "step"}
    model = RowModel(pod_table.columns_for(fields))
    pod = replace(
        POD, name="drift-impala-learner-0", node="a100-01", phase=Phase.PENDING, reason="ImagePullBackOff"
    )
    model.replace([pod_table.pod_row(pod, None, fields)])
    titles = [model.columns[number].title for number, _ in model.visible_columns(width, 2)]
    assert titles == columns.split()


@pytest.mark.parametrize("width", [60, 75, 90])
def test_the_text_at_the_end_of_a_row_is_cut_with_a_sign(width):
    event = KubeEvent(
        1.0, "Warning", "ImagePullBackOff", "Pod drift-impala-w-8", "registry.example/drift:v12: not found " * 3
    )
    model = RowModel(EventTable.COLUMNS)
    model.replace([event_row(event)])
    columns = dict(model.visible_columns(width, 2))
    assert sum(columns.values()) + 2 * (len(columns) - 1) == width
    assert columns[0] == 6, "an age has the room that it needs, and no more"
    assert fit(event.message, columns[5]).endswith("…")


@pytest.mark.parametrize("metrics", [None, METRICS])
@pytest.mark.parametrize("at", [None, "", "fetch done"])
def test_a_run_has_a_cell_and_a_sort_value_for_each_column(metrics, at):
    sets = run_table.sets_of([RUN])
    columns = run_table.columns_for(sets, has_at=at is not None)
    row = run_table.run_row(RUN, [POD], metrics, sets, at)
    assert len(row.cells) == len(row.sort) == len(columns)
    by_key = {column.key: value for column, value in zip(columns, row.sort, strict=True)}
    lettered = run_table.run_row(RUN, [POD], metrics, sets, at, letter=("B", TextStyle.OK))
    assert [span for span, column in zip(lettered.cells, columns, strict=True) if column.key == "letter"] == [
        ("B", TextStyle.OK)
    ]
    assert by_key["return"] == by_key["trend"] == (float("-inf") if metrics is None else -3.0)


def test_a_learner_that_reports_no_more_has_no_rate_and_says_for_how_long():
    learner = PodView("l", "r-learner-0", "n", "me", "r", "learner", Role.LEARNER, phase=Phase.RUNNING, ready=True)
    over = PodView("l", "r-learner-0", "n", "me", "r", "learner", Role.LEARNER, phase=Phase.SUCCEEDED)
    metrics = RunMetrics("r", env_steps=7610, env_steps_per_second=1017.0, updates_per_second=4.0, mean_return=1.0)

    def cells(pod: PodView, old: str) -> list[str]:
        row = run_table.run_row(RUN, [pod], metrics, (), None, old)
        keys = [column.key for column in run_table.columns_for(())]
        texts = dict(zip(keys, (cell.text for cell in row.cells), strict=True))
        return [texts[key] for key in ("rate", "updates", "steps", "return")]

    assert cells(learner, "") == ["1,017", "4.00", "7,610", "1.00"]
    assert cells(learner, "2m") == ["silent 2m", "-", "7,610", "1.00"]
    assert cells(over, "") == ["-", "-", "7,610", "1.00"]
    assert cells(over, "2m") == ["-", "-", "7,610", "1.00"]


def test_a_run_that_runs_and_does_not_learn_is_a_fault():
    states = [LearningState(state, 0.0, "why") for state in (Learning.LIVE, Learning.STALLED, Learning.STARVED)]
    rows = [run_table.run_row(RUN, [POD], None, learning=state) for state in states]
    at = [column.key for column in run_table.columns_for(())].index("learning")
    assert [row.cells[at].text for row in rows] == ["● live", "✖ stalled", "▲ starved"]
    assert [row.is_fault for row in rows] == [False, True, True]


def test_an_old_record_of_a_pod_has_no_frame_rate():
    fields = pod_table.record_fields([RECORD])
    assert "silent 1m" in [cell.text for cell in pod_table.pod_row(POD, RECORD, fields, "1m").cells]


def test_a_pod_whose_log_is_not_read_is_not_called_silent():
    fields = pod_table.record_fields([STEPPING])
    at = [column.title for column in pod_table.columns_for(fields)].index("steps/s")
    row = pod_table.pod_row(POD, STEPPING, fields, NOT_READ)
    assert (row.cells[at].text, row.sort[at]) == ("1,204?", pod_table.pod_row(POD, STEPPING, fields).sort[at])
    said = "\n".join("".join(span.text for span in line) for line in about_pod(POD, 0.0, STEPPING, old=NOT_READ))
    assert "its log is not read now" in said
    assert "old" not in said


def test_a_pod_shows_the_rate_of_its_own_record_and_none_once_that_is_old():
    fields = pod_table.record_fields([STEPPING, RECORD])
    at = [column.title for column in pod_table.columns_for(fields)].index("steps/s")
    rows = [
        pod_table.pod_row(POD, *args) for args in ((STEPPING, fields), (STEPPING, fields, "40s"), (None, fields))
    ]
    assert [row.cells[at].text for row in rows] == ["1,204", "silent 40s", "-"]
    assert rows[0].sort[at] > rows[1].sort[at] == rows[2].sort[at]
    assert "steps/s" not in [column.title for column in pod_table.columns_for(pod_table.record_fields([RECORD]))]
    # Its simulators' rate is as old as its own: the row says it a single time.
    both = pod_table.pod_row(
        POD, PodMetrics("worker", rate=9.0, simulator="ready", simulator_fps=60.0), fields, "40s"
    )
    assert [cell.text for cell in both.cells].count("silent 40s") == 1


def test_a_record_has_the_age_of_its_arrival_unless_it_was_there_before():
    ages = RecordAges()
    ages.take({"old": RunMetrics("r", time=900.0), "slow clock": RunMetrics("r", time=400.0)}, 1000.0)
    assert ages.age_if_old("old", 1000.0) == "1m"
    assert ages.age_if_old("nobody", 1000.0) == ""
    ages.take({"slow clock": RunMetrics("r", time=402.0)}, 1002.0)
    ages.take({"slow clock": RunMetrics("r", time=402.0)}, 1030.0)
    assert ages.age_if_old("slow clock", 1017.0, 2.0) == ""
    assert ages.age_if_old("slow clock", 1033.0, 2.0) == "30s"
    ages.take({"fast clock": RunMetrics("r", time=5000.0), "none": RunMetrics("r")}, 1000.0)
    assert ages.age_if_old("fast clock", 1016.0, 2.0) == ages.age_if_old("none", 1016.0, 2.0) == "10s"
    ages.keep({"none"})
    assert ages.age_if_old("fast clock", 1016.0, 2.0) == ""


def test_a_node_has_a_cell_and_a_sort_value_for_each_column():
    row = node_row(Node("n", (Gpu("n", 0),), ready=False), ())
    assert len(row.cells) == len(row.sort) == len(NodeTable.COLUMNS)
    assert row.is_fault


def test_a_node_says_how_many_pods_it_has_and_since_when_it_is_there():
    model = RowModel(NodeTable.COLUMNS, lambda: 90_000.0)
    model.replace([node_row(Node("n", created=10.0), (), 7), node_row(Node("m"), ())])
    at = [[column.key for column in NodeTable.COLUMNS].index(key) for key in ("pods", "age")]
    texts = [[model.text(model.rows[key], number) for number in at] for key in ("n", "m")]
    assert texts == [["7", "1d00h"], ["-", "-"]]


def line(text: str, *, is_mark: bool = False) -> LogLine:
    return LogLine(1.0, "p", text, is_mark=is_mark)


def test_a_filter_hides_lines_but_no_marks():
    store = LogStore()
    store.extend([line("reset"), line("reset draft"), line("step")])
    store.narrow(LogFilter("RESET", "draft"))
    store.extend([line("another reset"), line("another step"), line("restarted", is_mark=True)])
    assert [entry.text for entry in store.displayed()] == ["reset", "another reset", "restarted"]
    assert store.hidden == 3


def test_lines_pass_raw_while_each_is_displayed_as_one():
    lines = [line('{"a": 1}')]
    assert [*LogFilter().apply(lines)] == lines
    assert [*LogFilter(json_as=JsonMode.RAW).apply(lines)] == lines
    assert [entry.text for entry in LogFilter(json_as=JsonMode.PRETTY).apply(lines)] == ["{", '  "a": 1', "}"]


@pytest.mark.parametrize("pattern", [".*loss.*nan", ".*?.*loss.*nan", "loss.*nan"])
def test_a_pattern_that_begins_with_anything_takes_no_longer_on_a_full_log(pattern):
    lines = [entry_of(line(f"loss {'1.0 ' * 150}{end}")) for end in ("nan", *["1.0"] * 5_000)]
    assert [*compress(lines, LogFilter(pattern).passing(lines))] == lines[:1]


def test_what_a_pattern_begins_with_is_checked_as_it_was_typed():
    lines = [entry_of(line("a loss")), entry_of(line("aa")), entry_of(line(""))]
    assert LogFilter(".*").passing(lines) == [True, True, True]
    assert LogFilter(".*+loss").passing(lines) == [False, False, False]
    with pytest.raises(re.error):
        LogFilter(".*{2}*")


def test_a_pattern_that_is_no_regular_expression_is_refused():
    with pytest.raises(re.error):
        LogFilter("(")


def test_an_entry_stays_the_same_when_it_is_sanitised_again():
    entry = entry_of(line("\x1b[31mred\x1b[0m \x07"))
    assert isinstance(entry, LogEntry)
    assert entry_of(entry) is entry


def test_the_parts_of_a_gpu_stand_beside_its_pods_where_they_are_known():
    both, one, none = (replace(POD, uid=uid, node="n", devices=(DeviceUsage(0, 0),)) for uid in ("p", "q", "r"))
    shares = (GpuShare("p", 31.4, 4 << 30), GpuShare("q", None, 1 << 30))
    spread = replace(both, uid="s", devices=(DeviceUsage(0, 1), DeviceUsage(1, 0)))
    second = GpuUse(1, 5.0, shares=(GpuShare("s", 5.0, None),))
    node = Node("n", gpu_use=(GpuUse(0, 50.0, shares=(*shares, GpuShare("s", 7.0, 1))), second))
    snapshot = ClusterSnapshot({"n": node}, {pod.uid: pod for pod in (both, one, none, spread)})
    totals = pod_table.total_shares(snapshot, snapshot.pods.values())
    assert totals == {"p": shares[0], "q": shares[1], "s": GpuShare("s", 12.0, None)}
    assert pod_table.total_shares(ClusterSnapshot(), [both]) == {}
    fields = frozenset({"share"})
    keys = [column.key for column in pod_table.columns_for(fields)]
    texts = [
        [
            pod_table.pod_row(pod, None, fields, share=totals.get(pod.uid)).cells[keys.index(key)].text
            for pod in (both, one, none)
        ]
        for key in ("gpu_busy", "gpu_memory")
    ]
    assert texts == [["31%", "-", "-"], ["4Gi", "1Gi", "-"]]


def test_pods_of_the_user_in_other_namespaces_count_with_those_of_others():
    # The backend names no run of a pod outside the namespaces that are shown.
    elsewhere = replace(POD, uid="v", namespace="lab2", run="", set_name="", role=None)
    index = SnapshotIndex("me")
    index.update(ClusterSnapshot({}, {pod.uid: pod for pod in (POD, elsewhere)}))
    assert index.pod_counts.mine == 1
    assert [pod for pod in index.pods if index.is_mine(pod)] == [POD]


async def test_pods_have_no_column_that_says_the_same_in_every_row():
    table = pod_table.PodTable()
    others = [replace(POD, uid=f"w{number}", name=f"r-w-{number}", index=number) for number in range(2)]
    learner = replace(POD, uid="l", name="r-learner-0", set_name="learner", role=Role.LEARNER)
    calm = [replace(pod, restarts=0, exit_code=None) for pod in (learner, *others)]

    def titles(pods):
        table.set_rows([pod_table.pod_row(pod) for pod in pods])
        table.fold()
        return [table.model.columns[number].title for number, _ in table.model.visible_columns(400, 2)]

    async with stage(table, size=(200, 12)):
        assert titles(calm) == ["pod", "status", "role", "node", "slot", "age"]
        assert {"restarts", "exit"} <= {*titles([*calm[:2], replace(calm[2], restarts=3, exit_code=137)])}
        two_sets = titles([*calm, replace(others[0], uid="v", name="r-v-0", set_name="v")])
        assert ("set" in two_sets, "role" in two_sets) == (True, False)
