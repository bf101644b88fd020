"""Sets of a RunSpec from the decoded form of a spec file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from l2rtui.domain.containers import PodSettings
from l2rtui.domain.imageref import parse_image
from l2rtui.domain.kinds import Binding
from l2rtui.domain.quantity import parse_bytes, parse_cores
from l2rtui.domain.workload import Kind, Program, Resources, RestartPolicy, Role, SetSpec
from l2rtui.errors import SpecError
from l2rtui.services import runtime_commands
from l2rtui.services.spec import schema, script_source
from l2rtui.services.spec.pod_schema import pod_settings
from runtime.base import contract, environments
from runtime.base.contract import RENDEZVOUS_PORT

RENDEZVOUS_SET = "rdzv"
SERVERS_SET, WORKERS_SET = "ps", "worker"
_FIELDS_OF_VARIABLES = {
    contract.ENV_RUN: "name",
    contract.ENV_SEED: "seed",
    contract.ENV_CONFIG: "train",
    contract.ENV_CPUS: "resources.cpu",
    contract.ENV_LIMITS: "limits",
    contract.ENV_ALERTS: "alerts",
}
"""Field that decides the value of a variable that launchers set."""
_HERE = Path()
_Number = TypeVar("_Number", int, float)


def kind_of(form: schema.SpecForm) -> Kind:
    """Return the kind of a form's runs."""
    return Kind(str(form.__struct_config__.tag))


def sets_of(form: schema.SpecForm, folder: Path = _HERE) -> tuple[SetSpec, ...]:
    """Return all sets of a form: learner first, steps in their order.

    Args:
        folder: Folder of the spec file, to which paths of programs are relative.

    Raises:
        ValueError: a quantity, a mount, a program or the order of steps is wrong; names the set and the field.
    """
    if isinstance(form, schema.ElasticForm):
        return _elastic(form.nodes, form.rendezvous, form.pod, folder, form.nodes.name, RENDEZVOUS_SET)
    if isinstance(form, schema.ParameterServerForm):
        servers = _set_with_program(form.servers, SERVERS_SET, Role.PS, form.pod, folder)
        workers = _set_with_program(form.workers, WORKERS_SET, Role.WORKER, form.pod, folder)
        return (
            replace(servers, stable=True, port=form.servers.port),
            replace(workers, stable=True, port=form.workers.port),
        )
    if isinstance(form, schema.JobForm):
        # Exactly one of both: msgspec has no union of two shapes under the same ``kind``.
        if (form.job is None) == (not form.steps):
            raise ValueError("write either job, with a command, or steps")
        if form.job is not None:
            return (_set_with_program(form.job, form.job.name, Role.JOB, form.pod, folder),)
        return tuple(_steps(form.steps, form.pod, folder))
    if form.workers and not _takes_workers(form.train):
        if form.train.get("collect") == "device":
            raise ValueError("train.collect is device, so the learner itself collects; leave workers out")
        raise ValueError("the learner reads a dataset (train.collect, algorithm bc); leave workers out")
    evaluators = (form.evaluator,) if form.evaluator else ()
    sets = (
        _learner_set(form),
        *(_set_spec(form_of_set, form_of_set.name, Role.WORKER, form.pod) for form_of_set in _worker_forms(form)),
        *(_set_spec(form_of_set, form_of_set.name, Role.EVALUATOR, form.pod) for form_of_set in evaluators),
    )
    module = script_source.load_module(form.program, folder, form.name)
    return tuple(script_source.with_module(part, module) for part in sets)


def check_image(place: str, image: str) -> None:
    """Refuse the name of an image that no node can pull. Raises SpecError."""
    try:
        parse_image(image)
    except ValueError as error:
        hint = "Write REGISTRY/NAME:TAG, or give another with --set image=NAME."
        raise SpecError(f"{place}: image {image!r}: {error}.", hint) from None


def unbound_sets(form: schema.SpecForm) -> frozenset[str]:
    """Return the names of sets for which neither the set nor the run names a binding or a device."""
    if not isinstance(form, schema.LearnerWorkersForm) or (form.pod.binding or form.pod.device) is not None:
        return frozenset()
    workers, evaluators = _worker_forms(form), (form.evaluator,) if form.evaluator else ()
    sets: tuple[schema.LearnerForm | schema.WorkersForm | schema.EvaluatorForm, ...] = (form.learner, *workers)
    return frozenset(part.name for part in (*sets, *evaluators) if (part.pod.binding or part.pod.device) is None)


def train_of(form: schema.SpecForm) -> dict[str, Any]:
    """Return the training settings of a form, completed for a learner of ours.

    Without workers it collects itself if it can. It has a rank on each of its whole GPUs, on each of its nodes.
    """
    train = dict(form.train)
    log_to = form.log_to if isinstance(form, schema.LearnerWorkersForm) else None
    if log_to is not None and train.setdefault("log_to", log_to) != log_to:
        raise SpecError(f"log_to is {log_to}, and train.log_to is {train['log_to']}.", "Write one of them.")
    # Another learner may not know these settings.
    if not isinstance(form, schema.LearnerWorkersForm) or form.learner.command != schema.LearnerForm().command:
        return train
    # For an environment without a device form, the learner waits for workers elsewhere.
    has_device_form = train.get("environment", environments.DEFAULT) in environments.COLLECTED_ON_DEVICE
    if form.workers == [] and "collect" not in train and _takes_workers(train) and has_device_form:
        train["collect"] = "device"
    gpus, _ = _gpus(form.learner, form.learner.name)
    ranks = form.learner.nodes * max(1, gpus)
    if ranks > 1 and not _sends_gradients(train):
        train.setdefault("devices", ranks)
    return train


def _learner_set(form: schema.LearnerWorkersForm) -> SetSpec:
    learner = form.learner
    set_spec = _set_spec(learner, learner.name, Role.LEARNER, form.pod)
    if learner.nodes == 1:
        return set_spec
    if _sends_gradients(form.train):
        raise ValueError("train.impala.sends_gradients applies gradients on one device; leave out learner.nodes")
    return replace(set_spec, replicas=learner.nodes, stable=True, port=RENDEZVOUS_PORT)


def _sends_gradients(train: Mapping[str, Any]) -> bool:
    """Return True if workers send gradients, which are applied on one device."""
    impala = train.get("impala")
    return train.get("algorithm") == "impala" and isinstance(impala, dict) and bool(impala.get("sends_gradients"))


def _worker_forms(form: schema.LearnerWorkersForm) -> list[schema.WorkersForm]:
    """Return the worker sets; by default one set with one worker, unless the learner itself collects."""
    if form.workers is None:
        return [schema.WorkersForm()] if _takes_workers(form.train) else []
    return form.workers


def _takes_workers(train: Mapping[str, Any]) -> bool:
    """Return False if a learner itself collects, or reads a dataset as algorithm bc always does."""
    default = "dataset" if train.get("algorithm") == "bc" else "workers"
    return bool(train.get("collect", default) not in ("device", "dataset"))


def _elastic(
    nodes: schema.NodesForm,
    rendezvous_form: schema.RendezvousForm,
    run: schema.PodForm,
    folder: Path,
    name: str,
    rendezvous: str,
) -> tuple[SetSpec, SetSpec]:
    """Return the set of the rendezvous process and the set of nodes."""
    max_nodes = nodes.replicas if nodes.max is None else nodes.max
    # The schema checks each number separately; their combination is checked here.
    if not nodes.min <= nodes.replicas <= max_nodes:
        raise ValueError(f"{name}: {nodes.replicas} replicas are not within min {nodes.min} and max {max_nodes}")
    set_spec = _set_with_program(nodes, name, Role.WORKER, run, folder)
    # Slots are shares of one GPU, which takes one process; on a CPU they are room for processes.
    is_cpu = set_spec.pod.binding is Binding.CPU
    processes = nodes.nproc_per_node or (max(1, nodes.slots) if is_cpu else None)
    elastic = runtime_commands.ElasticCommand(rendezvous, rendezvous_form.backend, nodes.min, max_nodes, processes)
    command = runtime_commands.elastic(elastic, set_spec.command)
    set_spec = replace(set_spec, command=command, bounds=(nodes.min, max_nodes))
    return _rendezvous_set(rendezvous_form, set_spec.pod, rendezvous), set_spec


def _rendezvous_set(form: schema.RendezvousForm, pod: PodSettings, name: str) -> SetSpec:
    """Return the set of the rendezvous process: separate from the nodes, so that any node may be lost."""
    return SetSpec(
        name,
        Role.RENDEZVOUS,
        runtime_commands.rendezvous(form.backend),
        # It needs no GPU, and must not wait for one.
        slots=0,
        restart=RestartPolicy.ON_FAILURE,
        resources=Resources(cpu_cores=0.1),  # without a request a busy node would starve it (cpu.shares 2)
        pod=replace(pod, shm_bytes=None, ports=(), image=form.image or pod.image),
        stable=True,
        port=RENDEZVOUS_PORT,
    )


def _steps(steps: list[schema.StepForm], run: schema.PodForm, folder: Path) -> Iterable[SetSpec]:
    """Yield the sets of all steps; each waits for the previous ones."""
    # A step can only wait for an earlier one, so the order of the file is an order of execution without cycles.
    before: list[str] = []
    for form in steps:
        after = tuple(before[-1:] if form.after is None else form.after)
        if unknown := next((name for name in after if name not in before), ""):
            raise ValueError(f"{form.name}: after: there is no step {unknown} above it")
        # Names of sets are names of controllers, so two equal ones would be one object.
        if form.name in before:
            raise ValueError(f"two steps are named {form.name}")
        before.append(form.name)
        if form.nodes is not None:
            yield from _elastic_step(form, form.nodes, after, run, folder)
            continue
        if form.rendezvous is not None:
            raise ValueError(f"{form.name}: a rendezvous is for steps with nodes")
        set_spec = _set_with_program(form, form.name, Role.JOB, run, folder)
        step = runtime_commands.Step(form.name, after, set_spec.replicas, set_spec.restart is RestartPolicy.NEVER)
        yield replace(set_spec, command=runtime_commands.step(step, set_spec.command), stable=True)


def _elastic_step(
    form: schema.StepForm, nodes: schema.NodesForm, after: tuple[str, ...], run: schema.PodForm, folder: Path
) -> Iterable[SetSpec]:
    if form.command or form.program or form.replicas != 1 or form.gpus or form.gpu or form.resources.gpu:
        fields = "command, program, replicas and GPUs"
        raise ValueError(f"{form.name}: {fields} of an elastic step stand under its nodes")
    rendezvous_form = form.rendezvous or schema.RendezvousForm()
    rendezvous, set_spec = _elastic(nodes, rendezvous_form, run, folder, form.name, f"{form.name}-{RENDEZVOUS_SET}")
    yield replace(rendezvous, command=runtime_commands.rendezvous(rendezvous_form.backend, form.name))
    step = runtime_commands.Step(form.name, after, is_once=set_spec.restart is RestartPolicy.NEVER)
    yield replace(set_spec, command=runtime_commands.step(step, set_spec.command))


def _set_with_program(form: schema.SetForm, name: str, role: Role, run: schema.PodForm, folder: Path) -> SetSpec:
    """Return a set of a kind whose processes end: these may have their own program."""
    file: Program | None = script_source.load(getattr(form, "program", ""), folder, name)
    set_spec = _set_spec(form, name, role, run)
    # A Job allows OnFailure and Never only; a plain task may be a server, which becomes a ReplicaSet.
    if set_spec.restart is RestartPolicy.ALWAYS and not isinstance(form, schema.TaskForm):
        raise ValueError(f"{name}: restart Always would start processes again that have finished: write OnFailure")
    command = list(form.command)
    # The default command trains l2rtui's own example; with a program it would be passed that as well.
    if file and isinstance(form, schema.NodesForm | schema.ServersForm | schema.PsWorkersForm):
        command = [] if command == type(form)().command else command
    return replace(set_spec, command=script_source.command_of(command, file, name), program=file)


def _set_spec(form: schema.SetForm, name: str, role: Role, run: schema.PodForm) -> SetSpec:
    if any("\0" in word for word in form.command):
        raise ValueError(f"{name}: its command has a NUL character, which no process can get")
    cpu, memory = form.resources.cpu, form.resources.memory
    pod = pod_settings(run, form.pod, name)
    gpus, wish = _gpus(form, name)
    if gpus and pod.binding in (Binding.CPU, Binding.SHARED):
        raise ValueError(f"{name}: binding {pod.binding} gives no whole GPU: leave out gpus, or choose another")
    return SetSpec(
        name=name,
        role=role,
        command=tuple(form.command),
        replicas=1 if isinstance(form, schema.LearnerForm) else form.replicas,
        slots=max(1, form.slots) if gpus or wish.model or wish.memory else form.slots,
        env=variables(form.env),
        restart=RestartPolicy(form.restart),
        resources=Resources(
            None if cpu is None else _named(parse_cores, cpu, f"{name}: resources.cpu"),
            None if memory is None else _named(parse_bytes, memory, f"{name}: resources.memory"),
        ),
        grace_seconds=form.grace_seconds,
        pod=pod,
        gpus=gpus,
        gpu_model=wish.model,
        gpu_memory_bytes=_named(parse_bytes, wish.memory or 0, f"{name}: gpu.memory"),
        workers_per_pod=_workers_per_pod(form, name),
    )


def _workers_per_pod(form: schema.SetForm, name: str) -> int:
    if not isinstance(form, schema.WorkersForm):
        return 1
    number = form.workers_per_pod
    if form.replicas % number:
        raise ValueError(
            f"{name}: replicas is {form.replicas}, the number of workers; with workers_per_pod {number} write a "
            f"multiple of {number}"
        )
    return number


def _gpus(form: schema.SetForm, name: str) -> tuple[int, schema.GpuForm]:
    """Return the whole GPUs of each replica, 0 if it takes slots, and the GPUs that suit it."""
    is_wish = isinstance(form.gpu, schema.GpuForm)
    wish = form.gpu if isinstance(form.gpu, schema.GpuForm) else schema.GpuForm(count=0)
    count = form.gpu if isinstance(form.gpu, int) else wish.count
    written = {"gpus": form.gpus or 0, "gpu": count, "resources.gpu": form.resources.gpu or 0}
    numbers = {field: number for field, number in written.items() if number}
    # A mapping without a count selects GPUs, and another field gives their number.
    if is_wish and count == 1 and len(numbers) > 1:
        del numbers["gpu"]
    if len(set(numbers.values())) > 1:
        fields = " and ".join(f"{field} {number}" for field, number in numbers.items())
        raise ValueError(f"{name}: {fields} do not agree: write one of them")
    gpus = next(iter(numbers.values()), 0)
    if gpus and form.slots not in (0, 1):
        raise ValueError(f"{name}: write slots, parts of a GPU, or {next(iter(numbers))}, whole ones, but not both")
    return gpus, wish


def _named(parse: Callable[[str | float], _Number], value: str | float, field: str) -> _Number:
    """Return a parsed quantity; an error names its field."""
    try:
        return parse(value)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None


def variables(env: Mapping[str, str | float | bool]) -> tuple[tuple[str, str], ...]:
    """Return variables as text; YAML's true and 1 become ``true`` and ``1``."""
    for key, value in env.items():
        if not key or "=" in key or "\0" in f"{key}{value}":
            raise ValueError(
                f"env: no process can have the variable {key!r}: a name without =, and no NUL character"
            )
        if key in contract.SET_BY_LAUNCHERS:
            field = _FIELDS_OF_VARIABLES.get(key)
            advice = f"set the field {field} instead" if field else "rename your variable"
            raise ValueError(f"env: l2rtui sets {key} itself in every process: {advice}")
    # YAML reads ``DEBUG: true`` as a boolean, whose Python text ``True`` few programs expect.
    return tuple((key, str(value).lower() if isinstance(value, bool) else str(value)) for key, value in env.items())
