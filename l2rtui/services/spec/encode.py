"""A RunSpec as a spec file, for people to read and edit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec
from l2rtui.errors import SpecError
from l2rtui.services import runtime_commands
from l2rtui.services.spec import schema, script_source
from l2rtui.services.spec.pod_schema import pod_form
from runtime.base import bounded_json
from runtime.base.alert_rules import AlertRule
from runtime.base.durations import parse_duration
from runtime.base.limits import Limits, limits_of

if TYPE_CHECKING:
    from l2rtui.services.spec.yaml_lines import Locations  # with PyYAML, which a comparison does not need


def to_document(spec: RunSpec) -> dict[str, Any]:
    """Return a RunSpec as the document of a spec file, without empty fields; loading it gives the same RunSpec.

    Runs imported from Kubernetes YAML have no such form. Of a program only the name is written, and of own code the
    path of its folder.
    """
    common: dict[str, Any] = {
        "name": spec.name,
        "seed": spec.seed,
        "image": spec.image,
        "env": dict(spec.env),
        "train": bounded_json.decode(spec.train),
        "queue": _queue_form(spec),
        **_workdir_forms(spec),
        **watch_forms(spec),
    }
    document: dict[str, Any] = _without_empty(_form(spec, common))
    return document


def _workdir_forms(spec: RunSpec) -> dict[str, Any]:
    if (workdir := spec.workdir) is None:
        return {}
    form = schema.WorkdirForm(workdir.path, workdir.volume) if workdir.volume else workdir.path
    return {"workdir": form, "setup": [list(command) for command in workdir.setup]}


def _queue_form(spec: RunSpec) -> schema.QueueForm | bool | None:
    if spec.queue is None:
        return True if spec.may_wait else None
    return bounded_json.convert(spec.queue, schema.QueueForm, from_attributes=True)


def _without_empty(value: Any) -> Any:
    """Return plain values; an empty field is left out if its default is empty too."""
    if isinstance(value, list):
        return [_without_empty(field_value) for field_value in value]
    if not isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value)
    config = value.__struct_config__
    written: dict[str, Any] = {config.tag_field: config.tag} if config.tag_field else {}
    # The name comes first.
    for field in sorted(msgspec.structs.fields(value), key=lambda field: field.name != "name"):
        field_value = getattr(value, field.name)
        plain = _without_empty(field_value)
        # An explicit "empty" that differs from the default must stay: loading would fill in the default.
        if plain not in (None, "", [], {}) or field_value != _default(field):
            written[field.encode_name] = plain
    return written


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _form(spec: RunSpec, common: dict[str, Any]) -> schema.SpecForm:
    first = spec.sets[0]

    def by_role(role: Role) -> list[SetSpec]:
        return [set_spec for set_spec in spec.sets if set_spec.role is role]

    match spec.kind:
        case Kind.ELASTIC:
            nodes, rendezvous = _nodes(spec, by_role(Role.WORKER)[0])
            return schema.ElasticForm(nodes=nodes, rendezvous=rendezvous, **common)
        case Kind.PARAMETER_SERVER:
            servers, workers = by_role(Role.PS)[0], by_role(Role.WORKER)[0]
            return schema.ParameterServerForm(
                servers=schema.ServersForm(port=servers.port, replicas=servers.replicas, **_common_fields(servers)),
                workers=schema.PsWorkersForm(
                    port=workers.port, replicas=workers.replicas, **_common_fields(workers)
                ),
                **common,
            )
        # Jobs and steps are the same kind; only the wrapped command shows that there are steps.
        case Kind.JOB if runtime_commands.read_step(_step_command(spec)):
            return schema.JobForm(steps=_step_forms(spec), **common)
        case Kind.JOB:
            return schema.JobForm(job=_replicated(first, schema.TaskForm), **common)
        case Kind.LEARNER_WORKERS:
            module = next((part.program for part in spec.sets if part.program is not None), None)
            spec = replace(spec, sets=tuple(script_source.without_module(part) for part in spec.sets))
            learner, evaluators = by_role(Role.LEARNER)[0], by_role(Role.EVALUATOR)
            return schema.LearnerWorkersForm(
                program=(module.url or module.name) if module is not None else "",
                learner=schema.LearnerForm(name=learner.name, nodes=learner.replicas, **_common_fields(learner)),
                workers=[
                    msgspec.structs.replace(
                        _replicated(set_spec, schema.WorkersForm), workers_per_pod=set_spec.workers_per_pod
                    )
                    for set_spec in by_role(Role.WORKER)
                ],
                evaluator=_replicated(evaluators[0], schema.EvaluatorForm) if evaluators else None,
                **common,
            )


def _step_command(spec: RunSpec) -> tuple[str, ...]:
    """Return the command of the first set that is not a rendezvous process."""
    return next(set_spec.command for set_spec in spec.sets if set_spec.role is not Role.RENDEZVOUS)


def _step_forms(spec: RunSpec) -> list[schema.StepForm]:
    forms = []
    for set_spec in spec.sets:
        if set_spec.role is Role.RENDEZVOUS or (wrapped := runtime_commands.read_step(set_spec.command)) is None:
            continue
        step, command = wrapped
        after = list(step.after)
        if runtime_commands.read_elastic(command) is None:
            fields = {**_common_fields(set_spec), "command": list(command)}
            forms.append(schema.StepForm(name=set_spec.name, replicas=set_spec.replicas, after=after, **fields))
        else:
            nodes, rendezvous = _nodes(spec, set_spec)
            forms.append(schema.StepForm(name=set_spec.name, after=after, nodes=nodes, rendezvous=rendezvous))
    return forms


def _nodes(spec: RunSpec, set_spec: SetSpec) -> tuple[schema.NodesForm, schema.RendezvousForm]:
    """Return the forms of elastic nodes and of their rendezvous."""
    # A step wraps the command of elastic nodes, which wraps the user's own.
    wrapped = runtime_commands.read_step(set_spec.command)
    match = runtime_commands.read_elastic(wrapped[1] if wrapped else set_spec.command)
    if match is None:
        return _replicated(set_spec, schema.NodesForm), schema.RendezvousForm()
    elastic, command = match
    fields = {**_common_fields(set_spec), "command": list(command), "nproc_per_node": elastic.processes}
    rendezvous_set = spec.set_named(elastic.rendezvous)
    image = rendezvous_set.pod.image if rendezvous_set is not None else ""
    image = "" if image == set_spec.pod.image else image
    nodes = schema.NodesForm(
        name=set_spec.name, replicas=set_spec.replicas, min=elastic.low, max=elastic.high, **fields
    )
    rendezvous = bounded_json.convert({"backend": elastic.backend, "image": image}, schema.RendezvousForm)
    return nodes, rendezvous


def _replicated(set_spec: SetSpec, form: Any) -> Any:
    return form(name=set_spec.name, replicas=set_spec.replicas, **_common_fields(set_spec))


def _common_fields(set_spec: SetSpec) -> dict[str, Any]:
    """Return the fields that the forms of all sets have."""
    fields: dict[str, Any] = {
        "command": list(set_spec.command),
        "slots": set_spec.slots,
        "env": dict(set_spec.env),
        "restart": set_spec.restart.value,
        "resources": schema.ResourcesForm(set_spec.resources.cpu_cores, set_spec.resources.memory_bytes),
        "grace_seconds": set_spec.grace_seconds,
        "pod": pod_form(set_spec.pod),
    }
    if set_spec.gpus and not set_spec.gpu_wish:
        fields["gpus"] = set_spec.gpus
    elif set_spec.gpu_wish:
        fields["gpu"] = schema.GpuForm(set_spec.gpus, set_spec.gpu_model, set_spec.gpu_memory_bytes or None)
    if set_spec.program is not None:
        fields["program"] = set_spec.program.url or set_spec.program.name
    return fields


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
    limits = {
        name: value for name, value in msgspec.structs.asdict(spec.limits or Limits()).items() if value is not None
    }
    forms = [_alert_form(rule) for rule in spec.alerts]
    written = {name: value if name == "gpu_hours" else _duration(value) for name, value in limits.items()}
    return {"limits": schema.LimitsForm(**written) if written else None, "alerts": forms}


def _alert_form(rule: AlertRule) -> schema.AlertForm:
    fields = {**msgspec.structs.asdict(rule), "after": _duration(rule.after_seconds)}
    del fields["after_seconds"]
    return bounded_json.convert(fields, schema.AlertForm)


def _duration(seconds: float) -> str | float:
    """Write seconds in the largest unit that divides them."""
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds % size == 0:
            return f"{int(seconds // size)}{unit}"
    return seconds
