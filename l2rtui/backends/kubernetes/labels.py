"""All labels, annotations and object names.

The labels ``app.kubernetes.io/*`` are recommended by Kubernetes; ours start with ``l2rtui.io/``. A value that a
label cannot hold (a user name with ``@``) is an annotation, and the label gets the nearest legal value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from l2rtui.domain.node import Node, device_index, device_name

MANAGED_BY: Final = "l2rtui"
PREFIX: Final = "l2rtui.io/"

APP_NAME: Final = "app.kubernetes.io/name"
APP_INSTANCE: Final = "app.kubernetes.io/instance"
APP_COMPONENT: Final = "app.kubernetes.io/component"
APP_PART_OF: Final = "app.kubernetes.io/part-of"
APP_MANAGED_BY: Final = "app.kubernetes.io/managed-by"

MANAGED: Final = f"{APP_MANAGED_BY}={MANAGED_BY}"
"""Selector of all objects of l2rtui."""

# --- labels -------------------------------------------------------------------------------------------------
RUN: Final = f"{PREFIX}run"
"""Name of the run."""
RUN_ID: Final = f"{PREFIX}run-id"
"""Unique id of this launch of the run (32 hexadecimal digits), used by receipts for counting."""
EXPERIMENT: Final = f"{PREFIX}experiment"
OWNER: Final = f"{PREFIX}owner"
"""User who launched the run, as a legal label value; the annotation of the same name has the exact text."""
SET: Final = f"{PREFIX}set"
ROLE: Final = f"{PREFIX}role"
SEED: Final = f"{PREFIX}seed"
TRIAL: Final = f"{PREFIX}trial"
"""Number of the trial in its sweep; only on runs of a sweep."""
HOST: Final = f"{PREFIX}host"
"""Node that the pod is pinned to."""
GPU: Final = f"{PREFIX}gpu"
"""Index of the device that the pod is pinned to; ``cpu`` for the CPU of a node that has GPUs."""
SLOT: Final = f"{PREFIX}slot"
"""First slot of the device that the pod holds; only if one controller creates one pod."""

STABLE: Final = f"{PREFIX}stable"
"""Set to ``true`` on pods with a stable name under the run's headless Service."""

NODE_NUMBER: Final = f"{PREFIX}node-number"
"""On the pods of a learner of several nodes: number of the node. Its Service leads to node 0, which has rank 0."""

# --- annotations --------------------------------------------------------------------------------------------
SEATS: Final = f"{PREFIX}seats"
"""On a controller and its pod template: JSON list of ``[index, [slot, …]]``, the seats of its pods."""
WORKERS: Final = f"{PREFIX}workers-per-pod"
"""On a controller and its pods: number of workers that each pod runs, if more than one."""
BINDING: Final = f"{PREFIX}binding"
"""Binding mode by which the pod gets its device."""
CLAIMS_NAMESPACE: Final = "l2rtui-claims"
"""Namespace of the Leases that all namespaces share, if an administrator has created it."""
CLAIMS: Final = f"{PREFIX}claims"
"""On the Lease of a device: JSON object, slot index to ``{run, run_id, namespace, until}``, see slot_leases.py."""
LAUNCH: Final = f"{PREFIX}launch"
"""On objects of a run: nonce of the launch that made them, by which a retried POST recognises its own object."""
PINS: Final = f"{PREFIX}on"
"""On the ConfigMap of a run: slots that the person named at its launch, as ``--on`` takes them."""
WAVE: Final = f"{PREFIX}wave"
"""On the ConfigMap of a run that starts in waves: pods of a wave. Its controllers come one after the other."""
TERMINATING: Final = f"{PREFIX}terminating"
"""On the ConfigMap of a run: time at which its destroy began (RFC 3339). Launches create no more objects for it."""
# Serialised names: runs of older versions have them, so a change needs a migration.
RESERVATIONS: Final = "slot-reservations"
"""Component label of the ConfigMaps with reservations; their annotation ``HOST`` names the node."""
WORKDIR: Final = "workdir"
"""Component label of the ConfigMaps with own code, which belong to every run that uses them."""
RESERVATIONS_KEY: Final = "reservations.json"
SPEC_KEY: Final = "spec.json"
PLAN_KEY: Final = "plan.json"
"""Keys in the ConfigMap of a run: its spec with the current numbers of replicas, and its plan."""
RECORD_KEY: Final = "record.json.gz"
"""Key in ``binaryData`` of that ConfigMap: the history record."""
PROGRAM_KEY: Final = "program."
"""Prefix of a key with the text of a set's program; the name of the set follows."""

# --- queues and gang schedulers -----------------------------------------------------------------------------
KUEUE_QUEUE: Final = "kueue.x-k8s.io/queue-name"
KUEUE_PRIORITY: Final = "kueue.x-k8s.io/priority-class"
KUEUE_GROUP: Final = "kueue.x-k8s.io/pod-group-name"
KUEUE_COUNT: Final = "kueue.x-k8s.io/pod-group-total-count"
"""On pods: the LocalQueue, the group that is admitted together, and (as an annotation) the number of its pods."""
JOB_SET: Final = "jobset.sigs.k8s.io/jobset-name"
"""On the Jobs of a JobSet and on their pods."""
KUEUE_GATE: Final = "kueue.x-k8s.io/admission"
"""Scheduling gate by which Kueue holds a pod back."""
VOLCANO_GROUP: Final = "scheduling.k8s.io/group-name"
COSCHEDULING_GROUP: Final = "scheduling.x-k8s.io/pod-group"
"""On pods: the PodGroup, for Volcano (an annotation) and for coscheduling."""

# --- node labels that are read ------------------------------------------------------------------------------
HOSTNAME: Final = "kubernetes.io/hostname"
SLOTS_PER_GPU: Final = f"{PREFIX}slots-per-gpu"
"""On a node: slots of each of its GPUs; overrides the setting."""
GPU_PRODUCT: Final = "nvidia.com/gpu.product"
"""By GPU feature discovery, like all of ``nvidia.com``."""
CLOUD_GPU_PRODUCTS: Final = (
    "cloud.google.com/gke-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
    "eks.amazonaws.com/instance-gpu-name",
    "karpenter.azure.com/sku-gpu-name",
    "gpu.nvidia.com/model",
    "k8s.amazonaws.com/accelerator",
)
CLOUD_GPU_COUNTS: Final = (
    "karpenter.k8s.aws/instance-gpu-count",
    "eks.amazonaws.com/instance-gpu-count",
    "karpenter.azure.com/sku-gpu-count",
    "gpu.nvidia.com/count",
)
CLOUD_GPU_MEMORIES: Final = ("karpenter.k8s.aws/instance-gpu-memory", "eks.amazonaws.com/instance-gpu-memory")
"""Product, number and memory (MiB) of a node's GPUs, by GKE, EKS, AKS and CoreWeave."""
GKE_CLIENTS: Final = "cloud.google.com/gke-max-shared-clients-per-gpu"
"""Number of shares into which GKE divides one GPU, by time-sharing or MPS."""
GKE_PARTITION: Final = "cloud.google.com/gke-gpu-partition-size"
"""MIG profile of all devices of a node of GKE, which counts them as ``nvidia.com/gpu``."""
AMD_PRODUCT: Final = "amd.com/gpu.product-name"
GPU_MEMORY: Final = "nvidia.com/gpu.memory"
GPU_COUNT: Final = "nvidia.com/gpu.count"
GPU_REPLICAS: Final = "nvidia.com/gpu.replicas"
"""Number of shares into which the device plugin divides one GPU."""
MIG_STRATEGY: Final = "nvidia.com/mig.strategy"
MIG_SLICES: Final = "nvidia.com/gpu.slices.gi"
"""Slices of each MIG device; with strategy ``single`` it is set if the cards are divided."""
GPUS: Final = f"{PREFIX}gpus"
"""On a node: number of its GPUs, if neither a device plugin nor GPU feature discovery provides it."""
GPU_UUIDS: Final = f"{PREFIX}gpu-uuids"
"""Annotation of a node: the UUIDs of its GPUs in the order of their indices, separated by commas."""
ARCHITECTURE: Final = "kubernetes.io/arch"
HAMI_NODE: Final = "hami.io/node-nvidia-register"
"""Annotation of a node: HAMi's list of its GPUs."""
HAMI_ALLOCATED: Final = "hami.io/vgpu-devices-allocated"
HAMI_GPU_UUID: Final = "nvidia.com/use-gpuuuid"
"""Annotations of a pod: the GPUs that HAMi assigned to it, and the GPU that it requested."""

_NOT_IN_A_VALUE = re.compile(r"[^A-Za-z0-9_.-]+")


def host_name(node: Node) -> str:
    """Return the value of a node's host name label, by which pods are bound to it; mostly the node's name."""
    return dict(node.labels).get(HOSTNAME, node.name)


def label_value(text: str) -> str:
    """Return the nearest legal label value: at most 63 of ``[A-Za-z0-9_.-]``, first and last a letter or digit."""
    return _NOT_IN_A_VALUE.sub("-", text)[:63].strip("-_.")


def run_object(run: str) -> str:
    """Return the name of a run's ConfigMap and of its Secret."""
    return f"l2r-{run}"


def learner_service(run: str, learner_set: str = "learner") -> str:
    """Return the name of the Service through which workers find the learner."""
    return f"{run}-{learner_set}"


def peers_service(run: str) -> str:
    """Return the name of the headless Service for the DNS names of a run's stable replicas."""
    return f"{run}-peers"


def controller_name(run: str, set_name: str, group: int = 0) -> str:
    """Return the name of the Job or ReplicaSet of a set on one device; ``group`` numbers the set's devices from
    0.
    """
    return f"{run}-{set_name}" if group == 0 else f"{run}-{set_name}-g{group}"


def gpus_label(indices: Iterable[int]) -> str:
    """Return the value of the label ``gpu``: the index of a device, or the indices of several GPUs, ``0_1_2``."""
    return "_".join(map(device_name, indices))


def gpu_indices(label: str) -> tuple[int, ...]:
    """Parse a value of the label ``gpu`` into indices; empty for any other text."""
    indices = [device_index(part) for part in label.split("_")]
    return tuple(index for index in indices if index is not None) if None not in indices else ()


def slot_lease(node: str, gpu: int) -> str:
    """Return the name of the Lease through which slots of one device are claimed."""
    return f"l2r-claim-{node}-{device_name(gpu)}"[:253]


def reservations_object(node: str) -> str:
    """Return the name of the ConfigMap with the reservations of a node's slots."""
    return f"l2r-reserved-{node}"[:253]
