"""Estimate of the hourly cost of a cluster before it is created; each figure has its source and age.

Machines are priced by Amazon's price list if it responds (``price_list.py``), otherwise by a dated table. All other
prices come from the table. A machine without a price counts as unknown, never as free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from l2rtui.cloud.aws.cluster_spec import ClusterSpec, NodeGroup
from l2rtui.cloud.aws.price_list import PriceList

NOTED: Final = "2026-09-24"
"""Date of Amazon's offer file (us-east-1) from which the table's machine prices were taken."""
NOTED_OTHERS: Final = "2025-07"
"""Month of the prices below the table, from Amazon's public pages (EBS, EKS, VPC, EFS, CloudWatch)."""
REGIONS: Final = ("us-east-1", "us-east-2", "us-west-2")
"""Regions with these prices; others cost up to 50 % more."""
HOURS_A_MONTH: Final = 730

_ON_DEMAND: Final[Mapping[str, float]] = {
    "c5.large": 0.085, "c5.xlarge": 0.17, "c5.2xlarge": 0.34, "c5.4xlarge": 0.68, "c5.9xlarge": 1.53,
    "c6i.large": 0.085, "c6i.xlarge": 0.17, "c6i.2xlarge": 0.34, "c6i.4xlarge": 0.68, "c6i.8xlarge": 1.36,
    "g4dn.xlarge": 0.526, "g4dn.2xlarge": 0.752, "g4dn.4xlarge": 1.204, "g4dn.8xlarge": 2.176,
    "g4dn.12xlarge": 3.912, "g4dn.16xlarge": 4.352, "g4dn.metal": 7.824,
    "g5.xlarge": 1.006, "g5.2xlarge": 1.212, "g5.4xlarge": 1.624, "g5.8xlarge": 2.448,
    "g5.12xlarge": 5.672, "g5.16xlarge": 4.096, "g5.24xlarge": 8.144, "g5.48xlarge": 16.288,
    "g6.xlarge": 0.8048, "g6.2xlarge": 0.9776, "g6.4xlarge": 1.3232, "g6.8xlarge": 2.0144,
    "g6.12xlarge": 4.6016, "g6.16xlarge": 3.3968, "g6.24xlarge": 6.6752, "g6.48xlarge": 13.3504,
    "g6e.xlarge": 1.861, "g6e.2xlarge": 2.24208, "g6e.4xlarge": 3.00424, "g6e.8xlarge": 4.52856,
    "g6e.12xlarge": 10.49264, "g6e.16xlarge": 7.57719, "g6e.24xlarge": 15.06559, "g6e.48xlarge": 30.13118,
    "m5.large": 0.096, "m5.xlarge": 0.192, "m5.2xlarge": 0.384, "m5.4xlarge": 0.768,
    "m6i.large": 0.096, "m6i.xlarge": 0.192, "m6i.2xlarge": 0.384, "m6i.4xlarge": 0.768, "m6i.8xlarge": 1.536,
    "m7i.large": 0.1008, "m7i.xlarge": 0.2016, "m7i.2xlarge": 0.4032, "m7i.4xlarge": 0.8064,
    "p3.2xlarge": 3.06, "p3.8xlarge": 12.24, "p3.16xlarge": 24.48,
    "p4d.24xlarge": 21.957642, "p4de.24xlarge": 27.44705, "p5.48xlarge": 55.04, "p5en.48xlarge": 63.296,
    "t3.medium": 0.0416, "t3.large": 0.0832, "t3.xlarge": 0.1664, "t3.2xlarge": 0.3328,
}  # fmt: skip
"""Dollars per hour: Linux, on demand, shared tenancy."""
CLUSTER_HOUR: Final = 0.10
NAT_HOUR: Final = 0.045
ADDRESS_HOUR: Final = 0.005
BALANCER_HOUR: Final = 0.0225
DISK_GIB_MONTH: Final = 0.08
FILES_GIB_MONTH: Final = 0.30
LOGS_GIB_MONTH: Final = 0.03

_NOT_READ: Final = PriceList({})
_OTHERS: Final = f"price of {NOTED_OTHERS} in {REGIONS[0]}"


class CostLine(Struct, frozen=True):
    """One line of a bill; None if the price is unknown. ``source`` is the origin and date of the price."""

    what: str
    dollars_an_hour: float | None
    source: str = ""


class Estimate(Struct, frozen=True):
    """Running cost of a cluster.

    Attributes:
        listed: Dates of the offers that were read from Amazon's price list; empty if none was read.
        failure: Why prices could not be read; empty without a failure.
    """

    lines: tuple[CostLine, ...]
    region: str
    listed: tuple[str, ...] = ()
    failure: str = ""

    @property
    def dollars_an_hour(self) -> float:
        """Sum of the known prices."""
        return sum(line.dollars_an_hour or 0.0 for line in self.lines)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Lines without a known price."""
        return tuple(line.what for line in self.lines if line.dollars_an_hour is None)

    @property
    def sentence(self) -> str:
        """One line for display."""
        total = f"about ${self.dollars_an_hour:.2f} an hour (${self.dollars_an_hour * HOURS_A_MONTH:,.0f} a month)"
        unknown = f", and what is unknown: {', '.join(self.unknown)}" if self.unknown else ""
        noted = f"list prices of {REGIONS[0]}, noted {NOTED} (machines) and {NOTED_OTHERS}"
        if self.listed:
            days = " and ".join(self.listed)
            where = f"machines by Amazon's price list of {self.region} (of {days}, read now), all else by {noted}"
        else:
            where = f"Amazon's {noted}"
        if self.region not in REGIONS:
            where += f"; {self.region} may cost more"
        failure = f"; prices could not be read now: {self.failure}" if self.failure else ""
        return f"{total}{unknown}; a hint: {where}{failure}"


def priced_types(spec: ClusterSpec) -> tuple[str, ...]:
    """Return the machine types whose prices an estimate needs, without those paid in advance."""
    types = (kind for group in spec.groups if not group.is_block for kind in _priced(group))
    return tuple(dict.fromkeys(types))


def estimate(spec: ClusterSpec, nodes: Mapping[str, int] | None = None, listed: PriceList = _NOT_READ) -> Estimate:
    """Estimate the cost of a cluster.

    Args:
        nodes: Numbers of nodes by group; by default the desired numbers of the spec.
        listed: Prices that were read from Amazon's price list.
    """
    used = sorted({listed.prices[kind].published for kind in priced_types(spec) if kind in listed.prices} - {""})
    return Estimate(tuple(_lines(spec, nodes or {}, listed)), spec.region, tuple(used), listed.failure)


def _lines(spec: ClusterSpec, nodes: Mapping[str, int], listed: PriceList) -> Iterable[CostLine]:
    yield CostLine("the control plane of EKS", CLUSTER_HOUR, _OTHERS)
    if spec.needs_nat:
        yield CostLine("a NAT gateway and its address", NAT_HOUR + ADDRESS_HOUR, _OTHERS)
    for group in spec.groups:
        count = nodes.get(group.name, group.desired)
        yield _machines(group, count, spec.region, listed)
        # Since February 2024 every public IPv4 address costs, even if it is in use.
        if not group.is_private and count:
            yield CostLine(
                f"{count} public address{'' if count == 1 else 'es'} of {group.name}", count * ADDRESS_HOUR, _OTHERS
            )
        disks = count * group.volume_gib * DISK_GIB_MONTH / HOURS_A_MONTH
        yield CostLine(f"{count} x {group.volume_gib} GiB of disk", disks, _OTHERS)


def _machines(group: NodeGroup, count: int, region: str, listed: PriceList) -> CostLine:
    kinds = _priced(group)
    name = f"{count} x {' or '.join(kinds)} of {group.name}"
    if group.is_block:
        # Linux adds no cost; the hours were paid with the reservation, used or not.
        return CostLine(name, 0.0, f"paid in advance with {group.reservation}")
    if group.reservation:
        name += ", paid by the reservation also where they are off"
    if group.is_spot:
        name += " at most, on spot"
    if not count:
        return CostLine(name, 0.0, "no machine")
    prices = [(*_price(kind, region, listed), kind) for kind in kinds]
    if missing := next((price for price in prices if price[0] is None), None):
        return CostLine(name, None, missing[1])
    # Spot uses whichever type has capacity; the most expensive one is the bound.
    price, source, _ = max(prices, key=lambda item: item[0] or 0.0)
    return CostLine(name, (price or 0.0) * count, source)


def _priced(group: NodeGroup) -> tuple[str, ...]:
    # On demand, EKS tries the types in order, so the first is the likely one.
    return group.instance_types if group.is_spot else group.instance_types[:1]


def _price(kind: str, region: str, listed: PriceList) -> tuple[float | None, str]:
    if (offer := listed.prices.get(kind)) is not None:
        if offer.dollars_an_hour is None:
            return None, f"Amazon's price list has no {kind} on demand in {region}"
        return offer.dollars_an_hour, f"Amazon's price list of {region}, of {offer.published}, read now"
    if (price := _ON_DEMAND.get(kind)) is None:
        return None, "in no table, and could not be read now"
    return price, f"price of {NOTED} in {REGIONS[0]}; could not be read now"
