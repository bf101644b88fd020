"""GPUs that were allocated to resource claims of pods (dynamic resource allocation, DRA). No I/O.

A pod names its claims, a claim names its allocated devices, and only the driver's slices map a device to its GPU. A
claim that is not allocated yet, or that we may not read, counts as an unknown GPU. Admin access (by a monitor) does
not count as use: others get the device as well.

The structs of ``resource.k8s.io`` have only the fields that are read.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import msgspec

from l2rtui.backends.kubernetes.api.list_pages import key_of
from l2rtui.backends.kubernetes.api.structs import KubeObject, KubeStruct, PodStruct, PresenceMarker
from l2rtui.backends.kubernetes.state.node_devices import NodeDevices
from l2rtui.domain.ledger import DeviceUsage


class DeviceResult(KubeStruct, frozen=True):
    """A device allocated to a claim, by its driver's name; with ``admin_access`` others can use it too."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None


class DeviceResults(KubeStruct, frozen=True):
    """All devices allocated to a claim."""

    results: list[DeviceResult] | None = None


class Allocation(KubeStruct, frozen=True):
    """Allocation of a claim."""

    devices: DeviceResults = DeviceResults()


class ResourceClaimStatus(KubeStruct, frozen=True):
    """Status of a claim; ``reserved_for`` lists the pods that may use it."""

    allocation: Allocation | None = None
    reserved_for: list[PresenceMarker] | None = None


class ResourceClaimStruct(KubeObject, frozen=True):
    """A ResourceClaim."""

    status: ResourceClaimStatus = ResourceClaimStatus()


class DeviceAttribute(KubeStruct, frozen=True):
    """Attribute of a device: a string or an integer; other types are not read."""

    string: str | None = None
    int_: int | None = msgspec.field(default=None, name="int")


class BasicDevice(KubeStruct, frozen=True):
    """Attributes of a device in ``v1beta1``; later versions have them on the device itself."""

    attributes: dict[str, DeviceAttribute] | None = None


class DeviceStruct(KubeStruct, frozen=True):
    """Device of a slice."""

    # Both places are read, as clusters of all versions from 1.32 on are supported.

    name: str = ""
    attributes: dict[str, DeviceAttribute] | None = None
    basic: BasicDevice | None = None


class DevicePool(KubeStruct, frozen=True):
    """Pool of a slice; NVIDIA's driver names it after the node."""

    name: str = ""


class ResourceSliceSpec(KubeStruct, frozen=True):
    """Devices of one driver in one pool."""

    driver: str = ""
    pool: DevicePool = DevicePool()
    devices: list[DeviceStruct] | None = None


class ResourceSliceStruct(KubeObject, frozen=True):
    """A ResourceSlice."""

    spec: ResourceSliceSpec = ResourceSliceSpec()


DRIVER: Final = "gpu.nvidia.com"
_NAME = re.compile(r"gpu-(\d{1,3})(?:-mig.*)?", re.ASCII)


class DraAllocations:
    """Claims and slices of one cluster, and the pods that use the claims."""

    def __init__(self) -> None:
        self._claims: dict[str, ResourceClaimStruct] = {}
        self._devices: dict[str, dict[tuple[str, str], DeviceStruct]] = {}
        self._users: defaultdict[str, set[str]] = defaultdict(set)

    def put_resource_claim(
        self, old: ResourceClaimStruct | None, new: ResourceClaimStruct | None
    ) -> frozenset[str]:
        """Add, replace or remove a claim; return the uids of the pods that use it."""
        key = key_of((new or old or ResourceClaimStruct()).metadata)
        if new is None:
            self._claims.pop(key, None)
        else:
            self._claims[key] = new
        return frozenset(self._users.get(key, ()))

    def put_resource_slice(
        self, old: ResourceSliceStruct | None, new: ResourceSliceStruct | None
    ) -> frozenset[str]:
        """Add, replace or remove a slice; return the uids of all pods that use claims."""
        name = (new or old or ResourceSliceStruct()).metadata.name
        if new is None:
            self._devices.pop(name, None)
        elif new.spec.driver == DRIVER:
            self._devices[name] = {(new.spec.pool.name, device.name): device for device in new.spec.devices or ()}
        # All of them: there is no index from slices to claims, as slices change once in a node's life.
        return frozenset(uid for uids in self._users.values() for uid in uids)

    def add_user(self, pod: PodStruct) -> None:
        """Register the claims of a pod."""
        for key in _keys(pod):
            self._users[key].add(pod.metadata.uid)

    def remove_user(self, pod: PodStruct) -> None:
        """Unregister the claims of a pod, before it is removed or replaced by another version."""
        for key in _keys(pod):
            self._users[key].discard(pod.metadata.uid)
            if not self._users[key]:
                del self._users[key]

    def usage(self, pod: PodStruct, devices: NodeDevices) -> tuple[DeviceUsage, ...]:
        """Return the GPU usage of a pod's claims on its node; pods that share a claim share its GPU's slots."""
        keys = set(_keys(pod))
        # A claim from a template without a name yet: it will get a GPU, whose index is unknown.
        usages = [DeviceUsage(None)] * (len(pod.spec.resource_claims or ()) - len(keys))
        for key in keys:
            claim = self._claims.get(key)
            allocation = claim.status.allocation if claim is not None else None
            if claim is None or allocation is None:
                usages.append(DeviceUsage(None))
                continue
            # Pods may share a claim: together they use all slots of its device, in equal parts.
            share = max(1, devices.slots_per_gpu // max(1, len(claim.status.reserved_for or ())))
            for result in allocation.devices.results or ():
                if result.driver == DRIVER and not result.admin_access:
                    usages.append(self._usage_of_result(result, devices, share))
        return tuple(usages)

    def _usage_of_result(self, result: DeviceResult, devices: NodeDevices, share: int) -> DeviceUsage:
        key = (result.pool, result.device)
        device = next((by_key[key] for by_key in self._devices.values() if key in by_key), None)
        index = _index(device, devices) if device is not None else None
        name = _NAME.fullmatch(result.device)
        # Without the slice, NVIDIA's own device name still contains the index: gpu-0, gpu-0-mig-1g.5gb-0.
        if index is None and name is not None:
            index = int(name[1])
        is_part = "mig" in result.device
        return DeviceUsage(index, None, 1 if is_part else share)


def _index(device: DeviceStruct, devices: NodeDevices) -> int | None:
    """Return the GPU's index on its node: by UUID if the node publishes UUIDs, otherwise in the driver's order."""
    attributes = device.attributes or (device.basic.attributes if device.basic is not None else None) or {}
    for name in ("uuid", "parentUUID"):
        attribute = attributes.get(name)
        if attribute is not None and attribute.string and attribute.string in devices.uuids:
            return devices.uuids[attribute.string]
    for name in ("index", "parentIndex"):
        attribute = attributes.get(name)
        if attribute is not None and attribute.int_ is not None:
            return attribute.int_
    return None


def _keys(pod: PodStruct) -> Iterator[str]:
    """Yield the keys of a pod's claims; claims from templates have a name in the status, once they exist."""
    made = {claim.name: claim.resource_claim_name for claim in pod.status.resource_claim_statuses or ()}
    for claim in pod.spec.resource_claims or ():
        name = claim.resource_claim_name or made.get(claim.name)
        if name:
            yield f"{pod.metadata.namespace}/{name}"
