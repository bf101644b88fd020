"""Metric records as a table: what people look for first, aligned, below headings that stay; raw on demand."""

from __future__ import annotations

import json
import time

from l2rtui.domain.log import LogLine
from l2rtui.ui.text import Span, TextStyle
from l2rtui.ui.widgets.log_pane import LogPane
from l2rtui.ui.widgets.log_ring import JsonMode
from l2rtui.ui.widgets.record_table import MAX_COLUMNS, RecordTable
from tests.l2rtui.ui.test_widgets import stage

LEARNER = {
    "l2r": "learner", "time": 3.0, "env_steps": 7610, "updates": 87, "policy_lag": [0, 1.5, 4], "critic_loss": 0.25,
    "mean_return": None, "device": "cuda:0 NVIDIA H100 80GB HBM3",
}  # fmt: skip


async def until_shown(app, pilot, is_true) -> None:
    """Wait until what is drawn is what is expected: a log is drawn some tenths of a second later."""
    deadline = time.monotonic() + 60.0
    while not is_true(app.shown()):
        assert time.monotonic() < deadline, app.shown()
        await pilot.pause(0.02)


def record(kind: str, **values: object) -> str:
    return json.dumps({"l2r": kind, "time": 1.0, **values}, separators=(",", ":"))


def test_a_rate_of_hundreds_is_whole_and_a_small_one_keeps_its_fraction():
    table = RecordTable()
    records = [{"l2r": "learner", "updates_per_second": rate} for rate in (482.1, 1852.4, 7.25)]
    for record in records:
        table.learn("a", record)
    assert [table.row(record).split()[-1] for record in records] == ["482", "1,852", "7.25"]


def test_steps_and_frames_a_second_are_whole_as_in_the_tables_of_runs_and_pods():
    table, values = RecordTable(), {"l2r": "worker", "env_steps_per_second": 82.4, "simulator_fps": 99.8}
    table.learn("a", values)
    assert table.row(values).split() == ["82", "100"]


def test_a_share_has_two_digits():
    table = RecordTable()
    records = [{"l2r": "learner", "idle_share": share} for share in (0.8306, 5.6e-05)]
    for record in records:
        table.learn("a", record)
    assert [table.row(record) for record in records] == ["0.83", "0.00"]


def test_columns_that_people_look_for_come_first_and_cells_stand_below_their_headings():
    table = RecordTable()
    assert not table
    assert table.learn("a", LEARNER) is False, "there were no rows before"
    headings, row = table.heading, table.row(LEARNER)
    assert headings.split()[:6] == ["mean", "return", "env", "steps", "updates", "lag"]
    for heading, cell in (("env steps", "7,610"), ("updates", "87"), ("lag", "0/1.50/4"), ("critic loss", "0.25")):
        end = headings.index(heading) + len(heading)
        assert row[:end].endswith(cell)
    assert row.startswith("          -")
    assert row.endswith("cuda:0 NVIDIA H100 80GB HBM3"), "behind the last column nothing is pushed away"
    other, record = RecordTable(), {"device": "cuda:0 NVIDIA H100 80GB HBM3", "n": 1}
    other.learn("a", record)
    assert "cuda:0 NVIDIA H100 80GB…" in other.row(record)
    assert "3.0" not in row, "t shows times"


def test_a_wider_value_or_a_column_between_others_moves_rows_and_one_at_the_end_does_not():
    table = RecordTable()
    table.learn("a", {"l2r": "worker", "env_steps": 1, "simulator_fps": 1.0})
    assert table.learn("a", {"l2r": "worker", "env_steps": 2, "simulator_fps": 2.0}) is False
    assert table.learn("a", {"l2r": "worker", "last": 1}) is False
    assert table.learn("a", {"l2r": "worker", "env_steps": 1_000_000_000}) is True
    assert table.learn("b", {"l2r": "learner", "mean_return": 1.0}) is True
    assert table.heading.split()[0] == "mean"
    assert table.row({"l2r": "learner", "mean_return": 2.5}) == "       2.50"


def test_a_number_is_rounded_where_it_does_not_fit_and_never_cut():
    table = RecordTable()
    table.learn("a", {"l2r": "worker", "x": 1.0, "note": "ab"})
    row = table.row({"x": 123456, "note": "abcdef"})
    assert row.split()[0] in ("1e+05", "…")
    assert "note" in table.heading
    assert row.endswith("abcdef")
    assert "=" not in row
    assert table.row({"y": 7}).endswith("y=7")


def test_a_text_in_the_last_column_is_cut_where_the_screen_ends_and_no_number_before_it():
    table, record = RecordTable(), {"l2r": "worker", "x": 1.0, "simulator_error": "no pose followed an action"}
    table.learn("a", record)
    assert table.row(record).endswith("no pose followed an action")
    start = table.row(record).index("no pose")
    first, *others = table.ends
    assert first < start < min(others)
    assert {start + 8, start + 20, start + 200} <= set(others)
    table.learn("a", {"y": 2.0})  # another column behind it: its own width holds again
    assert "…" in table.row(record | {"y": 2.0})


def test_kinds_are_a_column_only_where_one_pod_writes_several():
    table = RecordTable()
    table.learn("a", {"l2r": "elastic", "rank": 0})
    table.learn("b", {"l2r": "worker", "rank": 1})
    assert "record" not in table.heading
    assert table.learn("a", {"l2r": "fetch", "rank": 0}) is True
    assert table.heading.startswith("record")
    assert table.row({"l2r": "fetch", "rank": 0}).startswith("fetch")


def test_what_a_run_writes_cannot_make_columns_without_end_nor_reach_the_terminal():
    table = RecordTable()
    table.learn("a", {"l2r": "x", **{f"f{number}": number for number in range(500)}})
    assert len(table.heading.split()) == MAX_COLUMNS
    hostile = {"l2r": "x\x1b[31m", "\x1b]0;title\x07": "\x1b[2J", "nested": {"a": [1, "\x1b"]}}
    other = RecordTable()
    other.learn("a", hostile)
    assert "\x1b" not in other.heading + other.row(hostile)


async def test_headings_stay_above_the_newest_rows_and_pan_with_them():
    log = LogPane()
    async with stage(log, size=(40, 6)) as (app, pilot):
        log.restart(run="run", is_merged=False, empty="")
        lines = [LogLine(float(n), "p", record("learner", env_steps=n * 1000, updates=n)) for n in range(50)]
        log.extend([LogLine(0.0, "p", "INFO it starts"), *lines])
        await until_shown(app, pilot, lambda shown: "49,000" in shown[5])
        shown = app.shown()
        assert shown[0].split() == ["env", "steps", "updates"]
        assert shown[5].split()[1:3] == ["49,000", "49"], "after the time"
        assert shown[5].index("49,000") + 6 == shown[0].index("env steps") + 9
        await pilot.press("g")
        await until_shown(app, pilot, lambda shown: "INFO it starts" in shown[1])
        assert app.shown()[0].split() == ["env", "steps", "updates"]
        assert "INFO it starts" in app.shown()[1]
        assert len(app.shown()) == 6
        await pilot.press("G")
        await until_shown(app, pilot, lambda shown: "49,000" in shown[5])
        assert app.shown()[5].split()[1:3] == ["49,000", "49"]
        await pilot.press("J")
        assert log.log_filter.json_as is JsonMode.RAW
        await until_shown(app, pilot, lambda shown: shown[0].strip().startswith('{"l2r":"learner"'))
        await pilot.press("J", "J")
        await until_shown(app, pilot, lambda shown: shown[0].strip().startswith("env"))
        assert app.shown()[0].split() == ["env", "steps", "updates"]
        # Wrapped rows would not stand below their headings: they are wrapped with their names.
        await pilot.press("w")
        wrapped = "learner env_steps=49,000 updates=49"
        await until_shown(app, pilot, lambda shown: wrapped in " ".join(line.strip() for line in shown))
        await pilot.press("w")
        await until_shown(app, pilot, lambda shown: shown[0].split() == ["env", "steps", "updates"])


async def test_a_column_that_comes_later_moves_the_rows_that_are_there():
    log = LogPane()
    async with stage(log, size=(60, 6)) as (app, pilot):
        log.restart(run="run", is_merged=False, empty="")
        log.extend([LogLine(1.0, "p", record("learner", env_steps=1000))])
        await until_shown(app, pilot, lambda shown: "1,000" in shown[1])
        log.extend([LogLine(2.0, "p", record("learner", env_steps=2000, mean_return=4.5))])
        await until_shown(app, pilot, lambda shown: "2,000" in shown[2])
        heading, first, second = app.shown()[:3]
        assert heading.split() == ["mean", "return", "env", "steps"]
        assert first.index("1,000") == second.index("2,000")
        log.narrow(include="2000")
        await until_shown(app, pilot, lambda shown: "1,000" not in shown[1])
        assert app.shown()[0].split() == ["mean", "return", "env", "steps"]
        assert app.shown()[1].split()[1:3] == ["4.50", "2,000"], "after the time"


async def test_a_log_without_records_has_no_headings():
    log = LogPane()
    async with stage(log, size=(40, 6)) as (app, pilot):
        log.restart(run="run", is_merged=False, empty="")
        log.extend([LogLine(1.0, "p", "INFO first"), LogLine(1.0, "p", '{"level":"info","n":1}')])
        await until_shown(app, pilot, lambda shown: "level=info" in shown[1])
        assert "INFO first" in app.shown()[0]
        assert "level=info n=1" in app.shown()[1]


def test_a_text_that_was_null_for_long_is_a_text_and_no_number():
    table, record = RecordTable(), {"x": 1.0, "simulator_error": None}
    table.learn("a", record)
    assert table.learn("a", record | {"simulator_error": "no pose"}) is True, "earlier rows stand otherwise"
    row = table.row(record | {"simulator_error": "no pose followed an action within 10 s"})
    assert row.endswith("  no pose followed an action within 10 s")
    assert table.learn("a", record | {"simulator_error": None}) is False
    assert table.row(record).endswith("1.00"), "a text that is not there is blank"
    table.learn("b", {"x": 1.0, "y": None})
    table.learn("b", {"x": 1.0, "y": 12_345})
    assert table.row({"x": 1.0, "y": 12_345}).endswith("  12,345")


def test_a_value_that_never_changed_is_in_the_title_and_has_a_column_once_it_changes():
    table = RecordTable()
    for number in range(6):
        table.learn("a", {"l2r": "learner", "env_steps": number, "workers": 4, "replay": None, "updates": 0})
    assert (table.heading.split(), table.constants) == (["env", "steps", "updates"], ("workers 4",))
    other = {"l2r": "learner", "env_steps": 6, "workers": 3, "replay": None, "updates": 0}
    assert table.row(other).endswith("workers=3"), "no value is lost"
    assert table.learn("a", other), "the rows have another column now"
    assert table.heading.split()[-1] == "workers"
    assert table.constants == ()
    assert table.row(other).split()[-1] == "3"


def test_sizes_are_written_as_everywhere():
    table, record = RecordTable(), {"l2r": "learner", "gpu_memory_bytes": 9 << 30}
    table.learn("a", record)
    assert (table.heading, table.row(record).strip()) == ("GPU mem", "9Gi")


async def test_rows_show_the_time_dim_what_repeats_and_mark_returns():
    log = LogPane()
    async with stage(log, size=(60, 5)) as (app, pilot):
        log.restart(run="run", is_merged=False, empty="")
        values = [(1000, 4.5), (2000, 4.5)]
        log.extend(
            [
                LogLine(number, "p", record("learner", env_steps=steps, mean_return=value))
                for number, (steps, value) in enumerate(values)
            ]
        )
        await until_shown(app, pilot, lambda shown: "2,000" in shown[2])
        assert time.strftime("%H:%M:%S", time.localtime(1)) in app.shown()[2]
        first, second = (log.body(number, 0, 60) for number in (0, 1))
        assert {span.style for span in first if "4.50" in span.text} == {TextStyle.STRONG}
        assert {span.style for span in second if "4.50" in span.text} == {TextStyle.DIM}
        assert {span.style for span in second if "2,000" in span.text} == {TextStyle.PLAIN}
        await pilot.press("t")
        await until_shown(app, pilot, lambda shown: ":" not in shown[2])


async def test_hidden_columns_have_one_sign_at_the_headings_and_a_number_none_behind_it():
    log = LogPane()
    async with stage(log, size=(36, 5)) as (app, pilot):
        log.restart(run="run", is_merged=False, empty="")
        names = ("updates", "policy_version", "entropy")
        values = [{"env_steps": 123_000} | dict.fromkeys(names, number) for number in range(3)]
        log.extend([LogLine(number, "p", record("learner", **fields)) for number, fields in enumerate(values)])
        await until_shown(app, pilot, lambda shown: "123,000" in shown[3])
        heading, *rows = app.shown()[:4]
        assert heading.rstrip().endswith(" …")
        assert not any("…" in row for row in rows)


async def test_a_line_that_begins_with_its_time_has_it_dim_beside_the_time_of_its_row():
    log = LogPane()
    async with stage(log, size=(60, 5)) as (app, pilot):
        log.restart(run="run", is_merged=False, empty="")
        log.extend([LogLine(0, "p", "03:22:25 joined the learner")])
        await until_shown(app, pilot, lambda shown: "joined" in shown[0])
        assert len(log.body(0, 0, 60)) == 3
        await pilot.press("t")
        spans = log.body(0, 0, 60)
        assert [span for span in spans if span.text] == [
            Span("03:22:25 ", TextStyle.FAINT),
            Span("joined the learner"),
        ]


async def test_workers_have_a_table_of_their_own_below_the_rows_of_their_learner():
    log = LogPane()
    async with stage(log, size=(70, 12)) as (app, pilot):
        log.restart(run="run", is_merged=True, empty="")
        for number in range(5):
            log.extend(
                [
                    LogLine(number, "run-w-0", record("worker", env_steps=number, simulator_state="ready")),
                    LogLine(number, "run-w-1", record("worker", env_steps=7 * number, simulator_state="ready")),
                    LogLine(number, "run-learner-0", record("learner", env_steps=9 * number, updates=number)),
                ]
            )
        await until_shown(app, pilot, lambda shown: "w-1" in shown[11] and "28" in shown[11])
        shown = app.shown()
        assert shown[0].split() == ["env", "steps", "updates"], "no column of the workers"
        assert [line.split("│")[0].split()[-1] for line in shown[1:6]] == ["learner-0"] * 5
        assert shown[9].split() == ["workers", "env", "steps", "simulator"]
        assert [line.split()[1:] for line in shown[10:]] == [
            ["w-0", "│", "4", "ready"],
            ["w-1", "│", "28", "ready"],
        ]
        log.narrow(include="ready")
        await until_shown(app, pilot, lambda shown: sum("w-1" in line for line in shown) == 5)
        log.narrow(include="")
        await until_shown(app, pilot, lambda shown: sum("w-1" in line for line in shown) == 1)
        await pilot.press("J")
        await until_shown(app, pilot, lambda shown: sum('"worker"' in line for line in shown) > 2)
