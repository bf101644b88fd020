"""Current prices of machines from Amazon's price list (service ``pricing``, GetProducts).

An offer that does not match exactly (another region, tenancy, unit or currency, two prices for one machine) gives
no price: a wrong figure is worse than none. Filters as in Karpenter's pricing provider.
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
        {"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in _wished(region, kind).items()
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


def _wished(region: str, kind: str) -> dict[str, str]:
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
        _check_product(offer.product, _wished(region, kind))
        for price in _hourly(offer.terms, kind):
            prices[price] = offer.publication_date.date().isoformat()
    if len(prices) > 1:
        raise ValueError(f"{kind} has several prices: {', '.join(map(str, sorted(prices)))}")
    return next((ListPrice(float(price), day) for price, day in prices.items()), ListPrice(None))


def _check_product(product: _Product, wished: Mapping[str, str]) -> None:
    actual = msgspec.to_builtins(product.attributes) | {"productFamily": product.product_family}
    for field, value in wished.items():
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
