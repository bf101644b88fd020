"""Table, CSV and documents of the results of a sweep."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from l2rtui.cli.history_output import csv_rows
from l2rtui.cli.output import Column, Document, View
from l2rtui.domain.experiments.trial_results import TrialResult
from l2rtui.domain.sweeps.trial import short_names


def trial_result_document(result: TrialResult) -> dict[str, Any]:
    """One trial over its seeds."""
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


def sweep_view(documents: Sequence[Document]) -> View:
    """Return the layout of a table with a column for each swept field."""
    paths = list(dict.fromkeys(path for document in documents for path in document["values"]))
    names = short_names(paths)
    return View(
        lambda document: f"t{document['trial']}",
        (
            Column("TRIAL", lambda document: f"t{document['trial']}"),
            *(Column(names[path].upper(), _value(path)) for path in paths),
            Column("MEAN", _figure("mean_return"), is_number=True),
            Column("LOW", _figure("low"), is_number=True),
            Column("HIGH", _figure("high"), is_number=True),
            Column("BEST", _figure("best_return"), is_number=True),
            Column("STEPS", "env_steps", is_number=True),
            Column("RUNS", _states),
        ),
    )


def sweep_csv(documents: Sequence[Document]) -> Iterator[str]:
    """Yield the lines of a CSV table with a column for each swept field, under its path."""
    flat = []
    for document in documents:
        values = {path: _text(value) for path, value in document["values"].items()}
        others = {name: value for name, value in document.items() if name not in ("trial", "values", "states")}
        flat.append({"trial": document["trial"], **values, **others, "states": _states(document)})
    yield from csv_rows(flat)


def _value(path: str) -> Any:
    return lambda document: _text(document["values"].get(path))


def _text(value: object) -> object:
    """Return a value of a trial as a cell: texts and numbers unchanged, lists and objects as JSON."""
    return json.dumps(value) if isinstance(value, list | dict) else value


def _figure(name: str) -> Any:
    return lambda document: None if document[name] is None else f"{document[name]:.6g}"


def _states(document: Document) -> str:
    return ", ".join(f"{number} {state}" for state, number in document["states"].items())
