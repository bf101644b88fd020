"""A RunSpec back to the form of a spec file, for people to read and keep."""

from __future__ import annotations

from typing import Any

import msgspec

from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec
from l2rtui.services import wrapping
from l2rtui.services.podform import pod_form
from l2rtui.services.specform import (
    ElasticForm,
    EvaluatorForm,
    JobForm,
    LearnerForm,
    LearnerWorkersForm,
    NodesForm,
    ParameterServerForm,
    PsWorkersForm,
    RendezvousForm,
    ResourcesForm,
    ServersForm,
    SpecForm,
    StepForm,
    TaskForm,
    WorkersForm,
)


def to_document(spec: RunSpec) -> dict[str, Any]:
    """Write a RunSpec in the form of a spec file without its empty parts; loading it gives the same RunSpec.

    Runs that were imported from Kubernetes' own objects have no such form; of a program only the name is written.
    """
    common: dict[str, Any] = {
        "name": spec.name,
        "seed": spec.seed,
        "image": spec.image,
        "env": dict(spec.env),
        "train": msgspec.json.decode(spec.train),
    }
    document: dict[str, Any] = _written(_form(spec, common))
    return document


def _written(value: Any) -> Any:
    """Plain values; a field that is empty, and would be without being written, is left out."""
    if isinstance(value, list):
        return [_written(one) for one in value]
    if not isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value)
    config = value.__struct_config__
    written: dict[str, Any] = {config.tag_field: config.tag} if config.tag_field else {}
    for field in sorted(
        msgspec.structs.fields(value), key=lambda field: field.name != "name"
    ):  # the name comes first
        one = getattr(value, field.name)
        plain = _written(one)
        if plain not in (None, "", [], {}) or one != _default(field):
            written[field.encode_name] = plain
    return written


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _form(spec: RunSpec, common: dict[str, Any]) -> SpecForm:
    first = spec.sets[0]
    match spec.kind:
        case Kind.ELASTIC:
            nodes, place = _nodes(spec, next(one for one in spec.sets if one.role is Role.WORKER))
            return ElasticForm(nodes=nodes, rendezvous=place, **common)
        case Kind.PARAMETER_SERVER:
            servers, workers = (
                next(one for one in spec.sets if one.role is role) for role in (Role.PS, Role.WORKER)
            )
            return ParameterServerForm(
                servers=ServersForm(port=servers.port, replicas=servers.replicas, **_unnamed(servers)),
                workers=PsWorkersForm(port=workers.port, replicas=workers.replicas, **_unnamed(workers)),
                **common,
            )
        case Kind.JOB if wrapping.read_step(_step_command(spec)):
            return JobForm(steps=_step_forms(spec), **common)
        case Kind.JOB:
            return JobForm(job=TaskForm(name=first.name, replicas=first.replicas, **_unnamed(first)), **common)
        case Kind.LEARNER_WORKERS:
            evaluators = [_replicated(one, EvaluatorForm) for one in spec.sets if one.role is Role.EVALUATOR]
            learner = next(one for one in spec.sets if one.role is Role.LEARNER)
            return LearnerWorkersForm(
                learner=LearnerForm(name=learner.name, **_unnamed(learner)),
                workers=[_replicated(one, WorkersForm) for one in spec.sets if one.role is Role.WORKER],
                evaluator=evaluators[0] if evaluators else None,
                **common,
            )


def _step_command(spec: RunSpec) -> tuple[str, ...]:
    """The command of the first step, if it is one."""
    return next(one.command for one in spec.sets if one.role is not Role.RENDEZVOUS)


def _step_forms(spec: RunSpec) -> list[StepForm]:
    forms = []
    for one in spec.sets:
        if one.role is Role.RENDEZVOUS or (found := wrapping.read_step(one.command)) is None:
            continue
        told, command = found
        after = list(told.after)
        if wrapping.read_elastic(command) is None:
            fields = {**_unnamed(one), "command": list(command)}
            forms.append(StepForm(name=one.name, replicas=one.replicas, after=after, **fields))
        else:
            nodes, place = _nodes(spec, one)
            forms.append(StepForm(name=one.name, after=after, nodes=nodes, rendezvous=place))
    return forms


def _nodes(spec: RunSpec, one: SetSpec) -> tuple[NodesForm, RendezvousForm]:
    """The form of elastic nodes, and of the place where they meet."""
    wrapped = wrapping.read_step(one.command)
    found = wrapping.read_elastic(wrapped[1] if wrapped else one.command)
    if found is None:
        return NodesForm(name=one.name, replicas=one.replicas, **_unnamed(one)), RendezvousForm()
    told, command = found
    fields = {**_unnamed(one), "command": list(command), "nproc_per_node": told.processes}
    meeting = spec.set_named(told.rendezvous)
    image = meeting.pod.image if meeting is not None and meeting.pod.image != one.pod.image else ""
    nodes = NodesForm(name=one.name, replicas=one.replicas, min=told.low, max=told.high, **fields)
    place = msgspec.convert({"backend": told.backend, "image": image}, RendezvousForm)
    return nodes, place


def _replicated(one: SetSpec, form: Any) -> Any:
    return form(name=one.name, replicas=one.replicas, **_unnamed(one))


def _unnamed(one: SetSpec) -> dict[str, Any]:
    """The fields that the forms of all sets have."""
    fields: dict[str, Any] = {
        "command": list(one.command),
        "slots": one.slots,
        "env": dict(one.env),
        "restart": one.restart.value,
        "resources": ResourcesForm(one.resources.cpu_cores, one.resources.memory_bytes),
        "grace_seconds": one.grace_seconds,
        "pod": pod_form(one.pod),
    }
    if one.program is not None:
        fields["program"] = one.program.url or one.program.name
    return fields
