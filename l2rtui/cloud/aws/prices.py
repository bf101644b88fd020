"""Hourly prices, as a hint before something is created: list prices, noted by hand, with date and region.

Amazon's price list is a service of its own with hundreds of megabytes; a table with its date is enough for "about
40 dollars an hour, are you sure". A machine that is not in it counts as unknown, never as free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from l2rtui.cloud.aws.cluster_spec import ClusterSpec

NOTED: Final = "2025-07"
"""From Amazon's public price pages (EC2 on demand, EBS, EKS, VPC, EFS, CloudWatch): a hint, no offer."""
REGIONS: Final = ("us-east-1", "us-east-2", "us-west-2")
"""Regions with these prices; others cost up to half as much again."""
HOURS_A_MONTH: Final = 730

_ON_DEMAND: Final[Mapping[str, float]] = {
    "c5.large": 0.085, "c5.xlarge": 0.17, "c5.2xlarge": 0.34, "c5.4xlarge": 0.68, "c5.9xlarge": 1.53,
    "g4dn.xlarge": 0.526, "g4dn.2xlarge": 0.752, "g4dn.4xlarge": 1.204, "g4dn.8xlarge": 2.176,
    "g4dn.12xlarge": 3.912, "g4dn.16xlarge": 4.352, "g4dn.metal": 7.824,
    "g5.xlarge": 1.006, "g5.2xlarge": 1.212, "g5.4xlarge": 1.624, "g5.8xlarge": 2.448,
    "g5.12xlarge": 5.672, "g5.16xlarge": 4.096, "g5.24xlarge": 8.144, "g5.48xlarge": 16.288,
    "m5.large": 0.096, "m5.xlarge": 0.192, "m5.2xlarge": 0.384, "m5.4xlarge": 0.768,
    "p3.2xlarge": 3.06, "p3.8xlarge": 12.24, "p3.16xlarge": 24.48,
    "t3.medium": 0.0416, "t3.large": 0.0832, "t3.xlarge": 0.1664, "t3.2xlarge": 0.3328,
}  # fmt: skip
"""Dollars an hour: Linux, on demand."""
CLUSTER_HOUR: Final = 0.10
NAT_HOUR: Final = 0.045
ADDRESS_HOUR: Final = 0.005
BALANCER_HOUR: Final = 0.0225
DISK_GIB_MONTH: Final = 0.08
FILES_GIB_MONTH: Final = 0.30
LOGS_GIB_MONTH: Final = 0.03


@dataclass(frozen=True, slots=True)
class CostLine:
    """One line of a bill; None where the price is not known."""

    what: str
    dollars_an_hour: float | None


@dataclass(frozen=True, slots=True)
class Estimate:
    """Cost of a cluster as long as it exists."""

    lines: tuple[CostLine, ...]
    region: str

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
        """One line for people."""
        total = f"about ${self.dollars_an_hour:.2f} an hour (${self.dollars_an_hour * HOURS_A_MONTH:,.0f} a month)"
        where = f"a hint: Amazon's list prices of {REGIONS[0]}, noted {NOTED}"
        if self.region not in REGIONS:
            where += f"; {self.region} may cost more"
        unknown = f", and what is unknown: {', '.join(self.unknown)}" if self.unknown else ""
        return f"{total}{unknown}; {where}"


def estimate(spec: ClusterSpec, nodes: Mapping[str, int] | None = None) -> Estimate:
    """Estimate the cost of a cluster with its desired nodes, or with these numbers of nodes by group."""
    return Estimate(tuple(_lines(spec, nodes or {})), spec.region)


def _lines(spec: ClusterSpec, nodes: Mapping[str, int]) -> Iterable[CostLine]:
    yield CostLine("the control plane of EKS", CLUSTER_HOUR)
    if spec.needs_nat:
        yield CostLine("a NAT gateway and its address", NAT_HOUR + ADDRESS_HOUR)
    for group in spec.groups:
        count = nodes.get(group.name, group.desired)
        kind = group.instance_types[0]
        # The first type of a group: EKS tries them in this order. No machine costs nothing, whatever its price.
        price = _ON_DEMAND.get(kind) if count else 0.0
        spot = " at most, on spot" if group.is_spot else ""
        yield CostLine(f"{count} x {kind} of {group.name}{spot}", None if price is None else price * count)
        # Since February 2024 every public IPv4 address costs, also one that is in use.
        if not group.is_private and count:
            yield CostLine(f"{count} public addresses of {group.name}", count * ADDRESS_HOUR)
        disks = count * group.volume_gib * DISK_GIB_MONTH / HOURS_A_MONTH
        yield CostLine(f"{count} x {group.volume_gib} GiB of disk", disks)
