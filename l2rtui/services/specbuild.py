"""The decoded form of a spec file to the sets of a RunSpec, and a RunSpec back to a form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from l2rtui.domain.quantity import parse_quantity
from l2rtui.domain.workload import Kind, Resources, RestartPolicy, Role, RunSpec, SetSpec
from l2rtui.services.podform import pod_form, pod_settings
from l2rtui.services.specform import (
    EvaluatorForm,
    JobForm,
    LearnerForm,
    LearnerWorkersForm,
    PodForm,
    ResourcesForm,
    SetForm,
    SpecForm,
    TaskForm,
    WorkersForm,
)


def to_document(spec: RunSpec) -> dict[str, Any]:
    """Write a RunSpec in the form of a spec file; loading it gives the same RunSpec.

    Runs that were imported from Kubernetes' own objects have no such form.
    """
    common: dict[str, Any] = {
        "name": spec.name,
        "seed": spec.seed,
        "image": spec.image,
        "env": dict(spec.env),
        "train": msgspec.json.decode(spec.train),
    }
    if spec.kind is Kind.JOB:
        form: SpecForm = JobForm(job=_set_form(spec.sets[0], TaskForm), **common)
    else:
        evaluators = [_set_form(one, EvaluatorForm) for one in spec.sets if one.role is Role.EVALUATOR]
        form = LearnerWorkersForm(
            learner=next(_set_form(one, LearnerForm) for one in spec.sets if one.role is Role.LEARNER),
            workers=[_set_form(one, WorkersForm) for one in spec.sets if one.role is Role.WORKER],
            evaluator=evaluators[0] if evaluators else None,
            **common,
        )
    document: dict[str, Any] = msgspec.to_builtins(form)
    return document


def sets_of(form: SpecForm) -> tuple[SetSpec, ...]:
    """All sets of a form, learner first.

    Raises:
        ValueError: a quantity or a mount is wrong; names the set and the field.
    """
    if isinstance(form, JobForm):
        return (_set_spec(form.job, Role.JOB, form.pod),)
    evaluators = (form.evaluator,) if form.evaluator else ()
    return (
        _set_spec(form.learner, Role.LEARNER, form.pod),
        *(_set_spec(one, Role.WORKER, form.pod) for one in form.workers),
        *(_set_spec(one, Role.EVALUATOR, form.pod) for one in evaluators),
    )


def _set_spec(form: SetForm, role: Role, run: PodForm) -> SetSpec:
    cpu, memory = form.resources.cpu, form.resources.memory
    return SetSpec(
        name=form.name,
        role=role,
        command=tuple(form.command),
        replicas=1 if isinstance(form, LearnerForm) else form.replicas,
        slots=form.slots,
        env=variables(form.env),
        restart=RestartPolicy(form.restart),
        resources=Resources(
            None if cpu is None else _quantity(cpu, f"{form.name}: resources.cpu"),
            None if memory is None else int(_quantity(memory, f"{form.name}: resources.memory")),
        ),
        grace_seconds=form.grace_seconds,
        pod=pod_settings(run, form.pod, form.name),
    )


def _quantity(value: str | float, field: str) -> float:
    try:
        number = parse_quantity(value)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None
    if number < 0:
        raise ValueError(f"{field}: {value} is less than nothing")
    return number


def _set_form(one: SetSpec, form: type[Any]) -> Any:
    fields: dict[str, Any] = {
        "name": one.name,
        "command": list(one.command),
        "slots": one.slots,
        "env": dict(one.env),
        "restart": one.restart.value,
        "resources": ResourcesForm(one.resources.cpu_cores, one.resources.memory_bytes),
        "grace_seconds": one.grace_seconds,
        "pod": pod_form(one.pod),
    }
    return form(**fields) if form is LearnerForm else form(**fields, replicas=one.replicas)


def variables(env: Mapping[str, str | float | bool]) -> tuple[tuple[str, str], ...]:
    """Variables are text; YAML's true and 1 become ``true`` and ``1``."""
    return tuple((key, str(value).lower() if isinstance(value, bool) else str(value)) for key, value in env.items())
