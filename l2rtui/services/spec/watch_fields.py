"""Limits and alerts of a spec file: from text to values, and back."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

from l2rtui.domain.workload import RunSpec
from l2rtui.errors import SpecError
from l2rtui.services.spec import schema
from runtime.base.alert_rules import AlertRule
from runtime.base.durations import parse_duration
from runtime.base.limits import Limits, limits_of

if TYPE_CHECKING:
    from l2rtui.services.spec.yaml_lines import Locations  # with PyYAML, which a comparison does not need


def limits_in(form: schema.SpecForm, locations: Locations, defaults: Limits) -> Limits | None:
    """Return the limits of a run, by default those of the context. Raises SpecError."""
    written = {} if form.limits is None else msgspec.structs.asdict(form.limits)
    try:
        limits = limits_of({name: value for name, value in written.items() if value is not None})
    except ValueError as error:
        name = str(error).partition(":")[0]
        raise SpecError(f"{locations.of(('limits', name))}: limits.{error}.") from None
    has_learner = isinstance(form, schema.LearnerWorkersForm)
    if not has_learner and (names := limits.of_learner):
        sentence = f"limits.{names[0]} is measured by a learner: this run has none."
        raise SpecError(
            f"{locations.of(('limits', names[0]))}: {sentence}",
            "Write wall or gpu_hours, which hold for every kind of run.",
        )
    if not has_learner:
        defaults = Limits(wall=defaults.wall, gpu_hours=defaults.gpu_hours)
    limits = limits.over(defaults)
    return None if limits == Limits() else limits


def alerts_in(form: schema.SpecForm, locations: Locations) -> tuple[AlertRule, ...]:
    """Return the rules of a run's alerts. Raises SpecError, whose text never contains a possible secret."""
    rules = []
    for number, item in enumerate(form.alerts):
        place = locations.of(("alerts", number))
        try:
            after = parse_duration(item.after)
        except ValueError as error:
            raise SpecError(f"{place}: alerts[{number}].after: {error}.") from None
        fields = msgspec.structs.asdict(item) | {"when": tuple(item.when), "command": tuple(item.command)}
        del fields["after"]
        rule = AlertRule(**fields, after_seconds=after)
        if problem := rule.problem():
            raise SpecError(f"{place}: alerts[{number}]: {problem}.")
        rules.append(rule)
    if rules and not isinstance(form, schema.LearnerWorkersForm):
        sentence = f"{locations.of(('alerts',))}: alerts are sent by a learner: this run has none."
        raise SpecError(sentence, "Leave them out.")
    return tuple(rules)


def watch_forms(spec: RunSpec) -> dict[str, Any]:
    """Return the fields of a form for the limits and alerts of a run."""
    limits = {name: value for name, value in asdict(spec.limits or Limits()).items() if value is not None}
    forms = [_alert_form(rule) for rule in spec.alerts]
    written = {name: value if name == "gpu_hours" else _duration(value) for name, value in limits.items()}
    return {"limits": schema.LimitsForm(**written) if written else None, "alerts": forms}


def _alert_form(rule: AlertRule) -> schema.AlertForm:
    fields = {**asdict(rule), "after": _duration(rule.after_seconds)}
    del fields["after_seconds"]
    return msgspec.convert(fields, schema.AlertForm)


def _duration(seconds: float) -> str | float:
    """Write seconds in the largest unit that divides them."""
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds % size == 0:
            return f"{int(seconds // size)}{unit}"
    return seconds
