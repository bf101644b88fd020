"""Settings of containers: mounts, secrets, security, and the way in which a pod gets its GPU.

The local backend runs commands and ignores most of this; it says so where that changes what a run does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from l2rtui.domain.node import Taint


class Binding(StrEnum):
    """Mechanism by which a pod gets the device of its slot.

    ``env``: both variables name the device, the scheduler knows nothing of it. ``device-plugin``: whole GPUs, or
    what else a plugin counts, by limits. ``shared``: a time-sliced or MPS share, by limits. ``hami``: HAMi's
    annotation with the GPU's UUID.
    ``dra``: a claim by UUID that the pods of one device share. ``cpu``: no GPU; it sits on slots of a CPU.
    """

    ENV = "env"
    DEVICE_PLUGIN = "device-plugin"
    SHARED = "shared"
    HAMI = "hami"
    DRA = "dra"
    CPU = "cpu"

    @property
    def chooses_gpu(self) -> bool:
        """True where the plan chooses the device of the node; otherwise the cluster does."""
        return self in (Binding.ENV, Binding.HAMI, Binding.DRA, Binding.CPU)

    @property
    def is_counted(self) -> bool:
        """True where pods request units of an extended resource, which the scheduler counts."""
        return self in (Binding.DEVICE_PLUGIN, Binding.SHARED, Binding.HAMI)


class Security(StrEnum):
    """Pod Security Standard that a pod meets; the values are Kubernetes' own."""

    RESTRICTED = "restricted"
    BASELINE = "baseline"
    PRIVILEGED = "privileged"


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder in the container: of a PersistentVolumeClaim, of the node, or an empty one.

    Attributes:
        claim: Name of a PersistentVolumeClaim. host_path: folder of the node. Both empty: an empty folder that goes
            with the pod.
        in_memory: The empty folder lives in memory. size_bytes: its limit, None for none.
    """

    path: str
    claim: str = ""
    host_path: str = ""
    in_memory: bool = False
    size_bytes: int | None = None
    read_only: bool = False
    sub_path: str = ""


@dataclass(frozen=True, slots=True)
class Toleration:
    """Toleration of a taint; an empty key tolerates every taint, an empty value any value."""

    key: str = ""
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """True when the taint does not keep pods with this toleration away."""
        return self.key in ("", taint.key) and self.value in ("", taint.value) and self.effect in ("", taint.effect)


GPU_TOLERATION: Final = Toleration("nvidia.com/gpu", "", "NoSchedule")
"""Of the usual taint of GPU nodes, which keeps away pods that need none; every pod on a slot there has it."""


@dataclass(frozen=True, slots=True)
class LabelRule:
    """Requirement on a label of a node, by an operator of node affinity in Kubernetes (NodeSelectorRequirement)."""

    key: str
    operator: str = "In"
    values: tuple[str, ...] = ()

    def allows(self, labels: Mapping[str, str]) -> bool:
        """True for a node with these labels; an operator that is not known here forbids none."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                try:
                    number, bound = int(value or ""), int(self.values[0])
                except (IndexError, ValueError):
                    return False
                return number > bound if self.operator == "Gt" else number < bound
            case _:
                return True

    def __str__(self) -> str:
        """As kubectl writes a selector: ``disk=ssd``, ``zone in (a, b)``, ``!spot``."""
        match self.operator:
            case "In" if len(self.values) == 1:
                return f"{self.key}={self.values[0]}"
            case "Exists":
                return self.key
            case "DoesNotExist":
                return f"!{self.key}"
            case _:
                return f"{self.key} {self.operator.lower()} ({', '.join(self.values)})"


@dataclass(frozen=True, slots=True)
class Scheduling:
    """Nodes to which the scheduler may send a pod.

    Attributes:
        alternatives: Rules of which a node has to meet all of at least one alternative; without any, each will do.
        tolerations: All that the pod has.
    """

    alternatives: tuple[tuple[LabelRule, ...], ...] = ()
    tolerations: tuple[Toleration, ...] = ()

    def unmet(self, labels: Mapping[str, str]) -> tuple[LabelRule, ...]:
        """Return the rules that a node with these labels does not meet, of the alternative that lacks fewest."""
        lacking = [tuple(rule for rule in rules if not rule.allows(labels)) for rules in self.alternatives]
        return min(lacking, key=len, default=())


@dataclass(frozen=True, slots=True)
class PodSettings:
    """Settings of the pods of a set.

    Attributes:
        image: In place of the run's image; empty for none.
        pull_policy: Always, IfNotPresent, Never, or empty for the cluster's default.
        pull_secrets: Secrets with the registry's credentials.
        secrets: Secrets whose keys become variables, for example AWS credentials.
        service_account: Whose token the pod carries; empty for none.
        node_selector: Node labels that are required besides the node itself.
        shm_bytes: Size of /dev/shm; None leaves the runtime's 64 MiB.
        ports: TCP ports that the learner's Service offers besides the exchange.
        host_network: The pod uses the network namespace of its node.
        user: Number of the user that it runs as under ``restricted``.
        templates: Strategic merge patches of the Kubernetes pod template, JSON as text, in the order in which they
            apply. Only Kubernetes has such templates.
        device: Extended resource that the pods request, such as ``amd.com/gpu`` or ``nvidia.com/a100``; empty for
            the one of its node's GPUs of NVIDIA.
        patched_scheduling: Scheduling as the templates leave it; None where they do not touch it.
    """

    binding: Binding = Binding.ENV
    image: str = ""
    pull_policy: str = ""
    pull_secrets: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    service_account: str = ""
    node_selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    mounts: tuple[Mount, ...] = ()
    # PyTorch's data loaders pass tensors through /dev/shm and die with SIGBUS when it is full.
    shm_bytes: int | None = None
    ports: tuple[int, ...] = ()
    host_network: bool = False
    security: Security = Security.RESTRICTED
    user: int = 1000
    templates: tuple[str, ...] = ()
    device: str = ""
    patched_scheduling: Scheduling | None = None

    @property
    def scheduling(self) -> Scheduling:
        """Nodes that pods on a slot may be scheduled to."""
        rules = tuple(LabelRule(key, values=(value,)) for key, value in self.node_selector)
        return self.patched_scheduling or Scheduling((rules,), (*self.tolerations, GPU_TOLERATION))

    def mount_problem(self) -> str:
        """Return a sentence on the first mount that is wrong; empty when all are right."""
        paths: set[str] = set()
        for mount in self.mounts:
            path = mount.path.rstrip("/")
            # Kubernetes forbids a colon in a mount path; `..` would leave the folder that is meant.
            if not path.startswith("/") or ":" in path or ".." in path.split("/"):
                return f"the mount path {mount.path!r} is not absolute and plain, such as /data"
            if path in paths:
                return f"{path} is mounted twice"
            if mount.claim and mount.host_path:
                return f"the mount {path} names a claim and a folder of the node: choose one"
            # The name of a claim is one component of a path, on every backend.
            if "/" in mount.claim or mount.claim in (".", ".."):
                return f"{mount.claim!r} is no name of a claim"
            # As the Kubernetes API demands of subPath, here for every backend.
            if mount.sub_path.startswith("/") or ".." in mount.sub_path.split("/"):
                return f"the sub_path {mount.sub_path!r} leaves its volume"
            paths.add(path)
        return ""

    def loosenings(self) -> tuple[str, ...]:
        """Reasons why the pod does not meet Pod Security ``restricted``, a sentence each."""
        security = "" if self.security is Security.RESTRICTED else f"the spec asks for security {self.security}"
        paths = [
            f"{mount.path} is the node's own folder {mount.host_path}" for mount in self.mounts if mount.host_path
        ]
        network = "it sits in the network of its node" if self.host_network else ""
        return tuple(filter(None, (security, *paths, network)))
