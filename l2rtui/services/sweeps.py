"""Sweeps: registration of those with halving, which the queue's keeper watches, and results of all.

Results of ended runs come from the history, those of existing runs from their records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Final

import msgspec

from l2rtui.backends.base import Backend
from l2rtui.backends.queue_store import QueueFile, ensure_keeper
from l2rtui.domain.experiments import (
    ExperimentSummary,
    TrialResult,
    TrialRun,
    seed_result,
    summarize,
    trial_results,
)
from l2rtui.domain.history import HistoryEntry, RunOutcome
from l2rtui.domain.preflight import Finding, Severity
from l2rtui.domain.snapshot import ClusterSnapshot, RunView
from l2rtui.domain.status import QUEUED
from l2rtui.domain.sweeps import Halving, RungReport, SweepWatch, Trial, registered
from l2rtui.domain.workload import RunSpec
from l2rtui.errors import NotFoundError, UsageError
from l2rtui.services.curves import seed_curve
from l2rtui.services.history.endings import final_figures
from l2rtui.services.history.launch_facts import spec_of
from l2rtui.services.history.store import HistoryFilter, HistoryStore
from l2rtui.services.learning import LearningReader
from runtime.base.installation import install_hint


def is_installed() -> bool:
    """Return True if Optuna can be imported."""
    return find_spec("optuna") is not None


def pruned_trials(halving: Halving, reports: Iterable[RungReport]) -> frozenset[int]:
    """Return the trials that stop, from the reports of all in the order of their arrival.

    The reports are replayed in a new study, so that its state need not be stored.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruner = optuna.pruners.SuccessiveHalvingPruner(
        min_resource=halving.min_env_steps, reduction_factor=halving.factor
    )
    study = optuna.create_study(direction="maximize", pruner=pruner)
    trials: dict[int, Any] = {}
    pruned: set[int] = set()
    for report in reports:
        if report.trial in pruned:
            continue
        trial = trials[report.trial] if report.trial in trials else study.ask()
        trials[report.trial] = trial
        trial.report(report.value, report.env_steps)
        if trial.should_prune():
            pruned.add(report.trial)
    return frozenset(pruned)


def halving_findings(backend: Backend, specs: Iterable[RunSpec]) -> Iterable[Finding]:
    """Yield the reasons why sweeps cannot be halved here; empty if they can, or if none asks for it."""
    names = dict.fromkeys(spec.experiment for spec in specs if spec.trial is not None and spec.trial.halving)
    for name in names:
        if not is_installed():
            hint = f"{install_hint('sweeps')} Or leave out halving."
            yield Finding(Severity.REFUSAL, name, "halving needs Optuna, which is not installed here", hint)
        # The keeper of a queue decides, and a place without a queue has none.
        elif backend.queue is None:
            hint = "Leave out halving."
            yield Finding(Severity.REFUSAL, name, f"the {backend.name} backend has no queue to halve a sweep", hint)


async def watch_sweeps(backend: Backend, runs: Sequence[tuple[str, RunSpec]]) -> None:
    """Let the keeper watch the sweeps of these runs (id and spec) that use halving.

    Raises:
        BackendError: the queue cannot be written, or its keeper did not start.
    """
    store = backend.queue
    watches = _watches(runs)
    if store is None or not watches:
        return

    def added(file: QueueFile) -> QueueFile:
        sweeps = file.sweeps
        for watch in watches:
            sweeps = registered(sweeps, watch)
        return msgspec.structs.replace(file, sweeps=sweeps)

    await asyncio.to_thread(store.change, added)
    await asyncio.to_thread(ensure_keeper, store)


def _watches(runs: Sequence[tuple[str, RunSpec]]) -> tuple[SweepWatch, ...]:
    watches: tuple[SweepWatch, ...] = ()
    for uid, spec in runs:
        trial = spec.trial
        if trial is not None and trial.halving is not None:
            watches = registered(watches, SweepWatch(spec.experiment, trial.halving, ((uid, trial.number),)))
    return watches


_AT_ONCE: Final = 8
_QUEUED: Final = "queued"


async def sweep_results(backend: Backend, snapshot: ClusterSnapshot, experiment: str) -> tuple[TrialResult, ...]:
    """Return the results of the trials of an experiment, best first; the newest launch of each run counts.

    Raises:
        NotFoundError: the experiment does not exist. UsageError: it is not a sweep. HistoryError: it cannot be
            read.
    """
    views = {run.name: run for run in snapshot.runs.values() if run.experiment == experiment}
    past = await asyncio.to_thread(_past_runs, experiment)
    if not views and not past:
        raise NotFoundError(f"There is no experiment {experiment}.", "See `l2rtui history`.")
    limit = asyncio.Semaphore(_AT_ONCE)

    async def present(view: RunView, trial: Trial) -> TrialRun:
        async with limit:
            return await _present_run(backend, snapshot, view, trial)

    reads = [
        present(view, view.trial) for view in views.values() if view.trial is not None and _is_open(view, past)
    ]
    results = trial_results([*_ended(views, past), *await asyncio.gather(*reads)])
    if not results:
        hint = "`sweep:` in a spec makes trials; see `l2rtui experiments` for the others."
        raise UsageError(f"{experiment} is no sweep.", hint)
    return results


def past_trial_runs(snapshot: ClusterSnapshot, experiment: str) -> list[TrialRun]:
    """Return the ended runs of a sweep, except those that run again.

    Raises:
        HistoryError: The history cannot be read.
    """
    views = {run.name: run for run in snapshot.runs.values() if run.experiment == experiment}
    return _ended(views, _past_runs(experiment))


def _ended(views: Mapping[str, RunView], past: Mapping[str, tuple[HistoryEntry, Trial]]) -> list[TrialRun]:
    return [
        _past_run(entry, trial) for entry, trial in past.values() if not _is_present(views.get(entry.run), entry)
    ]


def _past_runs(experiment: str) -> dict[str, tuple[HistoryEntry, Trial]]:
    """Return the newest launch of each run of a sweep that is in the history, by name."""
    runs: dict[str, tuple[HistoryEntry, Trial]] = {}
    with HistoryStore() as store:
        for entry in store.entries(HistoryFilter(names=(experiment,))):  # the newest first
            if entry.experiment != experiment or entry.run in runs:
                continue
            spec = spec_of(store.get(entry.run_id).launch.spec)
            if spec is not None and spec.trial is not None:
                runs[entry.run] = entry, spec.trial
    return runs


def _is_present(view: RunView | None, entry: HistoryEntry) -> bool:
    """Return True if an existing run has more data than its record: it is running, or is a later launch."""
    return view is not None and (view.uid != entry.run_id or entry.state is RunOutcome.RUNNING)


def _is_open(view: RunView, past: dict[str, tuple[HistoryEntry, Trial]]) -> bool:
    recorded = past.get(view.name)
    return recorded is None or _is_present(view, recorded[0])


def _past_run(entry: HistoryEntry, trial: Trial) -> TrialRun:
    figures = entry.final_return, entry.best_return, entry.env_steps
    return TrialRun(entry.run, trial, entry.seed, str(entry.state), *figures)


async def _present_run(backend: Backend, snapshot: ClusterSnapshot, view: RunView, trial: Trial) -> TrialRun:
    if view.reason == QUEUED:
        return TrialRun(view.name, trial, view.seed, _QUEUED)
    curve = (await seed_curve(backend, snapshot, view)).curve
    env_steps, best, final = final_figures(curve)
    return TrialRun(view.name, trial, view.seed, str(RunOutcome.RUNNING), final, best, env_steps)


async def experiments(
    reader: LearningReader, snapshot: ClusterSnapshot, runs: Sequence[RunView], now: float
) -> tuple[ExperimentSummary, ...]:
    """Return one summary for each experiment of these runs; a log that cannot be read is not an error.

    Args:
        reader: A reader that also reads the logs of ended learners: their last return is the result.
        now: Seconds since the epoch.
    """
    learning = await reader.look(snapshot, runs, now)
    results = [seed_result(run, learning[run.uid].state, learning[run.uid].metrics) for run in runs]
    return summarize(results)
