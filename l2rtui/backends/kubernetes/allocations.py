"""Which GPUs the claims of pods have been given by dynamic resource allocation (DRA); no I/O.

A pod names its claims, a claim names the devices that it was given, and only the driver's slices tell which GPU
such a device is. A claim that has nothing yet, or that we may not read, holds a GPU that cannot be told.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from l2rtui.backends.kubernetes.devices import NodeDevices
from l2rtui.backends.kubernetes.dra_structs import ClaimStruct, DeviceResult, DeviceStruct, SliceStruct
from l2rtui.backends.kubernetes.lists import key_of
from l2rtui.backends.kubernetes.structs import PodStruct
from l2rtui.domain.ledger import Claim

DRIVER: Final = "gpu.nvidia.com"
_NAME = re.compile(r"gpu-(\d{1,3})(?:-mig.*)?", re.ASCII)


class Allocations:
    """Claims and slices of one cluster, and the pods that use the claims."""

    def __init__(self) -> None:
        self._claims: dict[str, ClaimStruct] = {}
        self._devices: dict[str, dict[tuple[str, str], DeviceStruct]] = {}
        self._users: defaultdict[str, set[str]] = defaultdict(set)

    def put_claim(self, old: ClaimStruct | None, new: ClaimStruct | None) -> frozenset[str]:
        """A claim is new, differs or is gone; gives the uids of the pods that use it."""
        key = key_of((new or old or ClaimStruct()).metadata)
        if new is None:
            self._claims.pop(key, None)
        else:
            self._claims[key] = new
        return frozenset(self._users.get(key, ()))

    def put_slice(self, old: SliceStruct | None, new: SliceStruct | None) -> frozenset[str]:
        """A driver tells of devices; gives the uids of all pods that use claims."""
        name = (new or old or SliceStruct()).metadata.name
        if new is None:
            self._devices.pop(name, None)
        elif new.spec.driver == DRIVER:
            self._devices[name] = {(new.spec.pool.name, one.name): one for one in new.spec.devices or ()}
        return frozenset(uid for uids in self._users.values() for uid in uids)

    def add_user(self, pod: PodStruct) -> None:
        """A pod is there that may use claims."""
        for key in _keys(pod):
            self._users[key].add(pod.metadata.uid)

    def remove_user(self, pod: PodStruct) -> None:
        """It is gone, or another version of it comes."""
        for key in _keys(pod):
            self._users[key].discard(pod.metadata.uid)
            if not self._users[key]:
                del self._users[key]

    def held(self, pod: PodStruct, devices: NodeDevices) -> tuple[Claim, ...]:
        """What the claims of a pod hold on its node; who shares a claim shares the slots of its GPU.

        Args:
            devices: Of its node.
        """
        keys = set(_keys(pod))
        found = [Claim(None)] * (len(pod.spec.resource_claims or ()) - len(keys))
        for key in keys:
            claim = self._claims.get(key)
            allocation = claim.status.allocation if claim is not None else None
            if claim is None or allocation is None:
                found.append(Claim(None))
                continue
            share = max(1, devices.slots_per_gpu // max(1, len(claim.status.reserved_for or ())))
            for one in allocation.devices.results or ():
                if one.driver == DRIVER:
                    found.append(self._claim_on(one, devices, share))
        return tuple(found)

    def _claim_on(self, given: DeviceResult, devices: NodeDevices, share: int) -> Claim:
        place = (given.pool, given.device)
        device = next((known[place] for known in self._devices.values() if place in known), None)
        index = _index(device, devices) if device is not None else None
        name = _NAME.fullmatch(given.device)
        if index is None and name is not None:
            index = int(name[1])
        is_part = "mig" in given.device
        return Claim(index, None, 1 if is_part else share)


def _index(device: DeviceStruct, devices: NodeDevices) -> int | None:
    """The GPU's index on its node: by UUID where the node tells UUIDs, else as the driver counts."""
    attributes = device.attributes or (device.basic.attributes if device.basic is not None else None) or {}
    for name in ("uuid", "parentUUID"):
        told = attributes.get(name)
        if told is not None and told.string and told.string in devices.uuids:
            return devices.uuids[told.string]
    for name in ("index", "parentIndex"):
        told = attributes.get(name)
        if told is not None and told.int_ is not None:
            return told.int_
    return None


def _keys(pod: PodStruct) -> Iterator[str]:
    """The claims of a pod that have names by now; those made from templates get theirs in its status."""
    made = {one.name: one.resource_claim_name for one in pod.status.resource_claim_statuses or ()}
    for one in pod.spec.resource_claims or ():
        name = one.resource_claim_name or made.get(one.name)
        if name:
            yield f"{pod.metadata.namespace}/{name}"
