"""Report of an experiment: its runs with their records and statistics, as one HTML page with inline SVG.

All texts come from untrusted specs, logs and repositories. Every text enters the page through `_text`, which
removes terminal control characters and escapes HTML. The content security policy in the head additionally forbids
scripts and requests.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from msgspec import Struct

from l2rtui.domain.curves.chart import RETURN, ChartSettings, CurveGroup, SeedCurve, grouped
from l2rtui.domain.curves.export import svg_text
from l2rtui.domain.experiments import TrialResult, TrialRun, bootstrap_interval, trial_results
from l2rtui.domain.history import Difference, HistoryEntry, HistoryRecord, Key, RunOutcome, SourceState, variants_of
from l2rtui.domain.quantity import age, counted
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.sweeps import Trial, short_names

CHARTS: Final = ChartSettings()
"""Charts of a report: over env steps, not smoothed, over the full length."""


class ReportedRun(Struct, frozen=True):
    """One launch of a run.

    Attributes:
        state: Outcome, or current state.
        is_newest: No later launch has its name, or its seed and its spec. Earlier launches are listed, but not part
            of curves and means.
        trial: Trial of a sweep to which it belongs; None outside of a sweep.
        differences: Differences from the spec, code and versions that the report shows in full.
    """

    record: HistoryRecord
    curve: SeedCurve
    state: str
    is_newest: bool = True
    trial: Trial | None = None
    differences: tuple[Difference, ...] = ()

    @property
    def identity(self) -> Key:
        """Identity of its experiment: name, place and spec."""
        return self.record.entry.experiment, self.curve.place, self.curve.spec_id


class ReturnSummary(Struct, frozen=True):
    """Mean of the final returns over the newest launches, with the limits of its 95 % bootstrap interval.

    Attributes:
        variant: Spec or place, if the page has runs of several; otherwise empty.
    """

    num: int
    mean: float
    limits: tuple[float, float] | None
    variant: str = ""


class ExperimentReport(Struct, frozen=True):
    """All data about one experiment that a page shows.

    Attributes:
        made: Time of the report, in seconds since the epoch. program: Name and version of the program that made it.
        runs: By seed and name; the newest launch of a run comes before earlier ones. At least one.
        spec: Resolved spec of the first run as YAML; empty if unknown.
        notes: Sentences on missing parts of the report.
    """

    title: str
    made: float
    program: str
    runs: tuple[ReportedRun, ...]
    spec: str = ""
    notes: tuple[str, ...] = ()

    @property
    def newest(self) -> tuple[ReportedRun, ...]:
        """The newest launch of each run."""
        return tuple(run for run in self.runs if run.is_newest)

    @property
    def states(self) -> tuple[tuple[str, int], ...]:
        """Number of runs by state, the most frequent first."""
        return tuple(Counter(run.state for run in self.newest).most_common())

    @property
    def final_returns(self) -> tuple[ReturnSummary, ...]:
        """Mean of the final returns for each spec and place; empty if no run has a return."""
        members: dict[Key, list[float]] = {}
        for run in self.newest:
            value = run.record.entry.final_return
            if value is not None and math.isfinite(value):
                members.setdefault(run.identity, []).append(value)
        variants = variants_of(members)
        return tuple(
            ReturnSummary(len(own), math.fsum(own) / len(own), bootstrap_interval(tuple(own)), variants[key])
            for key, own in members.items()
        )

    @property
    def final_return(self) -> ReturnSummary | None:
        """Mean of the final returns; None if no run has one, or if the runs have several specs or places."""
        own = self.final_returns
        return own[0] if len(own) == 1 else None

    @property
    def repeated_seeds(self) -> tuple[int, ...]:
        """Seeds shared by several launches of one spec and place."""
        counts = Counter((run.record.entry.seed, *run.identity) for run in self.runs)
        return tuple(sorted({int(seed) for (seed, *_), number in counts.items() if number > 1}))

    @property
    def trials(self) -> tuple[TrialResult, ...]:
        """Results of the trials of a sweep, the best first; empty if no run belongs to a trial."""
        return trial_results(
            TrialRun(
                run.record.entry.run, run.trial, run.record.entry.seed, run.state, run.record.entry.final_return
            )
            for run in self.newest
            if run.trial is not None
        )

    @property
    def charts(self) -> tuple[tuple[str, Sequence[CurveGroup]], ...]:
        """Charts with their titles: the mean over seeds and, if there are several runs, each run separately."""
        seeds = [run.curve for run in self.newest if run.curve.curve.num_records]
        if not seeds:
            return ()
        mean = grouped(seeds, by_experiment=True)
        if len(mean) == len(seeds):
            return (("", mean),)
        return (("Mean over seeds", mean), ("Each run", grouped(seeds, by_experiment=False)))

    @property
    def sources(self) -> tuple[tuple[SourceState, int], ...]:
        """Source trees of the newest launches with their number of runs, including trees without a commit."""
        return tuple(Counter(run.record.launch.source for run in self.newest).items())

    @property
    def versions(self) -> tuple[tuple[str, int], ...]:
        """Programs with their versions, and the number of newest launches that had them."""
        pairs = (f"{name} {version}" for run in self.newest for name, version in run.record.launch.versions)
        return tuple(Counter(pairs).items())


MAX_PATCH_LINES: Final = 2_000
"""Lines of a patch on the page: browsers render ten thousand lines slowly, and the history has all of them."""
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE: Final = """
body { margin: 2rem auto; max-width: 62rem; padding: 0 1rem; font: 15px/1.45 sans-serif; color: #222; }
h1 { margin-bottom: 0; } h2 { margin-top: 2.2rem; border-bottom: 1px solid #ccc; } .quiet { color: #666; }
table { border-collapse: collapse; font-size: 13px; } .wide { overflow-x: auto; }
th, td { padding: .25rem .7rem .25rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid #e6e6e6; }
td.number, th.number { text-align: right; } .failed { color: #b00020; }
pre { overflow-x: auto; padding: .7rem; background: #f6f6f6; font-size: 12px; }
svg { max-width: 100%; height: auto; }
@media print { body { margin: 0; max-width: none; } pre { white-space: pre-wrap; } }
"""
_TRIAL_NUMBERS: Final = ("mean return", "low", "high", "best return", "runs")
_NUMBERS: Final = frozenset(("seed", "env steps", "last return", *_TRIAL_NUMBERS))
_COLUMNS: Final = ("run", "seed", "state", "started", "took", "env steps", "best return", "last return", "where")
_ENDS: Final = ("run", "outcome", "receipt", "checkpoints and metrics", "note")


def page_text(report: ExperimentReport) -> str:
    """Return the report as one HTML document."""
    return "\n".join((
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_text(report.title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>",
        *_head(report),
        *_curves(report),
        *_section("Sweep", _sweep(report)),
        *_section("Runs", _runs(report)),
        *_section("How they ended", _ends(report.runs)),
        *_section("Spec", _spec(report)),
        *_section("Code and versions", _code(report)),
        "</body>\n</html>\n",
    ))  # fmt: skip


def _text(value: object) -> str:
    return escape(sanitize(str(value)))


def _lines(lines: Iterable[str]) -> str:
    return f"<pre>{chr(10).join(map(_text, lines))}</pre>"


def _section(title: str, parts: Iterable[str]) -> Iterator[str]:
    content = tuple(parts)
    if content:
        yield f"<h2>{title}</h2>"
        yield from content


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    def row(tag: str, cells: Sequence[object]) -> str:
        return "".join(
            f"<{tag}{' class=number' if column in _NUMBERS else ''}>{_text(cell)}</{tag}>"
            for column, cell in zip(columns, cells, strict=True)
        )

    body = "\n".join(f"<tr>{row('td', cells)}</tr>" for cells in rows)
    return f'<div class="wide"><table>\n<tr>{row("th", columns)}</tr>\n{body}\n</table></div>'


# --- parts -----------------------------------------------------------------------------------------------------
def _head(report: ExperimentReport) -> Iterator[str]:
    yield f"<h1>{_text(report.title)}</h1>"
    yield f'<p class="quiet">Written {_time(report.made)} by {_text(report.program)}.</p>'
    states = ", ".join(f"{number} {state}" for state, number in report.states)
    means = "".join(map(_mean, report.final_returns))
    yield f"<p>{counted(len(report.newest), 'run')}: {_text(states)}.{means}</p>"
    if report.repeated_seeds:
        seeds = ", ".join(map(str, report.repeated_seeds))
        yield f"<p>Launched more than once, and the newest counts: seed {seeds}.</p>"
    yield from (f'<p class="failed">{_text(note)}</p>' for note in report.notes)


def _mean(summary: ReturnSummary) -> str:
    of = f" of {_text(summary.variant)}" if summary.variant else ""
    mean = f" Last return{of} {_number(summary.mean)}"
    if summary.limits is None:
        return f"{mean}."
    low, high = map(_number, summary.limits)
    return f"{mean} on average over {summary.num} runs (95% bootstrap interval {low} to {high})."


def _curves(report: ExperimentReport) -> Iterator[str]:
    yield "<h2>Curves</h2>"
    charts = report.charts
    if not charts:
        yield '<p class="quiet">No record of a learner was seen.</p>'
    for number, (title, groups) in enumerate(charts):
        if title:
            yield f"<h3>{title}</h3>"
        # Separate seeds are drawn only for the return: a dozen lines in each of ten charts say less than their
        # means.
        yield svg_text(groups, CHARTS, (RETURN,) if number else ())


def _sweep(report: ExperimentReport) -> Iterator[str]:
    trials = report.trials
    if not trials:
        return
    values = [result.trial.settings() for result in trials]
    names = short_names(list(dict.fromkeys(path for settings in values for path in settings)))
    rows = [
        (
            f"t{result.trial.number}",
            *(settings.get(path, "") for path in names),
            *map(_number, (result.mean_return, result.low, result.high, result.best_return)),
            result.runs,
        )
        for result, settings in zip(trials, values, strict=True)
    ]
    yield f'<div class="wide">{_table(("trial", *names.values(), *_TRIAL_NUMBERS), rows)}</div>'


def _runs(report: ExperimentReport) -> Iterator[str]:
    yield _table(_COLUMNS, map(_row, report.runs))


def _row(run: ReportedRun) -> Sequence[object]:
    entry = run.record.entry
    state = run.state if run.is_newest else f"{run.state} (an earlier launch)"
    took = "" if entry.ended is None else age(entry.ended - entry.started)
    steps = "" if entry.env_steps is None else f"{entry.env_steps:,.0f}"
    numbers = (steps, _number(entry.best_return), _number(entry.final_return))
    return (entry.run, entry.seed, state, _time(entry.started), took, *numbers, _place(entry))


def _place(entry: HistoryEntry) -> str:
    return " / ".join(filter(None, (entry.backend, entry.context, entry.namespace)))


def _ends(runs: Iterable[ReportedRun]) -> Iterator[str]:
    rows = []
    logs: list[str] = []
    for run in runs:
        ending, name = run.record.ending, run.record.entry.run
        if ending is None:
            continue
        rows.append((name, ending.state, ending.receipt, ending.checkpoints, ending.note))
        if ending.state is RunOutcome.FAILED:
            logs += [_folded(f"last lines of {pod} ({name})", lines) for pod, lines in ending.logs]
    if rows:
        # A column that is empty for all runs is left out.
        columns = [number for number, cells in enumerate(zip(*rows, strict=True)) if any(cells)]
        yield _table([_ENDS[number] for number in columns], [[row[number] for number in columns] for row in rows])
    yield from logs


def _folded(title: str, lines: Iterable[str]) -> str:
    return f"<details><summary>{_text(title)}</summary>{_lines(lines)}</details>"


def _spec(report: ExperimentReport) -> Iterator[str]:
    if not report.spec:
        return
    yield f"<p>As resolved for {_text(report.runs[0].record.entry.run)}:</p>"
    yield _lines(report.spec.splitlines())
    rows = [
        (run.record.entry.run, row.part, row.field, row.first, row.second)
        for run in report.newest
        for row in run.differences
    ]
    if rows:
        yield "<p>Other runs differ from it, beside name and seed:</p>"
        yield _table(("run", "part", "field", "there", "in this run"), rows)


def _code(report: ExperimentReport) -> Iterator[str]:
    for source, number in report.sources:
        yield f"<p>{_text(_commit(source))} ({counted(number, 'run')})</p>"
        if source.problem:
            yield f'<p class="quiet">{_text(source.problem)}</p>'
        if source.untracked:
            yield _folded("files in no commit", source.untracked)
        patch = source.diff.splitlines()
        if patch:
            more = len(patch) - MAX_PATCH_LINES
            cut = [f"… and {more:,} more lines"] if more > 0 else []
            yield _folded("changes beyond the commit", [*patch[:MAX_PATCH_LINES], *cut])
    if report.versions:
        yield _table(("version", "runs"), report.versions)
    commands = dict.fromkeys(run.record.launch.command for run in report.newest)
    yield from (_lines((f"$ {command}",)) for command in commands if command)
    images = dict.fromkeys(run.record.entry.image for run in report.newest)
    yield from (f"<p>Image {_text(image)}</p>" for image in images if image)


def _commit(source: SourceState) -> str:
    if not source.revision:
        return "No git revision is recorded."
    branch = f" on {source.branch}" if source.branch else ""
    return f"Git revision {source.revision}{branch}" + (", with changes" if source.is_dirty else "")


# --- values ----------------------------------------------------------------------------------------------------
def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _time(seconds: float) -> str:
    """Format a time in UTC; empty for a time outside of the calendar."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
    except (ValueError, OverflowError, OSError):
        return ""
