"""Sweep of a spec file: from lists and ranges to the trials and their specs.

The values of a trial are written into the data of the file before it is decoded, so that every field of a spec can
be swept and each value is checked as if it were in the file.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec
from msgspec import Struct

from l2rtui.domain.placement import parse_seeds
from l2rtui.domain.sweeps import MAX_TRIALS, Choices, Halving, Trial, ValueRange, drawn, grid, grid_size, trial_of
from l2rtui.domain.workload import Kind
from l2rtui.errors import SpecError
from l2rtui.services.spec import schema
from l2rtui.services.spec.mistakes import explain_mistake
from l2rtui.services.spec.yaml_lines import Locations, write_value
from runtime.base import bounded_json

SWEEP: Final = "sweep"
_SEEDS: Final = "seeds"
_RANDOM: Final = "random"
_HALVING: Final = "halving"
_FIXED: Final = {
    "kind": "a sweep has runs of a single kind",
    "name": "trials derive their names from the spec's",
    "placement": "all runs of a launch are placed together",
    "seed": "write seeds: 0-4 in the sweep",
    SWEEP: "a sweep cannot contain itself",
}
"""Fields that cannot differ between trials, and the reason."""


class Sweep(Struct, frozen=True):
    """Trials of a spec file, and the seeds of each; empty for the spec's own seed."""

    trials: tuple[Trial, ...]
    seeds: tuple[int, ...] = ()


def sweep_in(data: Mapping[str, Any], locations: Locations) -> Sweep | None:
    """Return the sweep of a spec; None if it has none.

    Raises:
        SpecError: a field of it is wrong; names it.
    """
    written = data.get(SWEEP)
    if written is None:
        return None
    if not isinstance(written, dict):
        raise _mistake(
            locations, (), "is no mapping", "Write lists under paths: `train.sac.actor_lr: [1e-4, 3e-4]`."
        )
    paths = [path for path in written if path not in (_SEEDS, _RANDOM, _HALVING)]
    choices = {path: _choice(path, data, locations) for path in paths}
    if not choices:
        raise _mistake(locations, (), "names no field", "Write lists under paths: `train.batch_size: [128, 256]`.")
    settings = _drawn(choices, data, locations) if _RANDOM in written else _grid(choices, locations)
    halving = None
    if _HALVING in written:
        form = _converted(data, _HALVING, schema.HalvingForm, locations)
        halving = Halving(form.min_env_steps, form.factor)
        if data.get("kind") != Kind.LEARNER_WORKERS:
            raise _mistake(locations, (_HALVING,), "goes by the returns of a learner: this run has none")
    try:
        trials = tuple(trial_of(number, values, halving) for number, values in enumerate(settings))
    except ValueError:
        raise _mistake(locations, (), "holds .nan or .inf, which JSON does not have") from None
    return Sweep(trials, _seeds(written.get(_SEEDS), locations))


def with_values(data: Mapping[str, Any], trial: Trial, locations: Locations) -> tuple[dict[str, Any], Locations]:
    """Return the data of a spec with the values of a trial and no sweep, and the locations of its fields.

    Raises:
        SpecError: a path leads through a plain value, or to a list item that does not exist.
    """
    changed = copy.deepcopy({name: value for name, value in data.items() if name != SWEEP})
    places = replace(locations, by_keys=dict(locations.by_keys))
    for path, value in trial.settings().items():
        place = locations.of((SWEEP, path))
        places.set_by_flag(write_value(changed, path.split("."), value, f"{place}: sweep"), place)
    return changed, places


def _mistake(locations: Locations, keys: tuple[str, ...], phrase: str, hint: str = "") -> SpecError:
    return SpecError(f"{locations.of((SWEEP, *keys))}: {'.'.join((SWEEP, *keys))} {phrase}.", hint)


def _choice(path: str, data: Mapping[str, Any], locations: Locations) -> tuple[Any, ...] | ValueRange:
    keys, value = str(path).split("."), data[SWEEP][path]
    if not all(keys):
        raise _mistake(locations, (path,), "is no path", "Write it as in --set: `train.batch_size`.")
    if keys[0] in _FIXED:
        raise _mistake(locations, (path,), f"cannot be swept: {_FIXED[keys[0]]}")
    if isinstance(value, dict):
        return _range(path, data, locations)
    if not isinstance(value, list) or not value:
        raise _mistake(locations, (path,), "is neither a list of values nor a range {low: …, high: …, log: true}")
    if any(item in value[:number] for number, item in enumerate(value)):
        raise _mistake(locations, (path,), "has a value twice", "For several runs of each trial write seeds: 0-4.")
    return tuple(value)


def _range(path: str, data: Mapping[str, Any], locations: Locations) -> ValueRange:
    form = _converted(data, path, schema.RangeForm, locations)
    chosen = ValueRange(form.low, form.high, form.log, form.count or 0)
    if problem := chosen.problem():
        raise _mistake(locations, (path,), f"is no range: {problem}")
    return chosen


def _converted(data: Mapping[str, Any], name: str, form: Any, locations: Locations) -> Any:
    try:
        return bounded_json.convert(data[SWEEP][name], form)
    except msgspec.ValidationError as error:
        raise explain_mistake(error, data, locations, (SWEEP, name), form) from None


def _grid(choices: Choices, locations: Locations) -> Iterable[dict[str, Any]]:
    for path, choice in choices.items():
        if isinstance(choice, ValueRange) and not choice.count:
            hint = f"Add count: 4 to it, or `{_RANDOM}: {{trials: 20}}` to the sweep."
            raise _mistake(locations, (path,), "is a range, of which a grid needs a count", hint)
    if (size := grid_size(choices)) > MAX_TRIALS:
        hint = f"Write shorter lists, or `{_RANDOM}: {{trials: 20}}`."
        raise _mistake(locations, (), f"has {size} combinations, and at most {MAX_TRIALS} can be trials", hint)
    return grid(choices)


def _drawn(choices: Choices, data: Mapping[str, Any], locations: Locations) -> Iterable[dict[str, Any]]:
    form = _converted(data, _RANDOM, schema.RandomForm, locations)
    for path, choice in choices.items():
        if isinstance(choice, ValueRange) and choice.count:
            hint = f"Leave out its count, or {_RANDOM}."
            raise _mistake(locations, (path,), "has a count, which only a grid needs", hint)
    return drawn(choices, form.trials, form.seed)


def _seeds(value: Any, locations: Locations) -> tuple[int, ...]:
    if value is None:
        return ()
    items = value if isinstance(value, list) else [value]
    try:
        return parse_seeds(",".join(str(item) for item in items))
    except ValueError as error:
        raise _mistake(locations, (_SEEDS,), f"cannot be read: {error}") from None
