"""Owners, experiments, and trials of a sweep: columns and JSON documents."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import to_builtins

from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.status import Level
from l2rtui.domain.sweeps import short_names, value_text
from l2rtui.tables.column import Column, Document, TableColumn, View, app_only, both

if TYPE_CHECKING:
    from l2rtui.domain.experiments import ExperimentSummary, TrialResult
    from l2rtui.domain.owners import Holding

TREND: Final = TableColumn("trend", "over time", most=12, rank=1)
_FAULTS: Final = ("stalled", "diverged", "failed", "lost")


class OwnerRow(NamedTuple):
    """Slots and GPUs of one owner in one project; GPU-hours are summed over all projects of the owner."""

    holding: Holding
    gpu_hours: float | None


def owner_document(row: OwnerRow) -> dict[str, Any]:
    """Return the JSON form of an owner."""
    holding, hours = row
    return {
        "owner": holding.owner or None,
        "project": holding.project or None,
        "pods": holding.pods,
        "runs": holding.runs,
        "slots": holding.slots,
        "cpu_slots": holding.cpu_slots,
        "gpus": holding.gpus,
        "idle_gpus": holding.idle_gpus,
        "unknown_gpus": holding.unknown_gpus,
        "idle": to_builtins(holding.idle),
        "gpu_hours": None if hours is None else round(hours, 3),
    }


def _idle_gpus(row: OwnerRow) -> str:
    return "  ".join(f"{gpu.node}/{gpu.gpu} {gpu.time.text}" for gpu in row.holding.idle)


def _idle_level(row: OwnerRow) -> Level | None:
    return Level.WARN if row.holding.idle_gpus else None


OWNERS: Final[View[OwnerRow]] = View(
    lambda row: row.holding.owner or "unknown",
    (
        both("owner", lambda row: row.holding.owner, 24, style="strong"),
        both("project", lambda row: row.holding.project, 24, 2, style="dim"),
        both("runs", lambda row: row.holding.runs, 6, 4, is_count=True),
        both("pods", lambda row: row.holding.pods, 6, 5, is_count=True),
        both("GPUs", lambda row: row.holding.gpus, 6, key="gpus", is_count=True),
        both("slots", lambda row: row.holding.slots, 6, is_count=True),
        both("CPU slots", lambda row: row.holding.cpu_slots, 9, 7, key="cpu_slots", is_count=True),
        both("idle", lambda row: row.holding.idle_gpus, 6, header="IDLE GPUS", is_count=True, level=_idle_level),
        both("unknown", lambda row: row.holding.unknown_gpus, 7, 6, is_count=True),
        both("GPU-hours", lambda row: row.gpu_hours, 10, 3, key="hours", is_number=True),
        both("idle for", _idle_gpus, 60, 8, header="IDLE", key="which", is_wide=True, style="warn"),
    ),
    document=owner_document,
)


# --- experiments -----------------------------------------------------------------------------------------------
def experiment_document(summary: ExperimentSummary) -> dict[str, Any]:
    """Return the JSON form of an experiment over its seeds, which is also the row of its table."""
    document: dict[str, Any] = to_builtins(summary)
    return document | {"title": summary.title}


def _runs_in(state: str, title: str, most: int, rank: int = 0, level: Level | None = None) -> Column:
    return both(
        title, itemgetter(state), most, rank, is_count=True, level=lambda row: level if row[state] else None
    )


def _compared_seed(key: str) -> Callable[[Document], object]:
    """Return the function that reads a seed; one run is neither the best nor the worst."""
    return lambda row: row[key] if row["runs"] > 1 else None


EXPERIMENTS: Final[View[Document]] = View(
    "experiment",
    (
        both("experiment", itemgetter("title"), 40, key="name", style="strong"),
        both("runs", itemgetter("runs"), 6, is_count=True),
        _runs_in("queued", "queued", 6, 4, Level.WAIT),
        _runs_in("live", "live", 6, level=Level.OK),
        _runs_in("stalled", "stalled", 7, level=Level.BAD),
        _runs_in("done", "done", 6),
        _runs_in("failed", "failed", 6, level=Level.BAD),
        app_only(
            TableColumn("unknown", "unknown", 7, right=True, rank=5, is_count=True, style="warn"),
            itemgetter("unknown"),
        ),
        both("return", itemgetter("mean_return"), 9, is_number=True, style="strong"),
        app_only(TREND),
        both("95% low", itemgetter("low"), 9, 2, header="LOW", key="low", needs="high", is_number=True),
        both("95% high", itemgetter("high"), 9, 2, header="HIGH", key="high", is_number=True),
        Column("BEST SEED", "best_seed", is_number=True),
        Column("WORST SEED", "worst_seed", is_number=True),
        app_only(TableColumn("best", "best seed", 9, right=True, rank=3), _compared_seed("best_seed")),
        app_only(TableColumn("worst", "worst seed", 10, right=True, rank=3), _compared_seed("worst_seed")),
    ),
)


# --- trials ----------------------------------------------------------------------------------------------------
def trial_name(result: TrialResult) -> str:
    """Return the name of a trial: ``t3``."""
    return f"t{result.trial.number}"


def trial_document(result: TrialResult) -> dict[str, Any]:
    """Return the JSON form of a trial over its seeds."""
    return {
        "trial": result.trial.number,
        "values": result.trial.settings(),
        "runs": result.runs,
        "states": dict(result.states),
        "mean_return": result.mean_return,
        "low": result.low,
        "high": result.high,
        "best_return": result.best_return,
        "env_steps": int(result.env_steps),
    }


def _states(result: TrialResult) -> str:
    return ", ".join(f"{number} {state}" for state, number in result.states)


def is_faulty(result: TrialResult) -> bool:
    """Return True if a run of the trial has failed, stalled, diverged or was lost."""
    return any(state in _FAULTS for state, _ in result.states)


def json_text(value: object) -> object:
    """Return a value of a trial as a cell: texts and numbers unchanged, lists and objects as JSON."""
    return json.dumps(value) if isinstance(value, list | dict) else value


def six_digits(number: float) -> str:
    """Return a return or another measured value for a table of results."""
    return f"{number:.6g}"


def _value_order(value: object) -> tuple[bool, float, str]:
    """Return a sort value: values of one field may be of several types, which cannot be compared."""
    number = float(value) if isinstance(value, int | float) else None
    return number is not None, number or 0.0, value_text(value)


def trials(results: Iterable[TrialResult]) -> View[TrialResult]:
    """Return the layout of a table with a column for each swept field."""
    paths = list(dict.fromkeys(path for result in results for path in result.trial.settings()))
    # Under their last words, unless two of these are equal.
    names = {path: sanitize(name) for path, name in short_names(paths).items()}

    def value(path: str) -> Column[TrialResult]:
        def of(result: TrialResult) -> object:
            return result.trial.settings().get(path)

        def order(result: TrialResult) -> tuple[bool, float, str]:
            return _value_order(of(result))

        app = TableColumn(f"value:{path}", names[path], 16, right=True, text=value_text, sort=order)
        return Column(names[path].upper(), lambda result: json_text(of(result)), app=app)

    figure = partial(both, is_number=True, cli_text=six_digits)
    return View(
        trial_name,
        (
            both("trial", trial_name, 6, style="strong", sort=lambda result: result.trial.number),
            *map(value, paths),
            figure("return", lambda result: result.mean_return, 9, header="MEAN", style="strong"),
            app_only(TREND),
            figure("95% low", lambda result: result.low, 9, 2, header="LOW", key="low", needs="high"),
            figure("95% high", lambda result: result.high, 9, 2, header="HIGH", key="high"),
            figure("best", lambda result: result.best_return, 9, 3),
            both(
                "env steps",
                lambda result: int(result.env_steps),
                14,
                4,
                header="STEPS",
                key="steps",
                is_number=True,
                text="{:,}".format,
            ),
            both("runs", _states, 40, level=lambda result: Level.BAD if is_faulty(result) else None),
        ),
        document=trial_document,
    )


def trial_cells(results: Sequence[TrialResult]) -> list[dict[str, object]]:
    """Return the rows of a CSV table with a column for each swept field, under its path."""
    rows = []
    for result in results:
        document = trial_document(result)
        values = {path: json_text(value) for path, value in document["values"].items()}
        others = {name: value for name, value in document.items() if name not in ("trial", "values", "states")}
        rows.append({"trial": document["trial"], **values, **others, "states": _states(result)})
    return rows
