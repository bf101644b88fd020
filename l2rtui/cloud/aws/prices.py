"""Estimate of the hourly cost of a cluster before it is created; each figure has its source and age.

Machines are priced by Amazon's price list if it responds (service ``pricing``, GetProducts), otherwise by a dated
table. All other prices come from the table. A machine without a price counts as unknown, never as free.

An offer of the price list that does not match exactly (another region, tenancy, unit or currency, two prices for
one machine) gives no price: a wrong figure is worse than none. Filters as in Karpenter's pricing provider.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Final

import msgspec
from msgspec import Struct

from l2rtui.cloud.aws.clients import Cloud, CloudError
from l2rtui.cloud.aws.cluster_spec import ClusterSpec, NodeGroup
from runtime.base import bounded_json

_REPEATS: Final = 1
_READ_SECONDS: Final = 5
_NO_SERVICE: Final = ("cn-", "us-gov-")
"""Partitions whose credentials the service does not accept, or whose prices are not in dollars."""
_MOST_CHARACTERS: Final = 1 << 20
_MOST_REASON: Final = 200


class ListPrice(Struct, frozen=True):
    """Price of one machine; None if the list has no on-demand offer for it in the region.

    Attributes:
        published: Day on which Amazon published the offer.
    """

    dollars_an_hour: float | None
    published: str = ""


class PriceList(Struct, frozen=True):
    """Prices that were read, by machine type; ``failure`` is the reason why others are missing."""

    prices: Mapping[str, ListPrice]
    failure: str = ""


class _Attributes(msgspec.Struct, rename="camel"):
    instance_type: str
    region_code: str
    operating_system: str
    tenancy: str
    pre_installed_sw: str
    capacitystatus: str
    marketoption: str = "OnDemand"


class _Product(msgspec.Struct, rename="camel"):
    product_family: str
    attributes: _Attributes


class _Dimension(msgspec.Struct, rename="camel"):
    unit: str
    begin_range: str
    end_range: str
    price_per_unit: dict[str, str]


class _Term(msgspec.Struct, rename="camel"):
    price_dimensions: dict[str, _Dimension]


class _Terms(msgspec.Struct):
    on_demand: dict[str, _Term] = msgspec.field(name="OnDemand", default_factory=dict)


class _Offer(msgspec.Struct, rename="camel"):
    product: _Product
    terms: _Terms
    publication_date: datetime


def price_cloud(region: str, profile: str = "") -> Cloud:
    """Return the account with the price list's nearest endpoint: there are three, each with all regions.

    This is only a hint before something is created and must not delay it, so failures are final early.
    """
    near = {"eu-": "eu-central-1", "ap-": "ap-south-1"}.get(region[:3], "us-east-1")
    return Cloud(near, profile, repeats=_REPEATS, read_seconds=_READ_SECONDS)


async def read_prices(cloud: Cloud, region: str, kinds: Iterable[str]) -> PriceList:
    """Read the prices of machines (Linux, on demand, shared tenancy); a failure is part of the result."""
    if region.startswith(_NO_SERVICE):
        return PriceList({}, f"Amazon's price list does not answer for {region}")
    unique = sorted(set(kinds))
    results = await asyncio.gather(*(_read(cloud, region, kind) for kind in unique))
    prices = {kind: price for kind, price in zip(unique, results, strict=True) if isinstance(price, ListPrice)}
    return PriceList(prices, next((reason for reason in results if isinstance(reason, str)), ""))


async def _read(cloud: Cloud, region: str, kind: str) -> ListPrice | str:
    filters = [
        {"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in _required(region, kind).items()
    ]
    request = {"ServiceCode": "AmazonEC2", "FormatVersion": "aws_v1", "Filters": filters}
    try:
        offers = await cloud.list_all("pricing", "get_products", "PriceList", **request)
        return parse_offers(offers, region, kind)
    except CloudError as error:
        # Only one line: a proxy in between may answer with a page.
        return " ".join(error.message.split())[:_MOST_REASON].rstrip(".")
    except ValueError as error:
        return f"Amazon's price list is not understood: {error}"


def _required(region: str, kind: str) -> dict[str, str]:
    is_metal = ".metal" in kind  # the list has these as a separate family, whose tenancy is always dedicated
    return {
        "instanceType": kind,
        "regionCode": region,
        "operatingSystem": "Linux",
        "tenancy": "Dedicated" if is_metal else "Shared",
        "preInstalledSw": "NA",
        # Not AllocatedCapacityReservation or UnusedCapacityReservation: the cost of a used or unused reservation.
        "capacitystatus": "Used",
        "marketoption": "OnDemand",
        "productFamily": f"Compute Instance{' (bare metal)' if is_metal else ''}",
    }


def parse_offers(offers: Iterable[object], region: str, kind: str) -> ListPrice:
    """Return the price in the offers of one machine, each a JSON text.

    Raises:
        ValueError: An offer is malformed or for something else, or the offers have several prices.
    """
    prices: dict[Decimal, str] = {}
    for text in offers:
        if not isinstance(text, str) or len(text) > _MOST_CHARACTERS:
            raise ValueError("an offer is not text, or is too long")
        try:
            offer = bounded_json.decode(text, _Offer)
        except ValueError as error:
            raise ValueError(str(error)) from None
        _check_product(offer.product, _required(region, kind))
        for price in _hourly(offer.terms, kind):
            prices[price] = offer.publication_date.date().isoformat()
    if len(prices) > 1:
        raise ValueError(f"{kind} has several prices: {', '.join(map(str, sorted(prices)))}")
    return next((ListPrice(float(price), day) for price, day in prices.items()), ListPrice(None))


def _check_product(product: _Product, required: Mapping[str, str]) -> None:
    actual = msgspec.to_builtins(product.attributes) | {"productFamily": product.product_family}
    for field, value in required.items():
        if actual.get(field) != value:
            raise ValueError(f"the {field} of an offer is {str(actual.get(field))[:60]!r} and not {value!r}")


def _hourly(terms: _Terms, kind: str) -> Iterable[Decimal]:
    for term in terms.on_demand.values():
        for dimension in term.price_dimensions.values():
            if dimension.unit != "Hrs" or (dimension.begin_range, dimension.end_range) != ("0", "Inf"):
                raise ValueError(f"the price of {kind} is not one for every hour")
            try:
                price = Decimal(dimension.price_per_unit.get("USD", ""))
            except InvalidOperation:
                raise ValueError(f"the price of {kind} is not in dollars") from None
            # The list has 0 for hours that are paid elsewhere, which would be shown as free.
            if not price.is_finite() or price <= 0:
                raise ValueError(f"the price of {kind} is {price}")
            yield price


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
