"""Structs of dynamic resource allocation (DRA, ``resource.k8s.io``): claims and slices, only the fields that are
read.
"""

from __future__ import annotations

import msgspec

from l2rtui.backends.kubernetes.api.structs import KubeObject, KubeStruct, PresenceMarker


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
