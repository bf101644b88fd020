"""Specs: a run, its sets of identical processes, their commands, variables and resources.

A RunSpec is the decoded, complete form: every command, environment variable and restart policy is explicit.
``services.spec`` reads it from YAML, fills in defaults and reports mistakes.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection, Iterator
from enum import StrEnum

from msgspec import Struct, field
from msgspec.structs import replace

from l2rtui.domain.containers import PodSettings
from l2rtui.domain.kinds import Binding, Kind, RestartPolicy, Role
from l2rtui.domain.node import Gpu, SlotId
from l2rtui.domain.quantity import counted, format_bytes
from l2rtui.domain.sweeps import Trial
from runtime.base.alert_rules import AlertRule
from runtime.base.limits import Limits

_DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
MAX_NAME = 40
"""Longest name of a run: pod names add a set and an index, and are limited to 63 characters (RFC 1123)."""
MAX_SET_NAME = 14
# NumPy accepts unsigned 32-bit seeds, other libraries signed ones: the smaller bound works for all.
MAX_SEED = 2**31 - 1
"""Largest seed that every library accepts."""


class Resources(Struct, frozen=True):
    """Expected resource use of one replica; None for unspecified.

    Attributes:
        cpu_cores: CPU cores; also limits the threads of numerical libraries.
        memory_bytes: Bytes.
    """

    cpu_cores: float | None = None
    memory_bytes: int | None = None


PROGRAM_WORD = "{program}"
"""Placeholder in a command that each backend replaces with the path of the set's program."""


class Program(Struct, frozen=True):
    """File that a set runs in addition to its image; exactly one of text and url is set.

    Attributes:
        name: Name of the file.
        text: Its contents, stored in the spec. url: Source from which it is fetched before each start.
    """

    name: str
    text: str = ""
    url: str = ""


class Workdir(Struct, frozen=True):
    """Folder of own code that is packed, sent with a run and unpacked before its processes start there.

    Attributes:
        path: The folder as the spec names it.
        sha256: Of the packed files; the launching machine stores the archive by it.
        files, num_bytes, packed_bytes: Number and size of the files, and size of the archive.
        setup: Commands (argv) that run in the unpacked folder once, before the processes.
        volume: Claim that carries an archive which is too large for a ConfigMap; empty for none.
    """

    path: str
    sha256: str
    files: int = 0
    num_bytes: int = 0
    packed_bytes: int = 0
    setup: tuple[tuple[str, ...], ...] = ()
    volume: str = ""

    @property
    def size(self) -> str:
        """Its files and sizes in words: ``12 files, 34.1KiB (11KiB packed, 3f2a9c10)``."""
        packed = f"{format_bytes(self.packed_bytes)}B packed, {self.sha256[:8]}"
        return f"{counted(self.files, 'file')}, {format_bytes(self.num_bytes)}B ({packed})"


class SetSpec(Struct, frozen=True):
    """Replicas of one command: the learner, a worker set, the evaluators.

    Attributes:
        slots: Slots of one device that each replica takes; 0 places it on a node without a device.
        gpus: Whole GPUs of one node that each replica takes instead of slots; 0 for slots.
        gpu_model, gpu_memory_bytes: Required GPU: words of its model name, and minimum memory.
        command: argv, never a shell line.
        env: Variables that the spec adds, in order.
        grace_seconds: Time between SIGTERM and SIGKILL.
        pod: Settings of its containers; complete, with the run's own settings merged in.
        template: Kubernetes pod template of an imported set, JSON as text; empty for a set that l2rtui generates.
        stable: Each replica has a fixed index and name, as in a StatefulSet, and the number of replicas is fixed.
        port: TCP port of each replica of a stable set, which is reachable by name; 0 for none.
        bounds: Minimum and maximum number of replicas; None for any number.
        program: File that the command names as ``{program}``.
        may_use_cpu: Its program needs no GPU and the spec names no binding, so that placement may choose ``cpu``.
        workers_per_pod: Replicas that share one pod with the device plugin; see ``workers_in_pod``.
    """

    name: str
    role: Role
    command: tuple[str, ...]
    replicas: int = 1
    slots: int = 1
    env: tuple[tuple[str, str], ...] = ()
    restart: RestartPolicy = RestartPolicy.ALWAYS
    resources: Resources = field(default_factory=Resources)
    grace_seconds: float = 10.0
    pod: PodSettings = field(default_factory=PodSettings)
    template: str = ""
    stable: bool = False
    port: int = 0
    bounds: tuple[int, int] | None = None
    program: Program | None = None
    may_use_cpu: bool = False
    gpus: int = 0
    gpu_model: str = ""
    gpu_memory_bytes: int = 0
    workers_per_pod: int = 1

    def scale_problem(self, replicas: int) -> str:
        """Return a sentence on why the set cannot have this number of replicas; empty if it can."""
        # Addresses of all replicas are written into each process's variables at launch.
        if self.stable and replicas != self.replicas:
            return f"its {self.replicas} replicas know each other by name, and stay as they were launched"
        if self.role is Role.LEARNER and replicas != 1:
            return f"a {self.role} set has exactly one replica"
        if self.bounds is not None and not self.bounds[0] <= replicas <= self.bounds[1]:
            few, many = self.bounds
            return (
                f"it was launched for {few}{f' to {many}' if many != few else ''} replica{'s' if many != 1 else ''}"
            )
        if replicas % self.workers_in_pod:
            return (
                f"each of its pods runs {self.workers_in_pod} workers: choose a multiple of {self.workers_in_pod}"
            )
        return "" if replicas >= 0 else f"a {self.role} set has 0 replicas or more"

    @property
    def workers_in_pod(self) -> int:
        """Replicas that run in one pod, under a supervisor.

        More than 1 only if the device plugin hands out whole GPUs: with other bindings, pods share a GPU by its
        slots.
        """
        return self.workers_per_pod if self.pod.binding is Binding.DEVICE_PLUGIN else 1

    @property
    def num_pods(self) -> int:
        """Number of its pods, each of which gets a seat."""
        return -(-self.replicas // self.workers_in_pod)

    @property
    def pod_resources(self) -> Resources:
        """Expected resource use of one pod."""
        cores, memory, number = self.resources.cpu_cores, self.resources.memory_bytes, self.workers_in_pod
        return Resources(None if cores is None else number * cores, None if memory is None else number * memory)

    @property
    def gpu_wish(self) -> str:
        """GPUs that suit it, in words: ``GPU of model A100 with 40 GiB or more``; empty for any."""
        model = f" of model {self.gpu_model}" if self.gpu_model else ""
        memory = f" with {format_bytes(self.gpu_memory_bytes)} or more" if self.gpu_memory_bytes else ""
        return f"GPU{model}{memory}" if model or memory else ""

    @property
    def whole_gpus(self) -> int:
        """Whole GPUs that each replica takes; 0 if it takes slots of one. The device plugin hands out whole
        GPUs.
        """
        return self.gpus or int(self.pod.binding is Binding.DEVICE_PLUGIN)

    def fills(self, slots: Collection[SlotId]) -> bool:
        """Return True if the slots, or devices, are as many as a replica takes."""
        devices = {(slot.node, slot.gpu) for slot in slots}
        return len(devices) == self.whole_gpus if self.whole_gpus else len(slots) == self.slots

    def suits(self, gpu: Gpu) -> bool:
        """Return True for a device with the model and memory that the set needs."""
        if not self.gpu_wish:
            return True
        words = _words(gpu.model)
        # Drivers report less than the nominal memory: 40,536 MiB for an A100 with 40 GB, 81,559 for an H100 with
        # 80.
        has_memory = gpu.memory_bytes >= 0.95 * self.gpu_memory_bytes
        return not gpu.is_cpu and has_memory and all(word in words for word in _words(self.gpu_model))

    @property
    def needs_device(self) -> bool:
        """True if each replica occupies slots of a GPU, or of the CPU of a node without GPUs."""
        return self.slots > 0 and self.pod.binding is not Binding.CPU


class QueueSystem(StrEnum):
    """Queueing system of a cluster that admits all pods of a run together."""

    KUEUE = "kueue"
    VOLCANO = "volcano"
    COSCHEDULING = "coscheduling"
    JOBSET = "jobset"


class Queue(Struct, frozen=True):
    """Gang admission of a run: either all of its pods start, or none.

    Attributes:
        name: LocalQueue of Kueue (optional for a JobSet), or Queue of Volcano; empty for Volcano's default.
        scheduler: Name of the scheduler in the cluster; empty for the usual one of the queueing system.
    """

    by: QueueSystem
    name: str = ""
    scheduler: str = ""


class RunSpec(Struct, frozen=True):
    """One run: a learner and its worker sets, an elastic job, parameter servers, or the steps of a job; one seed.

    Attributes:
        experiment: Name in the spec; with several seeds it groups their runs.
        name: Unique name of the run in its namespace.
        train: Training settings, a JSON object as text; passed to each process, see also ``domain.sidecar``.
        extras: Kubernetes objects that were imported with the run (Services), JSON list as text.
        image: Container image; the local backend runs without one.
        queue: Queue that admits the run as a whole; None without one. Only Kubernetes has such queues.
        may_wait: Wait in l2rtui's own queue if there are not enough free slots.
        limits: Limits that end the run; None without limits.
        alerts: Rules by which its learner sends alerts.
        trial: Trial of a sweep that the run belongs to; None outside of a sweep.
        workdir: Own code that its processes run in; None for the code of their images.
    """

    kind: Kind
    experiment: str
    name: str
    sets: tuple[SetSpec, ...]
    seed: int = 0
    image: str = ""
    env: tuple[tuple[str, str], ...] = ()
    train: str = "{}"
    extras: str = "[]"
    queue: Queue | None = None
    limits: Limits | None = None
    alerts: tuple[AlertRule, ...] = ()
    may_wait: bool = False
    trial: Trial | None = None
    workdir: Workdir | None = None

    def scale_problem(self) -> str:
        """Return a sentence on why no set of the run can be scaled; empty if scaling is possible."""
        # Kueue deletes the pods of a group that exceed the admitted number.
        if self.queue is not None and self.queue.by is QueueSystem.KUEUE:
            return f"the queue {self.queue.name} has admitted its pods as a whole, and takes no others"
        if self.queue is not None and self.queue.by is QueueSystem.JOBSET:
            return "its Jobs are parts of a JobSet, whose templates cannot be changed"
        return ""

    def set_named(self, name: str) -> SetSpec | None:
        """Return the set with this name, or None."""
        return next((set_spec for set_spec in self.sets if set_spec.name == name), None)

    def with_replicas(self, set_name: str, replicas: int) -> RunSpec:
        """Return the same run with another number of replicas in one set."""
        sets = (replace(part, replicas=replicas) if part.name == set_name else part for part in self.sets)
        return replace(self, sets=tuple(sets))


def with_binding(spec: RunSpec, binding: Binding) -> RunSpec:
    """Return the same run with another binding mode in every set that uses a device."""
    sets = (
        replace(part, pod=replace(part.pod, binding=binding), may_use_cpu=False) if part.slots else part
        for part in spec.sets
    )
    return replace(spec, sets=tuple(sets))


def without_shared_pods(spec: RunSpec) -> RunSpec:
    """Return the run for a backend without a device plugin: workers that share a pod become pods on GPU slots."""
    sets = (
        replace(part, pod=replace(part.pod, binding=Binding.ENV)) if part.workers_in_pod > 1 else part
        for part in spec.sets
    )
    return replace(spec, sets=tuple(sets))


def _words(model: str) -> list[str]:
    """Split a model into words: only whole words distinguish A10 from A100."""
    return re.findall(r"[a-z0-9.]+", model.lower(), re.ASCII)


_GPU_VARIABLES = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
_SIMULATED = ("l2r", "l2r/L2R-v0")
"""Environments that drive a simulator, which may render on a GPU: our own name, and the Gymnasium id."""


def cpu_reason(spec: RunSpec, part: SetSpec) -> str:
    """Return why the processes of a set need no GPU; empty if they may need one, or if it is unknown.

    Only this program's own commands are known: a user's command or template may use a GPU, and so may a simulator.
    A learner uses a GPU unless its settings say ``device: cpu``; workers and evaluators run on the CPU.
    """
    is_ours = part.command[:2] == ("l2r-runtime", str(part.role)) and not part.template
    if not is_ours or any(name in _GPU_VARIABLES for name, _ in (*spec.env, *part.env)):
        return ""
    train = json.loads(spec.train)
    if part.role is Role.LEARNER:
        return "it learns on the CPU" if train.get("device") == "cpu" else ""
    if train.get("environment", "racing") not in _SIMULATED:
        return "its environment needs no GPU"
    options = train.get("environment_options")
    simulator = options.get("simulator") if isinstance(options, dict) else None
    is_reference = isinstance(simulator, dict) and simulator.get("kind") == "reference"
    return "the reference simulator needs no GPU" if is_reference else ""


def with_seeds(spec: RunSpec, seeds: tuple[int, ...]) -> tuple[RunSpec, ...]:
    """Return one run for each seed, named ``NAME-sSEED``; without seeds, the run itself."""
    if not seeds:
        return (spec,)
    return tuple(replace(spec, seed=seed, name=f"{spec.name}-s{seed}") for seed in seeds)


def renamed(spec: RunSpec, name: str) -> RunSpec:
    """Return the run in an experiment of another name, before seeds are applied; a trial becomes
    ``NAME-tNUMBER``.
    """
    return replace(spec, experiment=name, name=name if spec.trial is None else f"{name}-t{spec.trial.number}")


def numbered(name: str) -> Iterator[str]:
    """Yield a name, then ``NAME-2``, ``NAME-3``, …; a name that ends in ``-2`` continues with ``-3``."""
    yield name
    base, dash, end = name.rpartition("-")
    base, number = (base, int(end)) if dash and end.isdecimal() and int(end) > 1 else (name, 1)
    yield from (
        f"{base[: MAX_NAME - len(str(other)) - 1].rstrip('-')}-{other}" for other in itertools.count(number + 1)
    )


def pod_name(run: str, set_name: str, index: int) -> str:
    """Name of one replica, unique in a namespace."""
    return f"{run}-{set_name}-{index}"


def name_problem(name: str, longest: int = MAX_NAME) -> str:
    """Return a sentence on why the name of a run or set is invalid (RFC 1123 label, first a letter); empty if
    valid.
    """
    if len(name) > longest:
        return f"{name!r} has {len(name)} characters: use at most {longest}"
    if not _DNS_LABEL.fullmatch(name):
        return f"{name!r} is not a name: use lower-case letters, digits and '-', first a letter, last no '-'"
    return ""
