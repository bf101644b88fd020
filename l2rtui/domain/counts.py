"""Free units of extended resources on nodes, as the scheduler would count them. Used by placement.

Sources: kube-scheduler's plugin NodeResourcesFit (allocatable minus requests), NVIDIA/k8s-device-plugin.
"""

from __future__ import annotations

from typing import Final

from l2rtui.domain.kinds import Binding
from l2rtui.domain.ledger import Count, Ledger, NodeLedger, SlotState
from l2rtui.domain.node import SlotId
from l2rtui.domain.workload import SetSpec

NVIDIA_GPU: Final = "nvidia.com/gpu"
CLOSED: Final = (SlotState.OFF, SlotState.RESERVED)
"""States of slots that cannot be shared."""


def counted_resource(part: SetSpec, node: NodeLedger) -> str:
    """Return the extended resource that pods of a set request on a node; empty if the node does not offer it.

    Without a name in the spec it is the resource of NVIDIA GPUs, which a cluster may name after their models.
    """
    counts = {name: count.resource for name, count in (node.counts or {}).items() if count.resource.allocatable}
    if name := part.pod.device or (NVIDIA_GPU if part.template else ""):  # a template already contains its request
        return name if name in counts else ""
    if part.pod.binding is Binding.SHARED:
        names = [name for name, item in counts.items() if item.is_share and name.startswith("nvidia.com/")]
    else:
        names = [name for name, item in counts.items() if not item.device and not item.is_share]
        if NVIDIA_GPU in counts:
            return NVIDIA_GPU
    return names[0] if len(names) == 1 else ""


def counted_units(part: SetSpec) -> int:
    """Return the units that each pod of a set requests."""
    return part.slots if part.pod.binding is Binding.SHARED else part.gpus or 1


class Counts:
    """Units of counted resources that a plan has left, by node and resource."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._left: dict[tuple[str, str], int] = {}
        self._open: dict[tuple[str, str], frozenset[SlotId]] = {}

    def is_counted(self, part: SetSpec, node: str) -> bool:
        """Return True where pods of a set on a node are placed by count."""
        return part.pod.binding.is_counted and self._ledger.nodes[node].counts is not None

    def ledger_of(self, node: str) -> NodeLedger:
        """Return the ledger of a node."""
        return self._ledger.nodes[node]

    def left(self, node: str, resource: str) -> int:
        """Return the units that neither pods nor replicas of this plan use."""
        if (node, resource) not in self._left:
            count = (self._ledger.nodes[node].counts or {}).get(resource)
            self._left[node, resource] = count.free if count is not None else 0
        return self._left[node, resource]

    def take(self, node: str, resource: str, units: int) -> None:
        """Count a replica of this plan."""
        self._left[node, resource] = self.left(node, resource) - units

    def open_slots(self, node: str, count: Count) -> frozenset[SlotId]:
        """Return slots that represent the free units of a resource: always the first ones, the same for every
        launch.

        Two concurrent launches therefore claim the same slot for the last unit. GPUs that pods name are excluded
        without a request, and as many GPUs as pods with an unknown GPU use: the plugin could hand out one of those.
        """
        key = (node, count.resource.name)
        if key not in self._open:
            part = self._ledger.nodes[node]
            devices = [gpu for gpu in part.devices if not gpu.is_cpu and gpu.resource == count.resource.device]
            ids = [[part.slots[slot] for slot in gpu.slot_ids()] for gpu in devices]
            # A slot that is busy without a pod was claimed by a launch whose pods are not visible yet.
            whole_gpus = [slots for slots in ids if not any(slot.pod or slot.state in CLOSED for slot in slots)]
            unseen = 0 if count.resource.device else part.unplaced_slots
            if count.resource.is_share:
                open_slots = [slot for slots in ids for slot in slots if not slot.pod and slot.state not in CLOSED]
                first = open_slots[: max(0, min(count.free, len(open_slots) - unseen))]
            else:
                size = len(whole_gpus[0]) if whole_gpus else 1
                number = max(0, min(count.free, len(whole_gpus) - -(-unseen // size)))
                first = [slot for slots in whole_gpus[:number] for slot in slots]
            self._open[key] = frozenset(slot.id for slot in first if slot.state is not SlotState.BUSY)
        return self._open[key]
