"""Matrix of seeds and sets: one row per run with its status and learning progress, and a cell for each set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from textual.message import Message

from l2rtui.domain.experiments import seed_result, summarize
from l2rtui.domain.metrics import PodMetrics, RunMetrics
from l2rtui.domain.quantity import counted
from l2rtui.domain.runstatus import NO_REPORTS, LearningState, learning_state, replicas_of_run, run_status
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import PodView, RunView
from l2rtui.domain.status import Level
from l2rtui.domain.sweeps import values_text
from l2rtui.domain.workload import Role
from l2rtui.tables.cluster import RUNS
from l2rtui.tables.column import TableColumn
from l2rtui.ui.text import (
    GLYPHS,
    NOTHING,
    Line,
    Span,
    TextStyle,
    count,
    decimal,
    per_second,
    sparkline,
    status_text,
    style_of_level,
)
from l2rtui.ui.widgets.grid.legend import letters_of
from l2rtui.ui.widgets.table_model import Row, RowModel, columns_of, make_row
from l2rtui.ui.widgets.virtual_table import VirtualTable

TREND_COLUMNS: Final = 12
NO_LETTER: Final = ("", TextStyle.DIM)
MOST_SETS: Final = 64
CELL: Final = "set:"
"""Prefix of the keys of set columns."""
_COMPLETE: Final = (TextStyle.OK, TextStyle.DIM, TextStyle.DONE, TextStyle.PLAIN)


class RunTable(VirtualTable):
    """Matrix of all runs."""

    COLUMNS = tuple(column for column in columns_of(RUNS) if column.key != "at")
    EMPTY = "No runs."
    SAME = ("trial", "values", "seed", "experiment", "owner")
    _KEYS = (
        ("enter", "train the example: the steps are shown first"),
        ("L", "launch another spec: choose it from a list"),
        ("P", "place a run on slots by cursor"),
        ("H", "past runs: how they ended, and launch them again"),
        ("?", "all keys"),
    )

    class ExampleWanted(Message):
        """Enter was pressed while there are no runs."""

    @property
    def natural_rows(self) -> int:
        """Number of lines below the header: the rows, or the first steps without any."""
        return len(self._KEYS) + 1 if self._has_first_steps else super().natural_rows

    @property
    def _has_first_steps(self) -> bool:
        # Without an answer of the cluster, whether there are runs is unknown, and the text is another.
        return not self.model.rows and self.empty_text == self.EMPTY

    def empty_line(self, line: int, width: int) -> Line:
        """Return a line of the first steps while there are no runs."""
        if not self._has_first_steps or not 0 < line <= len(self._KEYS):
            return super().empty_line(line, width)
        key, text = self._KEYS[line - 1]
        return Span(f"{key:<7}", TextStyle.ACCENT), Span(text)

    def action_choose(self) -> None:
        """Post Chosen for the row under the cursor; without runs, ExampleWanted."""
        if self._has_first_steps:
            self.post_message(self.ExampleWanted())
        else:
            super().action_choose()

    @property
    def cursor_set(self) -> str:
        """Name of the set under the cursor; empty while the cursor is on the whole run."""
        return (self.cursor_cell or "").removeprefix(CELL)

    def is_column_empty(self, number: int, column: TableColumn, rows: Sequence[Row]) -> bool:
        """True also for a set of which no run misses a pod, and for seed or owner of the only run."""
        if column.is_cell:
            return all(row.cells[number].style in _COMPLETE for row in rows)
        return super().is_column_empty(number, column, rows) or (column.key in self.SAME and len(rows) == 1)


class RunRows:
    """Factory of the rows of runs; rows of a large cluster's first snapshot can be made ahead, in a thread."""

    def __init__(self) -> None:
        self._ahead: dict[str, tuple[Sequence[PodView], tuple[str, ...], Row]] = {}
        self._states_ahead: dict[str, LearningState | None] = {}

    def make_ahead(
        self,
        runs: Iterable[RunView],
        pods_of: Callable[[str], Sequence[PodView]],
        learning_of: Callable[[RunView, Sequence[PodView]], LearningState] | None = None,
    ) -> None:
        """Make the rows of these runs, without metrics."""
        ordered = in_order(runs)
        sets, letters = sets_of(ordered), letters_of(ordered)
        pods = {run.uid: pods_of(run.name) for run in ordered}
        states = {run.uid: learning_of(run, pods[run.uid]) if learning_of else None for run in ordered}
        self._ahead = {
            run.uid: (
                pods[run.uid],
                (*sets, letters[run.name][0]),
                run_row(run, pods[run.uid], None, sets, learning=states[run.uid], letter=letters[run.name]),
            )
            for run in ordered
        }
        self._states_ahead = states

    def row(
        self,
        run: RunView,
        pods: Sequence[PodView],
        metrics: RunMetrics | None,
        sets: tuple[str, ...],
        at: str | None = None,
        old: str = "",
        learning: LearningState | None = None,
        letter: tuple[str, TextStyle] = NO_LETTER,
    ) -> Row:
        """Like ``run_row``; uses the row made ahead, once, if it was made from the same values."""
        # Identity instead of a comparison: the pods of an unchanged run are the same tuple in both snapshots.
        ahead = self._ahead.pop(run.uid, None)
        is_same = learning == self._states_ahead.get(run.uid)
        if (
            ahead is not None
            and ahead[0] is pods
            and ahead[1] == (*sets, letter[0])
            and metrics is None
            and at is None
            and is_same
        ):
            return ahead[2]
        return run_row(run, pods, metrics, sets, at, old, learning, letter)


def in_order(runs: Iterable[RunView]) -> list[RunView]:
    """Sort runs: oldest first, in the order of their letters in the slot grid, then by seed."""
    return sorted(runs, key=lambda run: (run.created, run.experiment, run.seed, run.name))


def sets_of(runs: Iterable[RunView]) -> tuple[str, ...]:
    """Return the names of all sets in order of first occurrence, learners first."""
    learners: dict[str, None] = {}
    others: dict[str, None] = {}
    for run in runs:
        for worker_set in run.sets:
            (learners if worker_set.role is Role.LEARNER else others)[worker_set.name] = None
    return tuple({**learners, **others})[:MOST_SETS]


def activity_of(pods: Sequence[PodView], records: Mapping[str, PodMetrics]) -> str:
    """Summarise the activity of a run's processes: size of the process group, and current steps."""
    reported = [records[pod.uid] for pod in pods if pod.uid in records]
    worlds = [record.world_size for record in reported if record.world_size is not None]
    steps = list(dict.fromkeys(record.step for record in reported if record.step))
    ranks = f"{max(worlds)} rank{'s' if max(worlds) != 1 else ''}" if worlds else ""
    return sanitize("  ".join(filter(None, (ranks, ", ".join(steps[:4])))))


def columns_for(sets: Sequence[str], *, has_at: bool = False) -> tuple[TableColumn, ...]:
    """Return the columns of a matrix with these sets."""
    cells = (TableColumn(f"{CELL}{name}", sanitize(name), most=14, is_cell=True) for name in sets)
    columns = [column for column in columns_of(RUNS) if has_at or column.key != "at"]
    after = next(number for number, column in enumerate(columns, 1) if column.key == "ready")
    return (*columns[:after], *cells, *columns[after:])


def run_row(
    run: RunView,
    pods: Sequence[PodView],
    metrics: RunMetrics | None,
    sets: Sequence[str] = (),
    at: str | None = None,
    old: str = "",
    learning: LearningState | None = None,
    letter: tuple[str, TextStyle] = NO_LETTER,
) -> Row:
    """Make the row of a run, with a cell for each of these sets, and one for its activity unless that is None.

    Args:
        old: Age of the metrics if they are outdated; otherwise empty.
        learning: State of its learning; None derives it only from the pods.
        letter: Letter and hue of its slots in the grid.
    """
    status = run_status(run, pods)
    learning = learning or learning_state(run, pods, NO_REPORTS, run.created)
    by_set: dict[str, list[PodView]] = {}
    failing = set()
    for pod in pods:
        by_set.setdefault(pod.set_name, []).append(pod)
        if pod.is_failing:
            failing.add(pod.set_name)
    # A list, not a generator, which costs more per item: this runs over all pods of the cluster.
    counts = {name: sum([pod.ready for pod in own]) for name, own in by_set.items()}
    ready, replicas = sum(counts.values()), replicas_of_run(run)
    rate, updates, reported_return, *learner_counters = _numbers(metrics, old, is_live=is_learning(pods))
    return make_row(
        run.uid,
        (Span(sanitize(run.name), TextStyle.STRONG), run.name),
        (Span(*letter), letter[0]),
        (Span(status_text(sanitize(status.word), status.level), style_of_level(status.level)), status.word),
        (Span(status_text(learning.word, learning.level), style_of_level(learning.level)), learning.word),
        reported_return,
        # The trend sorts by the return as well.
        (Span(sparkline(metrics.returns, TREND_COLUMNS) if metrics else "", TextStyle.ACCENT), reported_return[1]),
        (Span(f"{ready}/{replicas}", _ready_style(ready, replicas, status.level)), ready),
        *(
            (_set_cell(run, name, by_set.get(name, ()), counts.get(name, 0), name in failing), counts.get(name, 0))
            for name in sets
        ),
        *(() if at is None else ((_span(at or NOTHING), at),)),
        rate,
        updates,
        *learner_counters,
        *_trial_cells(run),
        (Span(str(run.seed), TextStyle.DIM), run.seed),
        (Span(sanitize(run.experiment), TextStyle.DIM), run.experiment),
        (Span(sanitize(run.owner) or NOTHING, TextStyle.DIM), run.owner),
        (Span("", TextStyle.DIM), -run.created),  # sorts like the age, but does not change with time
        is_fault=status.level in (Level.BAD, Level.WARN) or learning.is_fault,
    )


def _trial_cells(run: RunView) -> tuple[tuple[Span, float], tuple[Span, str]]:
    """Return the cells of a run's trial and its values; empty outside of a sweep."""
    if run.trial is None:
        return (Span(""), -1.0), (Span(""), "")
    values = sanitize(values_text(run.trial))
    return (Span(f"t{run.trial.number}"), run.trial.number), (Span(values), values)


def _ready_style(ready: int, replicas: int, level: Level) -> TextStyle:
    if level is Level.DONE:
        return TextStyle.DIM
    return TextStyle.PLAIN if ready >= replicas else TextStyle.WARN


def _set_cell(run: RunView, name: str, own: Sequence[PodView], ready: int, is_failing: bool) -> Span:
    """``4/4``, with a glyph if a pod fails or is still missing; empty if the run has no such set."""
    worker_set = next((worker_set for worker_set in run.sets if worker_set.name == name), None)
    if worker_set is None:
        return Span("")
    text = f"{ready}/{worker_set.replicas}"
    if is_failing:
        return Span(f"{text} {GLYPHS[Level.BAD]}", style_of_level(Level.BAD))
    if ready >= worker_set.replicas:
        return Span(text, TextStyle.OK if ready else TextStyle.DIM)
    if own and all(pod.phase.is_over for pod in own):
        return Span(f"{text} {GLYPHS[Level.DONE]}", TextStyle.DONE)
    return Span(f"{text} {GLYPHS[Level.WAIT]}", TextStyle.WAIT)


def _span(text: str) -> Span:
    return Span(text, TextStyle.PLAIN if text != NOTHING else TextStyle.DIM)


def is_learning(pods: Iterable[PodView]) -> bool:
    """Return True if a learner of the run is ready, so that its rates can be current."""
    return any(pod.ready and pod.role is Role.LEARNER for pod in pods)


def _numbers(metrics: RunMetrics | None, old: str, *, is_live: bool) -> list[tuple[Span, float]]:
    """Return cells and sort values of the learner's numbers; a run without numbers sorts below all others.

    A rate is shown only if it is current: a learner that hangs or was deleted has none. Its last counts stay,
    dimmed.
    """
    nothing = _span(NOTHING), float("-inf")
    if metrics is None:
        return [nothing] * 6
    if old or not is_live:
        silent = Span(f"silent {old}", TextStyle.WARN), float("-inf")
        return [silent if is_live else nothing, nothing, *_counters(metrics, TextStyle.DIM)]
    values: list[tuple[str, float | None]] = [
        (count(round(metrics.env_steps_per_second)), metrics.env_steps_per_second),
        (per_second(metrics.updates_per_second), metrics.updates_per_second),
    ]
    return [*_cells(values, TextStyle.PLAIN), *_counters(metrics, TextStyle.PLAIN)]


def _counters(metrics: RunMetrics, style: TextStyle) -> list[tuple[Span, float]]:
    values: list[tuple[str, float | None]] = [
        (decimal(metrics.reported_return), metrics.reported_return),
        (f"v{metrics.policy_version:,}", metrics.policy_version),
        (decimal(metrics.policy_lag), metrics.policy_lag),
        (count(metrics.env_steps), metrics.env_steps),
    ]
    return _cells(values, style)


def _cells(values: Iterable[tuple[str, float | None]], style: TextStyle) -> list[tuple[Span, float]]:
    return [
        (_span(text) if text == NOTHING else Span(text, style), float("-inf") if value is None else float(value))
        for text, value in values
    ]


KEY: Final = "sum"
"""Key of the row; no run has it, and the cursor skips it."""
PodsOf = Callable[[str], Sequence[PodView]]


def sum_of_listed(
    model: RowModel,
    runs: Mapping[str, RunView],
    pods_of: PodsOf,
    metrics: Mapping[str, RunMetrics],
    learning: Mapping[str, LearningState],
) -> Row | None:
    """Return the sum of the listed runs if they are several of one experiment; otherwise None.

    Args:
        runs, metrics, learning: By uid of the run.
    """
    # The rows may be slightly older than the snapshot.
    listed = [runs[uid] for uid in model.displayed if uid in runs]
    if len(listed) < 2 or any(run.experiment != listed[0].experiment for run in listed):
        return None
    cells = _sum_cells(listed, pods_of, metrics, learning)
    spans = [cells.get(column.key, Span("")) for column in model.columns]
    return Row(KEY, tuple(spans), tuple(0.0 for _ in spans))


def _sum_cells(
    runs: Sequence[RunView],
    pods_of: PodsOf,
    metrics: Mapping[str, RunMetrics],
    learning: Mapping[str, LearningState],
) -> dict[str, Span]:
    """Return the cells by the keys of their columns."""
    pods = {run.uid: pods_of(run.name) for run in runs}
    states = {
        run.uid: learning.get(run.uid) or learning_state(run, pods[run.uid], NO_REPORTS, run.created)
        for run in runs
    }
    summaries = summarize(seed_result(run, states[run.uid], metrics.get(run.uid)) for run in runs)
    num_live, is_fault = sum(own.live for own in summaries), any(own.is_fault for own in summaries)
    # Runs of several specs or places have no mean.
    mean_return = summaries[0].mean_return if len(summaries) == 1 else None
    own = [metrics[run.uid] for run in runs if run.uid in metrics]
    # A learner that has ended no longer has a rate, whatever its last record says.
    rates = [metrics[run.uid] for run in runs if run.uid in metrics and is_learning(pods[run.uid])]
    num_good = sum(run_status(run, pods[run.uid]).level in (Level.OK, Level.DONE) for run in runs)
    ready = sum(pod.ready for members in pods.values() for pod in members)
    replicas = sum(map(replicas_of_run, runs))
    return {
        "run": Span(f"all {counted(len(runs), 'seed')}", TextStyle.STRONG),
        "state": Span(f"{num_good} of {len(runs)} ok", _style(num_good, len(runs))),
        "learning": Span(f"{num_live} live", TextStyle.WARN if is_fault else TextStyle.PLAIN),
        "seed": Span(str(len(runs)), TextStyle.DIM),
        "ready": Span(f"{ready}/{replicas}", _style(ready, replicas)),
        "rate": Span(count(sum(record.env_steps_per_second for record in rates)) if rates else NOTHING),
        "updates": Span(per_second(sum(record.updates_per_second for record in rates)) if rates else NOTHING),
        "return": Span(decimal(mean_return), TextStyle.STRONG),
        "lag": Span(decimal(max((record.policy_lag for record in own), default=None))),
        "steps": Span(count(sum(record.env_steps for record in own)) if own else NOTHING),
        "experiment": Span(sanitize(runs[0].experiment), TextStyle.DIM),
        **_set_cells(runs, pods),
    }


def _set_cells(runs: Sequence[RunView], pods: Mapping[str, Sequence[PodView]]) -> dict[str, Span]:
    """Return ``ready/replicas`` of each set over all runs."""
    replicas: dict[str, int] = {}
    for run in runs:
        for worker_set in run.sets:
            replicas[worker_set.name] = replicas.get(worker_set.name, 0) + worker_set.replicas
    ready = dict.fromkeys(replicas, 0)
    for members in pods.values():
        for pod in members:
            if pod.ready and pod.set_name in ready:
                ready[pod.set_name] += 1
    return {
        f"{CELL}{name}": Span(f"{ready[name]}/{number}", _style(ready[name], number))
        for name, number in replicas.items()
    }


def _style(part: int, total: int) -> TextStyle:
    return TextStyle.PLAIN if part >= total else TextStyle.WARN
