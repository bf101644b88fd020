"""The decoded form of a spec file to the sets of a RunSpec."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from l2rtui.domain.containers import PodSettings
from l2rtui.domain.quantity import parse_quantity
from l2rtui.domain.workload import Kind, Program, Resources, RestartPolicy, Role, SetSpec
from l2rtui.services import program, wrapping
from l2rtui.services.podform import pod_settings
from l2rtui.services.specform import (
    ElasticForm,
    JobForm,
    LearnerForm,
    LearnerWorkersForm,
    NodesForm,
    ParameterServerForm,
    PodForm,
    PsWorkersForm,
    RendezvousForm,
    ServersForm,
    SetForm,
    SpecForm,
    StepForm,
    TaskForm,
)
from runtime.contract import RENDEZVOUS_PORT

RENDEZVOUS_SET = "rdzv"
SERVERS_SET, WORKERS_SET = "ps", "worker"
_HERE = Path()


def kind_of(form: SpecForm) -> Kind:
    """Kind of the runs of a form."""
    kinds: dict[type[Any], Kind] = {
        LearnerWorkersForm: Kind.LEARNER_WORKERS,
        ElasticForm: Kind.ELASTIC,
        ParameterServerForm: Kind.PARAMETER_SERVER,
        JobForm: Kind.JOB,
    }
    return kinds[type(form)]


def sets_of(form: SpecForm, folder: Path = _HERE) -> tuple[SetSpec, ...]:
    """All sets of a form: learner first, steps in their order.

    Args:
        folder: That of the spec file: where the programs of sets are.

    Raises:
        ValueError: a quantity, a mount, a program or the order of steps is wrong; names the set and the field.
    """
    if isinstance(form, ElasticForm):
        return _elastic(form.nodes, form.rendezvous, form.pod, folder, form.nodes.name, RENDEZVOUS_SET)
    if isinstance(form, ParameterServerForm):
        return tuple(
            replace(_own(one, name, role, form.pod, folder), stable=True, port=one.port)
            for one, name, role in (
                (form.servers, SERVERS_SET, Role.PS),
                (form.workers, WORKERS_SET, Role.WORKER),
            )
        )
    if isinstance(form, JobForm):
        if (form.job is None) == (not form.steps):
            raise ValueError("write either job, with a command, or steps")
        if form.job is not None:
            return (_own(form.job, form.job.name, Role.JOB, form.pod, folder),)
        return tuple(_steps(form.steps, form.pod, folder))
    evaluators = (form.evaluator,) if form.evaluator else ()
    return (
        _set_spec(form.learner, form.learner.name, Role.LEARNER, form.pod),
        *(_set_spec(one, one.name, Role.WORKER, form.pod) for one in form.workers),
        *(_set_spec(one, one.name, Role.EVALUATOR, form.pod) for one in evaluators),
    )


def _elastic(
    nodes: NodesForm, place: RendezvousForm, run: PodForm, folder: Path, name: str, rendezvous: str
) -> tuple[SetSpec, SetSpec]:
    """The rendezvous process and the nodes that meet there."""
    most = nodes.replicas if nodes.max is None else nodes.max
    if not nodes.min <= nodes.replicas <= most:
        raise ValueError(f"{name}: {nodes.replicas} replicas are not within min {nodes.min} and max {most}")
    one = _own(nodes, name, Role.WORKER, run, folder)
    told = wrapping.Elastic(rendezvous, place.backend, nodes.min, most, nodes.nproc_per_node or max(1, nodes.slots))
    one = replace(one, command=wrapping.elastic(told, one.command), bounds=(nodes.min, most))
    return (_meeting(place, one.pod, rendezvous), one)


def _meeting(place: RendezvousForm, pod: PodSettings, name: str) -> SetSpec:
    """The process at which nodes meet: apart from them, so that each of them may go."""
    return SetSpec(
        name,
        Role.RENDEZVOUS,
        wrapping.rendezvous(place.backend),
        slots=0,
        restart=RestartPolicy.ON_FAILURE,
        resources=Resources(cpu_cores=0.1),  # a busy node gives nothing to a pod that requests nothing
        pod=replace(pod, shm_bytes=None, ports=(), image=place.image or pod.image),
        stable=True,
        port=RENDEZVOUS_PORT,
    )


def _steps(steps: list[StepForm], run: PodForm, folder: Path) -> Iterable[SetSpec]:
    """The sets of all steps: each waits for those before it."""
    before: list[str] = []
    for form in steps:
        after = tuple(before[-1:] if form.after is None else form.after)
        if unknown := next((name for name in after if name not in before), ""):
            raise ValueError(f"{form.name}: after: there is no step {unknown} above it")
        if form.name in before:
            raise ValueError(f"two steps are named {form.name}")
        before.append(form.name)
        if form.nodes is not None:
            yield from _elastic_step(form, form.nodes, after, run, folder)
            continue
        if form.rendezvous is not None:
            raise ValueError(f"{form.name}: a rendezvous is for steps with nodes")
        one = _own(form, form.name, Role.JOB, run, folder)
        told = wrapping.Step(form.name, after, one.replicas, one.restart is RestartPolicy.NEVER)
        yield replace(one, command=wrapping.step(told, one.command), stable=True)


def _elastic_step(
    form: StepForm, nodes: NodesForm, after: tuple[str, ...], run: PodForm, folder: Path
) -> Iterable[SetSpec]:
    if form.command or form.program or form.replicas != 1:
        raise ValueError(f"{form.name}: command, program and replicas of an elastic step stand under its nodes")
    place = form.rendezvous or RendezvousForm()
    meeting, one = _elastic(nodes, place, run, folder, form.name, f"{form.name}-{RENDEZVOUS_SET}")
    yield replace(meeting, command=wrapping.rendezvous(place.backend, form.name))
    told = wrapping.Step(form.name, after, is_once=one.restart is RestartPolicy.NEVER)
    yield replace(one, command=wrapping.step(told, one.command))


def _own(form: SetForm, name: str, role: Role, run: PodForm, folder: Path) -> SetSpec:
    """A set of a kind whose processes end: they may bring a program of their own."""
    source: str = getattr(form, "program", "")
    file: Program | None = program.load(source, folder, name)
    one = _set_spec(form, name, role, run)
    if one.restart is RestartPolicy.ALWAYS and not isinstance(form, TaskForm):
        raise ValueError(f"{name}: restart Always would start processes again that have finished: write OnFailure")
    command = list(form.command)
    is_default = isinstance(form, NodesForm | ServersForm | PsWorkersForm) and command == list(type(form)().command)
    return replace(
        one, command=program.command_of([] if is_default and file else command, file, name), program=file
    )


def _set_spec(form: SetForm, name: str, role: Role, run: PodForm) -> SetSpec:
    cpu, memory = form.resources.cpu, form.resources.memory
    return SetSpec(
        name=name,
        role=role,
        command=tuple(form.command),
        replicas=1 if isinstance(form, LearnerForm) else form.replicas,
        slots=form.slots,
        env=variables(form.env),
        restart=RestartPolicy(form.restart),
        resources=Resources(
            None if cpu is None else _quantity(cpu, f"{name}: resources.cpu"),
            None if memory is None else int(_quantity(memory, f"{name}: resources.memory")),
        ),
        grace_seconds=form.grace_seconds,
        pod=pod_settings(run, form.pod, name),
    )


def _quantity(value: str | float, field: str) -> float:
    try:
        number = parse_quantity(value)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None
    if number < 0:
        raise ValueError(f"{field}: {value} is less than nothing")
    return number


def variables(env: Mapping[str, str | float | bool]) -> tuple[tuple[str, str], ...]:
    """Variables are text; YAML's true and 1 become ``true`` and ``1``."""
    return tuple((key, str(value).lower() if isinstance(value, bool) else str(value)) for key, value in env.items())
