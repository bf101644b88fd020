"""Capacity reservations of node groups: read and compared with the group before anything is created.

A capacity block is a reservation that was bought for some days and paid in advance (EC2 Capacity Blocks for ML).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from l2rtui.cloud.aws.clients import Cloud
from l2rtui.cloud.aws.cluster_spec import ClusterSpec, NodeGroup
from l2rtui.domain.quantity import counted
from l2rtui.errors import NotFoundError, UsageError

_USABLE: Final = ("active", "scheduled")
_BLOCK: Final = "capacity-block"


class Reservation(Struct, frozen=True):
    """One capacity reservation.

    Attributes:
        zone: Availability zone of its machines. is_active: Its machines can be started now.
        start, end: Times in UTC; None if it has none.
    """

    id: str
    zone: str
    count: int
    is_active: bool
    is_block: bool
    start: datetime | None = None
    end: datetime | None = None

    @property
    def summary(self) -> str:
        """Size, place and time, for display."""
        kind = "capacity block" if self.is_block else "capacity reservation"
        period = f", from {_moment(self.start)} to {_moment(self.end)}" if self.end else ""
        state = "" if self.is_active else ", not started"
        return f"{kind} {self.id}: {self.count} in {self.zone}{period}{state}"

    def group_now(self, group: NodeGroup) -> NodeGroup:
        """Return the group as it can be created now: without nodes until the reservation has started."""
        return group if self.is_active else replace(group, desired=0, minimum=0)


def _moment(time: datetime | None) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if time else "now on"


async def find_reservations(cloud: Cloud, spec: ClusterSpec) -> Mapping[str, Reservation]:
    """Return the reservations by the names of the groups that use them.

    Raises:
        NotFoundError: No reservation has the given id.
        UsageError: A reservation has ended, or has other machines than its group needs.
    """
    groups = [group for group in spec.groups if group.reservation]
    return {group.name: await _find(cloud, group) for group in groups}


async def _find(cloud: Cloud, group: NodeGroup) -> Reservation:
    request = {"CapacityReservationIds": [group.reservation]}
    answer = await cloud.find("ec2", "describe_capacity_reservations", **request)
    items = (answer or {}).get("CapacityReservations") or []
    if not items:
        raise NotFoundError(
            f"There is no capacity reservation {group.reservation} in this region.",
            f"Correct it in the node group {group.name}, or buy a block first.",
        )
    return _checked(items[0], group)


def _checked(item: Mapping[str, Any], group: NodeGroup) -> Reservation:
    """Return a reservation; UsageError if it does not fit the group, which EKS would only report minutes later."""
    state, kind, count = str(item.get("State")), str(item.get("InstanceType")), int(item["TotalInstanceCount"])
    is_block = item.get("ReservationType") == _BLOCK
    name, machine = f"The capacity reservation {group.reservation}", group.instance_types[0]
    hint = f"Correct the node group {group.name}."
    if state not in _USABLE:
        raise UsageError(f"{name} is {state}.", hint)
    if kind != machine:
        raise UsageError(f"{name} holds {kind}, and the node group {group.name} wants {machine}.", hint)
    if count < group.desired:
        raise UsageError(
            f"{name} holds {counted(count, 'machine')}, and the node group wants {group.desired}.", hint
        )
    if is_block != group.is_block:
        market = "instanceMarketOptions.marketType: capacity-block"
        text = (
            f"is a capacity block: write {market}" if is_block else f"is not a capacity block: leave {market} out"
        )
        raise UsageError(f"{name} {text}.", hint)
    is_active = state == "active"
    zone = str(item["AvailabilityZone"])
    return Reservation(
        group.reservation, zone, count, is_active, is_block, item.get("StartDate"), item.get("EndDate")
    )


def check_zones(spec: ClusterSpec, reservations: Mapping[str, Reservation]) -> None:
    """Raise UsageError if a reservation is in a zone without a subnet of the cluster."""
    for group, reservation in reservations.items():
        if reservation.zone not in spec.zones:
            raise UsageError(
                f"The capacity reservation {reservation.id} of the node group {group} is in {reservation.zone}, "
                f"and the cluster is in {', '.join(spec.zones)}.",
                "Name its zone in availabilityZones: zones of a cluster cannot be added later.",
            )
