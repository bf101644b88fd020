"""Prices: Amazon's price list as its API documents it (botocore's Stubber; moto lacks it), and the table."""

from __future__ import annotations

import json

import boto3
import pytest
from botocore.stub import Stubber
from msgspec.structs import replace

from l2rtui.cloud.aws import prices
from l2rtui.cloud.aws.clients import Cloud
from l2rtui.cloud.aws.cluster_spec import ClusterSpec, NodeGroup
from l2rtui.cloud.aws.prices import ListPrice, PriceList

GROUP = NodeGroup("gpu", ("p5.48xlarge",), 2, 0, 2, is_private=True)
SPEC = ClusterSpec("lab", "us-west-2", groups=(GROUP,))
ATTRIBUTES = {
    "instanceType": "p5.48xlarge", "regionCode": "us-west-2", "operatingSystem": "Linux", "tenancy": "Shared",
    "preInstalledSw": "NA", "capacitystatus": "Used", "marketoption": "OnDemand", "vcpu": "192",
    "usagetype": "USW2-BoxUsage:p5.48xlarge", "location": "US West (Oregon)",
}  # fmt: skip


def offer(price="55.0400000000", unit="Hrs", attributes=ATTRIBUTES, currency="USD", begin="0", **more):
    """An offer of GetProducts in the form aws_v1."""
    dimension = {
        "unit": unit, "beginRange": begin, "endRange": "Inf", "pricePerUnit": {currency: price},
        "description": "$55.04 per On Demand Linux p5.48xlarge Instance Hour", "appliesTo": [],
        "rateCode": "SKU.JRTCKXETXF.6YS6EN2CT7",
    }  # fmt: skip
    term = {"offerTermCode": "JRTCKXETXF", "sku": "SKU", "effectiveDate": "2026-11-01T00:00:00Z"}
    term |= {"termAttributes": {}, "priceDimensions": {"SKU.JRTCKXETXF.6YS6EN2CT7": dimension}}
    document = {
        "serviceCode": "AmazonEC2", "version": "20261120221103", "publicationDate": "2026-11-20T22:11:03Z",
        "product": {"productFamily": "Compute Instance", "sku": "SKU", "attributes": attributes},
        "terms": {"OnDemand": {"SKU.JRTCKXETXF": term}, "Reserved": {"SKU.R": {"priceDimensions": {"x": {}}}}},
    }  # fmt: skip
    return json.dumps(document | more)


@pytest.fixture
def listed():
    """A price list with prepared answers."""
    cloud = Cloud("us-east-1")
    session = boto3.session.Session(aws_access_key_id="x", aws_secret_access_key="y", region_name="us-east-1")
    cloud.clients["pricing"] = session.client("pricing")
    with Stubber(cloud.clients["pricing"]) as stub:
        cloud.stub = stub
        yield cloud
        stub.assert_no_pending_responses()


def answer(*offers):
    return {"FormatVersion": "aws_v1", "PriceList": list(offers)}


async def test_machines_are_priced_by_amazon_s_list(listed):
    wished = [{"Type": "TERM_MATCH", "Field": key, "Value": ATTRIBUTES[key]} for key in list(ATTRIBUTES)[:7]]
    wished.append({"Type": "TERM_MATCH", "Field": "productFamily", "Value": "Compute Instance"})
    request = {"ServiceCode": "AmazonEC2", "FormatVersion": "aws_v1", "Filters": wished}
    listed.stub.add_response("get_products", answer() | {"NextToken": "more"}, request)
    listed.stub.add_response("get_products", answer(offer()), request | {"NextToken": "more"})
    read = await prices.read_prices(listed, "us-west-2", prices.priced_types(SPEC))
    assert read == PriceList({"p5.48xlarge": ListPrice(55.04, "2026-11-20")})
    estimate = prices.estimate(SPEC, listed=read)
    assert estimate.lines[2].dollars_an_hour == pytest.approx(110.08)
    assert estimate.lines[2].source == "Amazon's price list of us-west-2, of 2026-11-20, read now"
    assert "price list of us-west-2 (of 2026-11-20, read now), all else by list prices of" in estimate.sentence


async def test_a_list_that_does_not_answer_leaves_the_table_with_its_date(listed):
    listed.stub.add_client_error("get_products", "AccessDeniedException", "not authorized to perform: pricing")
    read = await prices.read_prices(listed, "us-west-2", ["p5.48xlarge"])
    estimate = prices.estimate(SPEC, listed=read)
    assert estimate.lines[2].dollars_an_hour == pytest.approx(2 * 55.04)
    assert estimate.lines[2].source == f"price of {prices.NOTED} in us-east-1; could not be read now"
    assert (
        "prices could not be read now: Amazon's pricing refuses get_products: not authorized" in estimate.sentence
    )
    assert estimate.sentence.startswith("about $110.")
    assert all(line.source for line in estimate.lines)


async def test_a_machine_that_is_not_offered_has_no_price_of_elsewhere(listed):
    listed.stub.add_response("get_products", answer())
    read = await prices.read_prices(listed, "sa-east-1", ["p5.48xlarge"])
    estimate = prices.estimate(replace(SPEC, region="sa-east-1"), listed=read)
    assert estimate.unknown == ("2 x p5.48xlarge of gpu",)
    assert estimate.lines[2].source == "Amazon's price list has no p5.48xlarge on demand in sa-east-1"


@pytest.mark.parametrize(
    ("offers", "reason"),
    [
        ([offer(price="0.0000000000")], "the price of p5.48xlarge is 0E-10"),
        ([offer(price="-1")], "is -1"),
        ([offer(price="NaN")], "is NaN"),
        ([offer(price="free")], "not in dollars"),
        ([offer(currency="CNY")], "not in dollars"),
        ([offer(unit="Quantity")], "not one for every hour"),
        ([offer(begin="100")], "not one for every hour"),
        ([offer(), offer(price="98.32")], "several prices: 55.0400000000, 98.32"),
        ([offer(attributes=ATTRIBUTES | {"regionCode": "us-east-1"})], "the regionCode of an offer is 'us-east-1'"),
        ([offer(attributes=ATTRIBUTES | {"tenancy": "Host"})], "the tenancy of an offer is 'Host'"),
        ([offer(attributes=ATTRIBUTES | {"marketoption": "CapacityBlock"})], "marketoption"),
        ([offer(attributes={})], "missing required field"),
        ([offer(terms=[])], "Expected `object`"),
        ([offer(publicationDate="soon")], "publicationDate"),
        (["[]", offer()], "Expected `object`"),
        (["{" * 100_000], "malformed|recursion|depth"),
        ([{"a": 1}], "not text"),
        ([" " * (1 << 21)], "too long"),
    ],
)
def test_an_offer_that_is_not_the_one_in_question_gives_no_price(offers, reason):
    with pytest.raises(ValueError, match=reason):
        prices.parse_offers(offers, "us-west-2", "p5.48xlarge")


def test_bare_metal_is_a_family_of_its_own():
    attributes = ATTRIBUTES | {"instanceType": "g4dn.metal", "tenancy": "Dedicated"}
    product = {"productFamily": "Compute Instance (bare metal)", "attributes": attributes}
    metal = offer(price="7.824", product=product)
    assert prices.parse_offers([metal], "us-west-2", "g4dn.metal") == ListPrice(7.824, "2026-11-20")


async def test_a_wrong_answer_is_a_reason_and_no_failure(listed):
    listed.stub.add_response("get_products", answer(offer(price="x")))
    read = await prices.read_prices(listed, "us-west-2", ["p5.48xlarge"])
    assert read == PriceList(
        {}, "Amazon's price list is not understood: the price of p5.48xlarge is not in dollars"
    )


@pytest.mark.parametrize(
    ("region", "endpoint"),
    [
        ("us-west-2", "us-east-1"), ("eu-west-3", "eu-central-1"), ("ap-northeast-1", "ap-south-1"),
        ("ca-central-1", "us-east-1"),
    ],
)  # fmt: skip
async def test_the_nearest_endpoint_is_asked(amazon, region, endpoint):
    assert await prices.price_cloud(region).region() == endpoint


async def test_partitions_with_another_list_are_not_asked():
    read = await prices.read_prices(Cloud("us-east-1"), "cn-north-1", ["g5.xlarge"])
    assert read == PriceList({}, "Amazon's price list does not answer for cn-north-1")


def test_spot_is_bounded_by_its_dearest_machine():
    spot = replace(GROUP, is_spot=True, instance_types=("g6.xlarge", "g6.2xlarge", "g5.xlarge"))
    line = prices.estimate(replace(SPEC, groups=(spot,))).lines[2]
    assert line.dollars_an_hour == pytest.approx(2 * 1.006)
    assert line.what == "2 x g6.xlarge or g6.2xlarge or g5.xlarge of gpu at most, on spot"
    unknown = replace(spot, instance_types=("g6.xlarge", "g9.xlarge"))
    line = prices.estimate(replace(SPEC, groups=(unknown,))).lines[2]
    assert (line.dollars_an_hour, line.source) == (None, "in no table, and could not be read now")


def test_a_block_is_paid_in_advance_and_not_asked_about():
    block = replace(SPEC, groups=(replace(GROUP, reservation="cr-0123456789", is_block=True),))
    assert prices.priced_types(block) == ()
    line = prices.estimate(block).lines[2]
    assert (line.dollars_an_hour, line.source) == (0.0, "paid in advance with cr-0123456789")
    reserved = replace(SPEC, groups=(replace(GROUP, reservation="cr-0123456789"),))
    assert "paid by the reservation also where they are off" in prices.estimate(reserved).lines[2].what


@pytest.mark.parametrize(
    "kind", ["p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge", "p5en.48xlarge", "g6.12xlarge", "g6e.xlarge"]
)
def test_machines_of_today_are_in_the_table(kind):
    line = prices.estimate(replace(SPEC, groups=(replace(GROUP, instance_types=(kind,)),))).lines[2]
    assert line.dollars_an_hour
    assert line.source.startswith("price of 2026-")
