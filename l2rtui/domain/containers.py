"""Settings of containers: mounts, secrets, security, and how a pod gets its GPU.

The local backend runs commands and ignores most of these; it reports each ignored setting that changes what a run
does.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct

from l2rtui.domain.kinds import Binding
from l2rtui.domain.node import Taint


class Security(StrEnum):
    """Pod Security Standard that a pod meets; the values are Kubernetes' own."""

    RESTRICTED = "restricted"
    BASELINE = "baseline"
    PRIVILEGED = "privileged"


class Mount(Struct, frozen=True):
    """Mount in the container: a PersistentVolumeClaim, a folder of the node, or an empty folder.

    Attributes:
        claim: Name of a PersistentVolumeClaim. host_path: Folder of the node. If both are empty, the mount is an
            empty folder that is deleted with the pod.
        in_memory: The empty folder is in memory. size_bytes: Its limit; None for no limit.
    """

    path: str
    claim: str = ""
    host_path: str = ""
    in_memory: bool = False
    size_bytes: int | None = None
    read_only: bool = False
    sub_path: str = ""


class Toleration(Struct, frozen=True):
    """Toleration of a taint; an empty key tolerates every taint, an empty value any value."""

    key: str = ""
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """True if the taint does not keep pods with this toleration away."""
        return self.key in ("", taint.key) and self.value in ("", taint.value) and self.effect in ("", taint.effect)


GPU_TOLERATION: Final = Toleration("nvidia.com/gpu", "", "NoSchedule")
"""Toleration of the usual taint of GPU nodes, which repels pods that need no GPU. Every pod on a GPU slot has it.
"""


class LabelRule(Struct, frozen=True):
    """Requirement on a label of a node, by an operator of node affinity in Kubernetes (NodeSelectorRequirement)."""

    key: str
    operator: str = "In"
    values: tuple[str, ...] = ()

    def allows(self, labels: Mapping[str, str]) -> bool:
        """True for a node with these labels. An operator unknown to this program excludes no node."""
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


class Scheduling(Struct, frozen=True):
    """Nodes to which the scheduler may send a pod.

    Attributes:
        alternatives: Sets of rules. A node must meet all rules of at least one set; without any set, every node is
            allowed.
        tolerations: All tolerations of the pod.
    """

    alternatives: tuple[tuple[LabelRule, ...], ...] = ()
    tolerations: tuple[Toleration, ...] = ()

    def unmet(self, labels: Mapping[str, str]) -> tuple[LabelRule, ...]:
        """Return the rules that a node with these labels does not meet, from the alternative with the fewest unmet
        rules.
        """
        lacking = [tuple(rule for rule in rules if not rule.allows(labels)) for rules in self.alternatives]
        return min(lacking, key=len, default=())


class PodSettings(Struct, frozen=True):
    """Settings of the pods of a set.

    Attributes:
        image: Replaces the run's image; empty to keep it.
        pull_policy: Always, IfNotPresent, Never, or empty for the cluster's default.
        pull_secrets: Secrets with the registry's credentials.
        secrets: Secrets whose keys become variables, for example AWS credentials.
        service_account: ServiceAccount whose token the pod carries; empty for no token.
        node_selector: Node labels that are required besides the node itself.
        shm_bytes: Size of /dev/shm; None leaves the runtime's 64 MiB.
        ports: TCP ports that the learner's Service offers besides the exchange.
        host_network: The pod uses the network namespace of its node.
        user: User id of the processes under ``restricted``.
        templates: Strategic merge patches of the Kubernetes pod template, JSON as text, in the order in which they
            apply. Only Kubernetes has such templates.
        device: Extended resource that the pods request, such as ``amd.com/gpu`` or ``nvidia.com/a100``; empty for
            the resource of the node's NVIDIA GPUs.
        patched_scheduling: Scheduling after the templates are applied; None if they do not change it.
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
        """Return a sentence on the first invalid mount; empty if all are valid."""
        paths: set[str] = set()
        for mount in self.mounts:
            path = mount.path.rstrip("/")
            # Kubernetes forbids a colon in a mount path; `..` would leave the intended folder.
            if not path.startswith("/") or ":" in path or ".." in path.split("/"):
                return f"the mount path {mount.path!r} is not absolute and plain, such as /data"
            if path in paths:
                return f"{path} is mounted twice"
            if mount.claim and mount.host_path:
                return f"the mount {path} names a claim and a folder of the node: choose one"
            # The name of a claim is one component of a path, on every backend.
            if "/" in mount.claim or mount.claim in (".", ".."):
                return f"{mount.claim!r} is not a claim name"
            # As the Kubernetes API demands of subPath, here for every backend.
            if mount.sub_path.startswith("/") or ".." in mount.sub_path.split("/"):
                return f"the sub_path {mount.sub_path!r} leaves its volume"
            paths.add(path)
        return ""

    def loosenings(self) -> tuple[str, ...]:
        """Reasons why the pod does not meet Pod Security ``restricted``, one sentence each."""
        security = "" if self.security is Security.RESTRICTED else f"the spec asks for security {self.security}"
        paths = [
            f"{mount.path} is the node's own folder {mount.host_path}" for mount in self.mounts if mount.host_path
        ]
        network = "it sits in the network of its node" if self.host_network else ""
        return tuple(filter(None, (security, *paths, network)))
