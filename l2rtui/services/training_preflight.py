"""Preflight of training: settings, environment, memory of the learner's data, and ranks that share a GPU.

Everything is read once, first (`_read`); the checks then need nothing but what was read and the plan. Of programs
that are not the project's own only the ranks of elastic jobs are checked. The arithmetic and the rules of settings
are the learner's own (``runtime.base``).
"""

from __future__ import annotations

import ast
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from l2rtui.backends.common.train_settings import facts_of, refused, train_settings
from l2rtui.domain.kinds import Binding
from l2rtui.domain.plan import LaunchPlan, PodPlan, RunPlan
from l2rtui.domain.preflight import Finding, Severity
from l2rtui.domain.quantity import counted, format_bytes
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.domain.workload import Role, SetSpec
from l2rtui.services import runtime_commands
from runtime.base import environments, replay_memory
from runtime.base.replay_memory import DataMemory

if TYPE_CHECKING:
    from runtime.base.training_rules import TrainingFacts

_CPU_HINT = "If the program computes on a CPU, write `binding: cpu` under the nodes' pod."
NEEDED: Final = {
    "algorithm": ("update", "policy_weights", "tensors"),
    "network": ("forward",),
    "environment": ("start", "observe", "step"),
}
"""Required members of a class, by the setting that names it; ``runtime.rl.algos`` documents the same."""
_OPEN_BASES: Final = ("Algorithm", "Module")
"""Classes of others that leave exactly these methods abstract."""
MEMORY = "memory"
"""Subject of findings on the memory of replay, rollouts and batches."""


def class_problem(setting: str, name: str, file: str, text: str) -> str:
    """Return the problem of the class ``module:Class`` in a file, as a sentence; empty if none is found.

    Args:
        setting: ``algorithm``, ``network`` or ``environment``. name: its value. Names of other modules, and
            built-in methods, are not checked.
        file: Name of the file that is sent with the run. text: its contents; empty if it is fetched later.
    """
    module, colon, class_name = name.partition(":")
    if not colon or not text or f"{module}.py" != file:
        return ""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        return f"{file} is no Python{f': line {line}' if line else ''}"
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    if class_name not in classes:
        return f"{file} has no class {class_name}"
    members = _members(classes[class_name], classes)
    missing = [needed for needed in NEEDED[setting] if members is not None and needed not in members]
    return f"{class_name} of {file} has no {' and no '.join(missing)}" if missing else ""


def _members(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> set[str] | None:
    """Return the names that a class of the file defines or inherits; None if a base may define more."""
    names = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
    names |= {
        target.id
        for part in node.body
        if isinstance(part, ast.Assign)
        for target in part.targets
        if isinstance(target, ast.Name)
    }
    for base in node.bases:
        base_name = base.id if isinstance(base, ast.Name) else getattr(base, "attr", "")
        if base_name in _OPEN_BASES:
            continue
        inherited = _members(classes[base_name], classes) if classes.get(base_name, node) is not node else None
        if inherited is None:
            return None
        names |= inherited
    return names


class _Place(Struct, frozen=True):
    """Memory available to a learner's pod, in bytes; None if unknown or absent.

    Attributes:
        card: Of its GPU. card_name: ``GPU0 of n``; empty if it computes on the CPU.
        host: Of its set's memory limit or its node, the smaller one. host_name: which of them.
        host_left: Currently unused on its node.
    """

    card: int | None = None
    card_name: str = ""
    host: int | None = None
    host_name: str = ""
    host_left: int | None = None


class _Training(Struct, frozen=True):
    """Training settings of a run, and the learner's pods."""

    run: RunPlan
    settings: Mapping[str, Any]
    facts: TrainingFacts
    learners: tuple[PodPlan, ...]

    @property
    def may_use_card(self) -> bool:
        """True if the replay may be on a GPU."""
        return bool(self.settings.get("replay_device", "auto") != "host")

    def refusal(self, sentence: str, hint: str) -> Finding:
        return Finding(Severity.REFUSAL, self.run.spec.experiment, sentence, hint)


class _RankGroup(Struct, frozen=True):
    """A set whose pods train as one group, each with this number of processes."""

    run: RunPlan
    set_spec: SetSpec
    processes: int


def check_training(plan: LaunchPlan, snapshot: ClusterSnapshot) -> tuple[Finding, ...]:
    """Return findings about training settings, environments, memory and ranks; each fact once."""
    trainings, groups = _read(plan)
    findings: dict[tuple[str, str], Finding] = {}
    # Seeds of an experiment have the same settings; each trial of a sweep has its own.
    mistaken: dict[str, tuple[Finding, ...]] = {}
    for training in trainings:
        spec = training.run.spec
        checks = (
            _method(training),
            _environment(training),
            _collection(training),
            mistaken.setdefault(spec.train, refused(spec.name, training.facts)),
            _devices(training),
            _memory(training, snapshot),
        )
        for finding in itertools.chain(*checks):
            # Seeds of an experiment do not differ in anything checked here.
            findings.setdefault((finding.subject, finding.sentence), finding)
    shared = itertools.chain.from_iterable(map(_shared_gpus, groups))
    return (*findings.values(), *_together(trainings, snapshot), *shared)


def _read(plan: LaunchPlan) -> tuple[list[_Training], list[_RankGroup]]:
    """Return the runs with processes of the runtime and readable settings, and the sets that train as one group."""
    trainings: list[_Training] = []
    groups: list[_RankGroup] = []
    read: dict[str, TrainingFacts] = {}
    for run in plan.runs:
        settings = train_settings(run.spec)
        groups += (
            _RankGroup(run, set_spec, processes)
            for set_spec in run.spec.sets
            if (processes := _processes(set_spec, settings or {})) is not None
        )
        if settings is None:
            continue
        if run.spec.train not in read:
            read[run.spec.train] = facts_of(settings)
        learners = tuple(pod for pod in run.pods if pod.set_spec.role is Role.LEARNER)
        trainings.append(_Training(run, settings, read[run.spec.train], learners))
    return trainings, groups


def _processes(set_spec: SetSpec, settings: Mapping[str, Any]) -> int | None:
    """Return the processes of each node of a set that trains on GPUs as one group; None for other sets."""
    if set_spec.role is Role.LEARNER and set_spec.replicas > 1:
        return None if settings.get("device") == "cpu" else 1
    wrapped = runtime_commands.read_step(set_spec.command)
    match = runtime_commands.read_elastic(wrapped[1] if wrapped else set_spec.command)
    return None if match is None else match[0].processes or 1


def _method(training: _Training) -> Iterator[Finding]:
    """Yield a refusal for each of the user's classes that its file lacks, or that lacks a required member."""
    settings = training.settings
    module = next((part.program for part in training.run.spec.sets if part.program is not None), None)
    if module is None:
        return
    for setting in NEEDED:
        value = settings.get(setting)
        name = value.get("name") if isinstance(value, Mapping) else value
        # If workers collect, module:Name may be an id that the file registers with Gymnasium.
        is_class = setting != "environment" or settings.get("collect") == "device"
        if not isinstance(name, str) or not is_class:
            continue
        if problem := class_problem(setting, name, module.name, module.text):
            sentence = f"train.{setting} is {name}, and {problem}"
            page = "docs/gpu.md" if setting == "environment" else "docs/own-methods.md"
            yield training.refusal(sentence, f"{page} shows a whole one.")


def _devices(training: _Training) -> Iterator[Finding]:
    """Yield a finding if the learner's pods get fewer or more GPUs than the learner has ranks."""
    count = training.settings.get("devices", 1)
    if not training.learners or type(count) is not int:
        return
    learner = training.learners[0]
    nodes = learner.set_spec.replicas
    gpus = nodes * max(1, learner.set_spec.gpus)
    # On a CPU there are as many ranks as the settings say.
    is_cpu = training.settings.get("device") == "cpu" or (learner.gpu is not None and learner.gpu.is_cpu)
    if count % nodes:
        sentence = f"train.devices is {count}, and its learner has {nodes} nodes with equal numbers of ranks"
        yield training.refusal(sentence, "Leave out train.devices: learner.nodes and learner.gpus set it.")
        return
    if count == gpus or (is_cpu and count > gpus):
        return
    sentence = f"train.devices is {count}, and its learner gets {counted(gpus, 'GPU')}"
    if count > gpus:
        hint = f"Give it whole ones: --set learner.gpus={count // nodes}, which sets devices; or leave devices out."
        yield training.refusal(sentence, hint)
    else:
        fewer = f"--set learner.gpus={count // nodes}, which takes no more"
        hint = f"Leave out train.devices, and it uses all; or {fewer}."
        yield Finding(Severity.WARNING, training.run.spec.experiment, sentence, hint)


def _environment(training: _Training) -> Iterator[Finding]:
    environment = training.facts.environment
    if environment.name is not None and not environment.is_possible:
        sentence = f"train.environment is {environment.name!r}, and there is no such environment"
        yield training.refusal(sentence, environment.suggestion)


def _collection(training: _Training) -> Iterator[Finding]:
    """Yield a finding if no process collects: neither workers nor, for this environment, the learner itself."""
    environment, settings = training.facts.environment, training.settings
    roles = {part.role for part in training.run.spec.sets}
    if not environment.is_possible or environment.has_device_form or Role.LEARNER not in roles:
        return
    if settings.get("collect") == "device":
        if environment.may_be_class:
            return
        sentence = f"train.collect is device, and environment {environment.name} has no device form"
        others = ", ".join(environments.COLLECTED_ON_DEVICE)
        yield training.refusal(sentence, f"Take workers, or one of {others}.")
    elif Role.WORKER not in roles and "collect" not in settings and settings.get("algorithm") != "bc":
        sentence = f"the run has no workers, and environment {environment.name} has no device form to collect from"
        hint = "Give it workers; with train.collect: workers it waits for those that join from elsewhere."
        if environment.may_be_class:
            hint += " With train.collect: device the learner itself steps a class on tensors."
        yield Finding(Severity.WARNING, training.run.spec.experiment, sentence, hint)


def _memory(training: _Training, snapshot: ClusterSnapshot) -> Iterator[Finding]:
    environment, data = training.facts.environment, training.facts.data
    if not training.learners or not environment.is_possible:
        return
    if environment.shape is None:
        name = environment.name
        sentence = f"memory of replay and batches is unknown: only {name} knows the size of its observations"
        yield Finding(Severity.OK, MEMORY, sentence)
    elif data is not None:
        place = _place(training.learners[0], training.settings, snapshot)
        yield _fit(training, data, place, str(environment.shape))


def _together(trainings: Iterable[_Training], snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Yield a warning for each card and node that can hold the data of each learner of the plan, but not of all."""
    needs: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for training in trainings:
        for pod in training.learners:
            if (need := _need(pod, training, snapshot)) is not None:
                name, room, size = need
                needs[name, room].append(size)
    for (name, room), sizes in needs.items():
        if sum(sizes) > room:
            sentence = (
                f"the data of {len(sizes)} learners takes {format_bytes(sum(sizes))} together, more than {name}"
            )
            hint = "Spread them, launch fewer seeds, or lower train.replay_capacity."
            yield Finding(Severity.WARNING, MEMORY, f"{sentence} ({format_bytes(room)}) holds", hint)


def _need(pod: PodPlan, training: _Training, snapshot: ClusterSnapshot) -> tuple[str, int, int] | None:
    """Return the memory that would hold a learner's data: its name, its bytes, and the bytes of the data; None
    without data, and if the memory is unknown or too small.
    """
    if (data := training.facts.data) is None:
        return None
    place, node = _place(pod, training.settings, snapshot), snapshot.nodes.get(pod.node)
    if place.card is not None and training.may_use_card and replay_memory.fits_device(data, place.card):
        return place.card_name, place.card, data.device_bytes
    if node is None or data.host_bytes > node.memory_bytes:  # refused separately, or unknown
        return None
    return f"the memory of {node.name}", node.memory_bytes, data.host_bytes


def _fit(training: _Training, data: DataMemory, place: _Place, shape: str) -> Finding:
    """Return the finding for data in a place; a refusal only if no memory that it may use is large enough."""
    settings = training.settings
    facts = _amounts(settings, data, shape)
    if place.card is not None and training.may_use_card and replay_memory.fits_device(data, place.card):
        return Finding(Severity.OK, MEMORY, f"{facts}; it fits {place.card_name}")
    may_use_card = bool(place.card_name) and training.may_use_card
    card = f"{place.card_name} ({format_bytes(place.card)})" if place.card is not None and may_use_card else ""
    if card and settings.get("replay_device") == "device":
        sentence = f"{facts}: more than {card} holds beside networks"
        return training.refusal(sentence, _hint(settings, place.card or 0, data))
    if place.host is None:
        return Finding(Severity.OK, MEMORY, f"{facts}; how much memory its node has is unknown")
    host = f"{place.host_name} ({format_bytes(place.host)})"
    if data.host_bytes > place.host:
        if may_use_card and not card:
            sentence = f"{facts}: more than {host} holds, and the memory of {place.card_name} is unknown"
            return Finding(Severity.WARNING, MEMORY, sentence, _hint(settings, place.host, data))
        sentence = f"{facts}: more than {' or '.join(filter(None, (card, host)))} holds"
        most = max(place.host, (place.card or 0) if may_use_card else 0)
        return training.refusal(sentence, _hint(settings, most, data))
    if place.host_left is not None and data.host_bytes > place.host_left:
        sentence = f"{facts}; of {host} only {format_bytes(place.host_left)} are left"
        return Finding(Severity.WARNING, MEMORY, sentence, "The learner may be killed when its replay fills up.")
    return Finding(Severity.OK, MEMORY, f"{facts}; it fits {host}")


def _amounts(settings: Mapping[str, Any], data: DataMemory, shape: str) -> str:
    """Return bytes and counts: ``replay takes 26.3Gi (500,000 transitions of 84x84x4), batches 27.6Mi``."""
    if data.replay_bytes:
        capacity = settings.get("replay_capacity", replay_memory.REPLAY_CAPACITY)
        replay = f"replay takes {format_bytes(data.replay_bytes)} ({capacity:,} transitions of {shape})"
        return f"{replay}, batches {format_bytes(data.batch_bytes)}"
    return f"rollouts and batches take {format_bytes(data.rollout_bytes)} (observations of {shape})"


def _hint(settings: Mapping[str, Any], room: int, data: DataMemory) -> str:
    """Return the setting to change, with a value that fits half of the room."""
    if not data.replay_bytes:
        algorithm = settings.get("algorithm", "sac")
        return f"Lower train.{algorithm}.batch_steps, or the size of the observations."
    capacity = settings.get("replay_capacity", replay_memory.REPLAY_CAPACITY)
    # Rounded down to one digit, as it is only a proposal.
    share = int(capacity * room / 2 / data.replay_bytes)
    digit = 10 ** max(0, len(str(share)) - 1)
    fitting = max(1, share // digit * digit)
    return f"For example --set train.replay_capacity={fitting}, or smaller observations."


def _place(pod: PodPlan, settings: Mapping[str, Any], snapshot: ClusterSnapshot) -> _Place:
    """Return the memory of a learner's place in the plan."""
    node, gpu = snapshot.nodes.get(pod.node), pod.gpu
    rooms: list[tuple[int, str]] = []
    if limit := pod.set_spec.resources.memory_bytes:
        rooms.append((limit, f"the memory limit of {pod.set_spec.name}"))
    if node is not None and node.memory_bytes:
        rooms.append((node.memory_bytes, f"the memory of {node.name}"))
    host, host_name = min(rooms, default=(None, ""))
    used = None if node is None else node.memory_used_bytes
    left = None if node is None or used is None or not node.memory_bytes else max(0, node.memory_bytes - used)
    if gpu is None or gpu.is_cpu or settings.get("device", "auto") not in ("auto", "cuda"):
        return _Place(host=host, host_name=host_name, host_left=left)
    use = None if node is None else node.use(gpu.index)
    card = gpu.memory_bytes or (use.memory_bytes if use is not None else 0)
    return _Place(card or None, f"{gpu.label} of {gpu.node}", host, host_name, left)


def _shared_gpus(group: _RankGroup) -> Iterator[Finding]:
    """Yield a warning for each GPU that two processes of a group would share.

    A warning, not a refusal: only the program knows whether it computes on the GPU of its node.
    """
    run, set_spec, processes = group.run, group.set_spec, group.processes
    if set_spec.pod.binding is Binding.CPU:
        return
    subject = f"{run.spec.name}/{set_spec.name}"
    pods: defaultdict[str, list[str]] = defaultdict(list)
    for pod in run.pods:
        if pod.set_spec.name == set_spec.name:
            for gpu in pod.devices:
                if not gpu.is_cpu:
                    pods[f"{pod.node}/{gpu.index}"].append(pod.name)
    # All slots of a replica are on one GPU, unless it has whole ones.
    number = max(1, set_spec.gpus)
    if pods and processes > number:
        its = "its GPU" if number == 1 else f"its {number} GPUs"
        sentence = f"{processes} processes of each node would share {its}, and NCCL takes one for each"
        yield Finding(Severity.WARNING, subject, sentence, f"Write more nodes with one process each. {_CPU_HINT}")
    for device, names in pods.items():
        if len(names) > 1:
            sentence = f"{' and '.join(names)} would share the GPU {device}, and NCCL takes one process for each"
            yield Finding(Severity.WARNING, subject, sentence, f"Write fewer nodes. {_CPU_HINT}")
