"""Page of an experiment: its parts, its means, and texts with HTML or escape sequences."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from msgspec.structs import replace

from l2rtui.domain.curves.chart import RETURN, SeedCurve
from l2rtui.domain.curves.run_curve import CurveRecord, RunCurve
from l2rtui.domain.history import (
    Difference,
    Ending,
    HistoryEntry,
    HistoryRecord,
    LaunchFacts,
    RunOutcome,
    SourceState,
)
from l2rtui.domain.sweeps import trial_of
from l2rtui.services.history.report_page import MAX_PATCH_LINES, ExperimentReport, ReportedRun, page_text

HOSTILE = "</td><script>alert(1)</script><img src=x onerror='y'>\x1b[31m\u202e&amp;\"' style=\"x\" \ud800"


class PageTexts(HTMLParser):
    """Texts, tags and attributes of a page, as read by a browser."""

    def __init__(self, page):
        super().__init__()
        self.texts, self.tags, self.attributes = [], [], set()
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.texts.append(data)


def curve(*returns):
    result = RunCurve()
    for number, value in enumerate(returns, 1):
        result.add(CurveRecord(float(number), 100.0 * number, number, {RETURN: value}))
    return result


TREE = SourceState("/r", "c" * 40, "main")


def reported(seed, *returns, experiment="race", source=TREE, **fields):
    final = returns[-1] if returns else None
    entry = HistoryEntry(f"race-s{seed}", f"{seed:032x}", experiment, seed, started=1.7e9, final_return=final)
    launch = LaunchFacts(versions=(("l2rtui", "1.0"),), command="l2rtui launch", source=source)
    record = HistoryRecord(entry, launch)
    run = ReportedRun(record, SeedCurve(entry.run, curve(*returns), seed, experiment), "running")
    return replace(run, **fields)


def report(*runs, **fields):
    return ExperimentReport("race", 1.7e9, "l2rtui 1.0", runs, **fields)


def test_a_sweep_is_a_table_with_a_row_for_each_trial_the_best_first():
    trials = [trial_of(number, {"train.ppo.lr": 10.0**-number, HOSTILE: HOSTILE}) for number in range(2)]
    runs = [reported(seed, 10.0 * seed, trial=trials[seed % 2]) for seed in range(4)]
    page = page_text(report(*runs))
    assert "<h2>Sweep</h2>" in page
    texts = PageTexts(page).texts
    heads = texts[texts.index("Sweep") :]
    assert heads[heads.index("trial") + 1] == "lr"
    assert heads.index("t1") < heads.index("t0")
    assert heads[heads.index("t1") + 1] == "0.1"
    assert "script" not in PageTexts(page).tags
    assert [result.mean_return for result in report(*runs).trials] == [20.0, 10.0]
    assert "<h2>Sweep</h2>" not in page_text(report(reported(0, 1.0)))


def test_the_mean_is_that_of_the_newest_launches():
    whole = report(reported(0, 1.0), reported(1, 3.0), reported(1, 90.0, is_newest=False), reported(2))
    assert whole.final_return.mean == 2.0
    assert whole.final_return.num == 2
    assert whole.states == (("running", 3),)
    assert [title for title, _ in whole.charts] == ["Mean over seeds", "Each run"]
    page = page_text(whole)
    assert "3 runs: 3 running. Last return 2 on average over 2 runs (95% bootstrap interval 1 to 3)." in page
    assert "race (mean of 2 seeds" in page
    assert "running (an earlier launch)" in page


def test_a_single_run_has_a_single_chart_and_no_interval():
    page = page_text(report(reported(0, 1.0, 2.0), spec="name: race"))
    assert page.count("<svg") == 1
    assert "Other runs differ" not in page
    assert "Last return 2.<" in page
    # Runs without an experiment have no average.
    alone = report(reported(0, 1.0, experiment=""), reported(1, 1.0, experiment=""))
    assert [title for title, _ in alone.charts] == [""]


def test_without_records_the_page_says_so():
    run = reported(0)
    page = page_text(report(replace(run, record=replace(run.record, launch=LaunchFacts()))))
    assert "No record of a learner was seen." in page
    assert "No git revision is recorded." in page
    assert "<svg" not in page
    assert "Last return" not in page


def test_ends_receipts_spec_and_code_are_on_the_page():
    ending = Ending(
        RunOutcome.FAILED, 1.7e9 + 300, logs=(("race-w-0", ("out of memory",)),), receipt="nothing left of race-s0",
        checkpoints="/results/race-s0", note="its curve could not be read",
    )  # fmt: skip
    first = reported(0, 1.0)
    entry = replace(first.record.entry, ended=1.7e9 + 300, env_steps=12_345.0, image="lab/node@sha256:1",
                    backend="kubernetes", context="blue", namespace="lab")  # fmt: skip
    first = replace(first, record=replace(first.record, entry=entry, ending=ending))
    done = replace(first, record=replace(first.record, ending=replace(ending, state=RunOutcome.DONE, logs=())))
    patch = "\n".join(f"+{number}" for number in range(MAX_PATCH_LINES + 5))
    source = SourceState("/r", "d" * 40, "", patch, ("new.py",), "the diff is cut off")
    second = reported(1, 2.0, source=source, differences=(Difference("spec", "train.lr", 0.1, 0.2),))
    page = page_text(report(first, second, done, spec="name: race\nseed: 0", notes=("One is missing.",)))
    for part in (
        *("out of memory", "nothing left of race-s0", "/results/race-s0", "its curve could not be read"),
        *("12,345", "kubernetes / blue / lab", "Image lab/node@sha256:1", "5m", "One is missing."),
        *("name: race\nseed: 0", "<td>train.lr</td><td>0.1</td><td>0.2</td>", f"{'c' * 40} on main (2 runs)"),
        *(f"{'d' * 40}, with changes (1 run)", "new.py", "… and 5 more lines", "the diff is cut off"),
        *("<td>l2rtui 1.0</td>", "$ l2rtui launch", "2023-11-14 22:13 UTC"),
    ):
        assert part in page, part
    assert page.count("last lines of race-w-0") == 1
    quiet = replace(done, record=replace(done.record, ending=replace(ending, note="")))
    assert "<th>note</th>" in page
    assert "<th>note</th>" not in page_text(report(quiet)), "a column that says nothing"


@pytest.mark.parametrize("started", [float("inf"), float("nan"), 1e18, -1e18])
def test_a_time_of_no_calendar_is_left_out(started):
    run = reported(0, 1.0)
    run = replace(run, record=replace(run.record, entry=replace(run.record.entry, started=started)))
    assert "race-s0" in page_text(report(run))


def test_texts_from_outside_stay_texts():
    source = SourceState(HOSTILE, HOSTILE, HOSTILE, HOSTILE, (HOSTILE,), HOSTILE)
    entry = HistoryEntry(
        HOSTILE, HOSTILE, HOSTILE, image=HOSTILE, owner=HOSTILE, backend=HOSTILE, context=HOSTILE, namespace=HOSTILE
    )
    launch = LaunchFacts(HOSTILE, ((HOSTILE, (HOSTILE,)),), ((HOSTILE, HOSTILE),), HOSTILE, source)
    ending = Ending(
        RunOutcome.FAILED, 1.0, logs=((HOSTILE, (HOSTILE,)),), checkpoints=HOSTILE, receipt=HOSTILE, note=HOSTILE
    )
    curves = RunCurve()
    curves.add(CurveRecord(1.0, 1.0, 1.0, {RETURN: 1.0, HOSTILE: 2.0}))
    run = ReportedRun(
        HistoryRecord(entry, launch, ending),
        SeedCurve(HOSTILE, curves, 0, HOSTILE),
        HOSTILE,
        differences=(Difference(HOSTILE, HOSTILE, HOSTILE, None),),
    )
    page = page_text(ExperimentReport(HOSTILE, 1.0, HOSTILE, (run, run), HOSTILE, (HOSTILE,)))
    page.encode()  # no half characters
    read = PageTexts(page)
    assert not {"script", "img", "iframe", "link", "a"} & set(read.tags)
    assert not {"onerror", "src", "href"} & read.attributes
    assert not {"\x1b", "\u202e"} & set(page)
    assert sum("<script>alert(1)</script>" in text for text in read.texts) > 15


def test_the_page_asks_for_nothing_from_a_network():
    page = page_text(report(reported(0, 1.0), reported(1, 2.0)))
    assert "default-src &#x27;none&#x27;" in page
    assert not {"src", "href", "xlink:href", "action"} & PageTexts(page).attributes
    assert "url(" not in page
    assert "@import" not in page
