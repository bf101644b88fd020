"""Decisions of successive halving, by Optuna: an optional library, imported only for a sweep that needs it."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

from l2rtui.domain.sweeps.halving import RungReport
from l2rtui.domain.sweeps.trial import Halving


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
