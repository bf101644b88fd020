"""Trial: one combination of values in a sweep; the runs of its seeds share it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Halving:
    """Rule for stopping the worst trials of a sweep early.

    Attributes:
        min_env_steps: First rung: env steps before which no trial is stopped.
        factor: Each rung has ``factor`` times the env steps of the previous one; the best 1/factor of the trials
            pass it.
    """

    min_env_steps: int
    factor: int = 3


@dataclass(frozen=True, slots=True)
class Trial:
    """One combination of a sweep.

    Attributes:
        number: From 0, in the order of the sweep.
        values: JSON object as text that maps field paths of the spec (``train.sac.actor_lr``) to values.
        halving: Rule by which it may be stopped; None without one.
    """

    number: int
    values: str = "{}"
    halving: Halving | None = None

    def settings(self) -> dict[str, Any]:
        """Return the values by path."""
        settings: dict[str, Any] = json.loads(self.values)
        return settings

    def document(self) -> dict[str, Any]:
        """Return number and values as a JSON object."""
        return {"number": self.number, "values": self.settings()}


def trial_of(number: int, settings: dict[str, Any], halving: Halving | None = None) -> Trial:
    """Return a trial with these values.

    Raises:
        ValueError: A value cannot be represented in JSON, such as NaN.
    """
    return Trial(number, json.dumps(settings, allow_nan=False), halving)


def trial_document(trial: Trial | None) -> dict[str, Any] | None:
    """Return a trial as a JSON object; None for a run outside of a sweep."""
    return None if trial is None else trial.document()


def short_names(paths: Sequence[str]) -> dict[str, str]:
    """Return the last word of each path, or the whole path if several end in the same word."""
    last = [path.rpartition(".")[2] for path in paths]
    return {path: name if last.count(name) == 1 else path for path, name in zip(paths, last, strict=True)}


def value_text(value: object) -> str:
    """Return a value of a trial as text: lists and objects as JSON."""
    return (
        json.dumps(value)
        if isinstance(value, list | dict)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def values_text(trial: Trial) -> str:
    """Return the values of a trial in one line: ``actor_lr 0.001, batch_size 64``."""
    settings = trial.settings()
    names = short_names(list(settings))
    return ", ".join(f"{names[path]} {value_text(value)}" for path, value in settings.items())
