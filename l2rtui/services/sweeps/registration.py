"""Registration of sweeps with halving: the keeper of the queue watches them from their launch."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Any

import msgspec

from l2rtui.backends.base import Backend
from l2rtui.backends.queue_store import QueueFile
from l2rtui.backends.queued.keeper_process import ensure_keeper
from l2rtui.domain.preflight import Finding, Severity
from l2rtui.domain.sweeps.halving import RungReport, SweepWatch, registered
from l2rtui.domain.sweeps.trial import Halving
from l2rtui.domain.workload import RunSpec
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
