"""Choice of the RuntimeClass of pods with an NVIDIA GPU. Pure.

On most clusters the default container runtime provides GPUs. On k3s and RKE2 it is runc: a pod without
``runtimeClassName: nvidia`` runs there but sees no GPU. The class is chosen if it exists and is safe: on a node
that reports a handler of its name (Kubernetes 1.31 and later), or whose kubelet is from k3s or RKE2.

Source: docs.k3s.io/advanced, "Alternative Container Runtime Support"; NodeRuntimeHandler in k8s.io/api.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from l2rtui.domain.node import Node

CLASS: Final = "nvidia"
AUTO: Final = "auto"
NONE: Final = "none"
_DISTRIBUTIONS: Final = ("+k3s", "+rke2")
"""Suffixes of the kubelet version in distributions that provide GPUs through a RuntimeClass."""


def may_need_class(nodes: Iterable[Node]) -> bool:
    """Return True if a node could need the class, so that requesting it is worthwhile."""
    return any(_has_nvidia(node) and (leaves_gpus_to_class(node) or CLASS in node.runtimes) for node in nodes)


def by_node(nodes: Iterable[Node], setting: str, runtime_class: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the RuntimeClass of pods with a GPU, by node; nodes whose default runtime suffices are left out.

    Args:
        setting: ``auto``, ``none``, or the name of a class for every node with GPUs.
        runtime_class: The class ``nvidia``; None if it does not exist or may not be read.
    """
    if setting == NONE:
        return {}
    with_gpus = [node for node in nodes if _has_nvidia(node)]
    if setting != AUTO:
        return {node.name: setting for node in with_gpus}
    if runtime_class is None:
        return {}
    handler = str(runtime_class.get("handler", ""))
    # A node that lists its handlers is authoritative: without the handler no pod of the class would start there.
    return {
        node.name: CLASS
        for node in with_gpus
        if (handler in node.runtimes if node.runtimes else leaves_gpus_to_class(node))
    }


def reason(node: Node, setting: str) -> str:
    """Return why pods with a GPU on a node get their class."""
    if setting != AUTO:
        return "the setting runtime_class says so"
    if leaves_gpus_to_class(node):
        return f"the default runtime of {node.kubelet_version} has no GPU"
    return f"{node.name} has a runtime of that name"


def leaves_gpus_to_class(node: Node) -> bool:
    """Return True for a node of a distribution whose default runtime provides no GPU."""
    return any(mark in node.kubelet_version for mark in _DISTRIBUTIONS)


def _has_nvidia(node: Node) -> bool:
    return any(not gpu.is_cpu and not gpu.resource.startswith(("amd.", "gpu.intel.")) for gpu in node.gpus)
