"""Report of an experiment from the history and from running runs: records, curves, specs and their differences."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from l2rtui import __version__
from l2rtui.backends.base import Backend
from l2rtui.domain.history import Difference, HistoryEntry, HistoryRecord, LaunchFacts, differences
from l2rtui.domain.runstatus import run_status
from l2rtui.domain.snapshot import ClusterSnapshot, RunView
from l2rtui.domain.sweeps import Trial
from l2rtui.errors import L2RError, NotFoundError
from l2rtui.services.curves import seed_curve
from l2rtui.services.history.endings import final_figures, recorded_curve, stored_curve
from l2rtui.services.history.launch_facts import entry_of, spec_of, spec_text
from l2rtui.services.history.lookup import bare_experiment, find_entry, spec_document
from l2rtui.services.history.report_page import ExperimentReport, ReportedRun
from l2rtui.services.history.store import HistoryFilter, HistoryStore, history_path

MAX_RUNS: Final = 256
"""Maximum number of launches in one report, the newest: a sweep of that size is a page of some megabytes."""
LOOK_SECONDS: Final = 30.0
"""Longest wait of a report for running runs; a report can be made from the history only."""
_AT_ONCE: Final = 4
_COMPARED: Final = frozenset(("spec", "code", "versions"))
_OWN: Final = frozenset(("name", "seed"))
"""Fields of a spec in which the runs of an experiment always differ."""


async def experiment_report(
    backend: Backend, word: str, is_here: Callable[[HistoryEntry], bool] = lambda _: True
) -> ExperimentReport:
    """Return the report of an experiment, or of one run by its name or the start of its id.

    Args:
        word: The name of a run selects only that run; ``experiment/NAME`` always the experiment.
        is_here: Selects the records by their place.

    Raises:
        NotFoundError: neither the history nor the backend has such a run. HistoryError: the history cannot be read.
    """
    records, notes = await asyncio.to_thread(_records, word, is_here)
    live: dict[str, ReportedRun] = {}
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            live = await _live_runs(backend, word, records)
    except (L2RError, TimeoutError) as error:
        notes.append(
            f"Running runs are missing from this report: {str(error) or 'the backend did not answer in time.'}"
        )
    recorded = [_recorded_run(record) for record in records if record.entry.run_id not in live]
    runs = _ordered([*live.values(), *recorded])
    if not runs:
        raise NotFoundError(
            f"Neither the history nor what runs now has {word}.", "See `l2rtui history` and `l2rtui experiments`."
        )
    return _report(word, runs, notes)


def _report(word: str, runs: Sequence[ReportedRun], notes: Sequence[str]) -> ExperimentReport:
    import yaml  # 20 ms, needed only for a report

    specs = [spec_document(run.record) for run in runs]
    compared = [replace(run, differences=_differences(runs[0].record, run.record, specs[0], spec))
                for run, spec in zip(runs, specs, strict=True)]  # fmt: skip
    first = runs[0].record
    word = bare_experiment(word)
    title = first.entry.experiment if any(run.record.entry.experiment == word for run in runs) else first.entry.run
    text = yaml.safe_dump(specs[0], sort_keys=False, allow_unicode=True, width=110) if specs[0] else ""
    return ExperimentReport(title, time.time(), f"l2rtui {__version__}", tuple(compared), text, tuple(notes))


def _differences(first: HistoryRecord, second: HistoryRecord, *specs: Any) -> tuple[Difference, ...]:
    return tuple(
        row
        for row in differences(first, second, *specs)
        if row.part in _COMPARED and not (row.part == "spec" and row.field in _OWN)
    )


def _ordered(runs: Sequence[ReportedRun]) -> list[ReportedRun]:
    """Return runs by seed and name, the newest launch of each before its earlier ones."""
    ordered = sorted(runs, key=lambda run: (run.record.entry.seed, run.record.entry.run, -run.record.entry.started))
    newest: set[tuple[object, ...]] = set()
    result: dict[int, ReportedRun] = {}
    # A name that was launched again, and a seed of the same spec under another name: the newest counts.
    for number in sorted(range(len(ordered)), key=lambda number: -ordered[number].record.entry.started):
        run, entry = ordered[number], ordered[number].record.entry
        names = {("run", entry.place, entry.run), ("seed", entry.seed, *run.identity)}
        result[number] = replace(run, is_newest=newest.isdisjoint(names))
        newest |= names
    return [result[number] for number in range(len(ordered))]


# --- history ---------------------------------------------------------------------------------------------------
def _records(word: str, is_here: Callable[[HistoryEntry], bool]) -> tuple[list[HistoryRecord], list[str]]:
    if not history_path().exists():
        return [], []
    with HistoryStore() as store:
        name = bare_experiment(word)
        entries = [entry for entry in store.entries(HistoryFilter(names=(name,))) if is_here(entry)]
        runs = [entry for entry in entries if entry.run == word]
        entries = runs or [entry for entry in entries if entry.experiment == name] or entries
        if not entries:
            try:
                entries = [find_entry(store, word, is_here)]  # by the start of an id
            except NotFoundError:
                return [], []
        notes = [store.problem] if store.problem else []
        if len(entries) > MAX_RUNS:
            notes.append(f"Only the newest {MAX_RUNS} launches are in here.")
        return [store.get(entry.run_id) for entry in entries[:MAX_RUNS]], notes


def _recorded_run(record: HistoryRecord) -> ReportedRun:
    entry = record.entry
    return ReportedRun(record, recorded_curve(record), str(entry.state), trial=_trial(record))


def _trial(record: HistoryRecord) -> Trial | None:
    spec = spec_of(record.launch.spec)
    return None if spec is None else spec.trial


# --- present ---------------------------------------------------------------------------------------------------
async def _live_runs(backend: Backend, word: str, records: Sequence[HistoryRecord]) -> dict[str, ReportedRun]:
    snapshot = await backend.snapshot()
    by_id = {record.entry.run_id: record for record in records}
    uids = {run.uid for run in snapshot.runs_matching(word)}
    if any(record.entry.run == word for record in records):  # then the word means the run, not an experiment
        uids = {uid for uid in uids if snapshot.runs[uid].name == word}
    runs = [run for run in snapshot.runs.values() if run.uid in by_id or run.uid in uids]
    limit = asyncio.Semaphore(_AT_ONCE)
    result: dict[str, ReportedRun] = {}

    async def add(run: RunView) -> None:
        async with limit:
            record = by_id.get(run.uid) or await _unrecorded(backend, run)
            result[run.uid] = await _live_run(backend, snapshot, run, record)

    async with asyncio.TaskGroup() as group:
        for run in runs[:MAX_RUNS]:
            group.create_task(add(run))
    return result


async def _unrecorded(backend: Backend, run: RunView) -> HistoryRecord:
    """Return the visible data of a run launched by another user."""
    try:
        text = spec_text(await backend.spec(run.name))
    except L2RError:  # its spec may be hidden from us; the other data are still useful
        text = "{}"
    return HistoryRecord(entry_of(backend, run), LaunchFacts(spec=text))


async def _live_run(
    backend: Backend, snapshot: ClusterSnapshot, run: RunView, record: HistoryRecord
) -> ReportedRun:
    curve = (await seed_curve(backend, snapshot, run)).curve
    if record.ending is not None:
        # Records that the backend no longer has are in the history.
        curve = curve if curve.num_records else stored_curve(record.ending)
        return ReportedRun(record, recorded_curve(record, curve), str(record.entry.state), trial=run.trial)
    steps, best, final = final_figures(curve)
    entry = replace(record.entry, env_steps=steps, best_return=best, final_return=final)
    record = replace(record, entry=entry)
    status = run_status(run, snapshot.pods_of(run.name))
    return ReportedRun(record, recorded_curve(record, curve), status.word.casefold(), trial=run.trial)
