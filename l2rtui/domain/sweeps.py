"""Sweeps: trials, which the runs of several seeds share, the choice of their values, and successive halving. Pure.

Values are every combination of a grid, or random draws: J. Bergstra and Y. Bengio, "Random search for
hyper-parameter optimization", JMLR 13 (2012).

Halving: L. Li et al., "A system for massively parallel hyperparameter tuning" (ASHA), MLSys 2020. Optuna decides
which trials stop (``services.sweeps``), based only on the ordered reports: a keeper that takes over a sweep makes
the same decisions.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace


class Halving(Struct, frozen=True):
    """Rule for stopping the worst trials of a sweep early.

    Attributes:
        min_env_steps: First rung: env steps before which no trial is stopped.
        factor: Each rung has ``factor`` times the env steps of the previous one; the best 1/factor of the trials
            pass it.
    """

    min_env_steps: int
    factor: int = 3


class Trial(Struct, frozen=True):
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


class RungReport(Struct, frozen=True):
    """Arrival of a trial at a rung.

    Attributes:
        env_steps: Env steps of the rung.
        value: Mean return of its runs there.
    """

    trial: int
    env_steps: int
    value: float


class SweepWatch(Struct, frozen=True):
    """Sweep whose worst trials are stopped early.

    Attributes:
        runs: Id and trial of each of its runs.
        reports: In the order in which trials reached the rungs.
        stopped: Numbers of the trials that were stopped.
    """

    experiment: str
    halving: Halving
    runs: tuple[tuple[str, int], ...] = ()
    reports: tuple[RungReport, ...] = ()
    stopped: tuple[int, ...] = ()

    def runs_of(self, trials: Collection[int]) -> tuple[str, ...]:
        """Return the ids of the runs of these trials."""
        return tuple(uid for uid, trial in self.runs if trial in trials)


Points = Sequence[tuple[float, float]]
"""Env steps and return of the records of a run that have a return, in order."""


def registered(watches: Iterable[SweepWatch], added: SweepWatch) -> tuple[SweepWatch, ...]:
    """Add the runs of another launch to the watched sweeps; a sweep of the same name with another rule is
    replaced.
    """
    others: list[SweepWatch] = []
    merged = added
    for watch in watches:
        if watch.experiment != added.experiment:
            others.append(watch)
        elif watch.halving == added.halving:
            merged = replace(watch, runs=tuple(dict.fromkeys((*watch.runs, *added.runs))))
    return (*others, merged)


def next_reports(watch: SweepWatch, points: Mapping[str, Points], ended: Collection[str]) -> tuple[RungReport, ...]:
    """Return the arrivals that are not reported yet, lower rungs first.

    A trial has reached a rung when each of its runs has reached it or ended before; its value is the mean over the
    runs that reached it.

    Args:
        points: Points of each run that has records, by run id.
        ended: Ids of runs that will not write further records.
    """
    last = {report.trial: report.env_steps for report in watch.reports}
    reports: list[RungReport] = []
    for trial in dict.fromkeys(number for _, number in watch.runs):
        if trial in watch.stopped:
            continue
        rung, runs = _rung_after(watch.halving, last.get(trial, 0)), watch.runs_of((trial,))
        while (value := _value_at(rung, runs, points, ended)) is not None:
            reports.append(RungReport(trial, rung, value))
            rung *= watch.halving.factor
    return tuple(sorted(reports, key=lambda report: report.env_steps))


def _rung_after(halving: Halving, env_steps: int) -> int:
    rung = halving.min_env_steps
    while rung <= env_steps:
        rung *= halving.factor
    return rung


def _value_at(rung: int, uids: Iterable[str], points: Mapping[str, Points], ended: Collection[str]) -> float | None:
    """Return the mean return of a trial at a rung; None before it has reached the rung."""
    values = []
    for uid in uids:
        value = next((value for steps, value in points.get(uid, ()) if steps >= rung), None)
        if value is not None:
            values.append(value)
        elif uid not in ended:
            return None
    return math.fsum(values) / len(values) if values else None


MAX_TRIALS: Final = 1_000
"""Maximum number of trials of a sweep: as each trial is a run, more is probably a typing mistake."""
_DRAWS_PER_TRIAL: Final = 20
"""Draws per trial before a sweep counts as exhausted: small grids repeat combinations."""


class ValueRange(Struct, frozen=True):
    """Range of a number; if both ends are whole numbers, all its values are whole.

    Attributes:
        low, high: Inclusive limits.
        is_log: Sample uniformly on a logarithmic scale.
        count: Number of its values in a grid; 0 if it is only for random draws.
    """

    low: float
    high: float
    is_log: bool = False
    count: int = 0

    def problem(self) -> str:
        """Return a phrase that describes why the range is invalid; empty if it is valid."""
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            return "low must be less than high, and both must be numbers"
        if self.is_log and self.low <= 0:
            return "a logarithmic range must begin above 0"
        return ""

    def at(self, share: float) -> float:
        """Return the value at a relative position, from 0 at the low end to 1 at the high end."""
        if self.is_log:
            value = self.low * (self.high / self.low) ** share
        else:
            value = self.low + (self.high - self.low) * share
        # Six digits: the value that people read and type again must be the value that was used.
        return round(value) if self._is_whole else float(f"{value:.6g}")

    def points(self) -> tuple[float, ...]:
        """Return its grid values, without duplicates."""
        last = max(self.count - 1, 1)
        return tuple(dict.fromkeys(self.at(number / last) for number in range(self.count)))

    @property
    def _is_whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)


Choices = Mapping[str, tuple[Any, ...] | ValueRange]
"""Values or range of each field, by the field's path in the spec."""


def grid_size(choices: Choices) -> int:
    """Return the number of combinations."""
    return math.prod(len(_values(choice)) for choice in choices.values())


def grid(choices: Choices) -> Iterator[dict[str, Any]]:
    """Yield every combination; the last path varies fastest."""
    for combination in itertools.product(*map(_values, choices.values())):
        yield dict(zip(choices, combination, strict=True))


def drawn(choices: Choices, number: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield random combinations without duplicates; the same seed gives the same combinations.

    Args:
        number: Number of combinations; fewer are returned if there are no more.
    """
    generator = random.Random(seed)  # noqa: S311  (a search, and the same at every reading of the file)
    drawn_before: set[str] = set()
    for _ in range(number * _DRAWS_PER_TRIAL):
        combination = {path: _draw(choice, generator) for path, choice in choices.items()}
        key = json.dumps(combination)
        if key not in drawn_before:
            drawn_before.add(key)
            yield combination
        if len(drawn_before) == number:
            return


def _values(choice: tuple[Any, ...] | ValueRange) -> tuple[Any, ...]:
    return choice.points() if isinstance(choice, ValueRange) else choice


def _draw(choice: tuple[Any, ...] | ValueRange, generator: random.Random) -> Any:
    if isinstance(choice, ValueRange):
        return choice.at(generator.random())
    return generator.choice(choice)
