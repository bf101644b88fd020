"""The parts that we read of dynamic resource allocation: claims, and devices as drivers tell of them."""

from __future__ import annotations

import msgspec

from l2rtui.backends.kubernetes.structs import KubeObject, Part, Present


class DeviceResult(Part, frozen=True):
    """A device that a claim was given: its driver's name for it."""

    driver: str = ""
    pool: str = ""
    device: str = ""


class DeviceResults(Part, frozen=True):
    """All devices of a claim."""

    results: list[DeviceResult] | None = None


class Allocation(Part, frozen=True):
    """What a claim was given."""

    devices: DeviceResults = DeviceResults()


class ClaimStatus(Part, frozen=True):
    """How far a claim got, and for whom it is."""

    allocation: Allocation | None = None
    reserved_for: list[Present] | None = None


class ClaimStruct(KubeObject, frozen=True):
    """A ResourceClaim."""

    status: ClaimStatus = ClaimStatus()


class DeviceAttribute(Part, frozen=True):
    """What a driver tells of a device: text or a number, of the kinds that we read."""

    string: str | None = None
    int_: int | None = msgspec.field(default=None, name="int")


class BasicDevice(Part, frozen=True):
    """Where servers before 1.33 keep the attributes."""

    attributes: dict[str, DeviceAttribute] | None = None


class DeviceStruct(Part, frozen=True):
    """One device of a slice."""

    name: str = ""
    attributes: dict[str, DeviceAttribute] | None = None
    basic: BasicDevice | None = None


class DevicePool(Part, frozen=True):
    """The pool of a slice; NVIDIA's driver names it after the node."""

    name: str = ""


class SliceSpec(Part, frozen=True):
    """Devices of one driver."""

    driver: str = ""
    pool: DevicePool = DevicePool()
    devices: list[DeviceStruct] | None = None


class SliceStruct(KubeObject, frozen=True):
    """A ResourceSlice."""

    spec: SliceSpec = SliceSpec()
