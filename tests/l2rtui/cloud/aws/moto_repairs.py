"""Deletions that moto's CloudFormation omits when a stack is deleted, done as AWS does them.

Its templates can create NAT gateways, addresses, gateways, route tables and their associations, and leave them all
behind. Each is deleted here through moto's own EC2, which refuses to delete resources in use, like Amazon's; moto
then retries the refused ones after the others.
"""

from __future__ import annotations

from typing import Any

import pytest
from moto.ec2.models import ec2_backends
from moto.ec2.models.elastic_ip_addresses import ElasticAddress
from moto.ec2.models.internet_gateways import InternetGateway
from moto.ec2.models.nat_gateways import NatGateway
from moto.ec2.models.route_tables import Route, RouteTable
from moto.ec2.models.subnets import SubnetRouteTableAssociation
from moto.ec2.models.vpn_gateway import VPCGatewayAttachment


def repair(patch: pytest.MonkeyPatch) -> None:
    """Make moto delete everything that it has created."""

    def nat(self: NatGateway, account: str, region: str) -> None:
        backend = ec2_backends[account][region]
        backend.delete_nat_gateway(self.id)
        for address in self.address_set:
            backend.disassociate_address(association_id=address["associationId"])
        backend.delete_network_interface(self._eni.id)

    def address(self: ElasticAddress, account: str, region: str) -> None:
        backend = ec2_backends[account][region]
        used = [gateway for gateway in backend.nat_gateways.values() if gateway.state != "deleted"]
        assert not any(self.allocation_id in str(gateway.address_set) for gateway in used), "the address is in use"
        backend.release_address(allocation_id=self.allocation_id)

    def route(self: Route, account: str, region: str) -> None:
        backend = ec2_backends[account][region]
        if self.route_table.id in backend.route_tables:  # otherwise it was deleted with its table
            backend.delete_route(self.route_table.id, self.destination_cidr_block)

    def table(self: RouteTable, account: str, region: str) -> None:
        ec2_backends[account][region].delete_route_table(self.id)

    def association(self: SubnetRouteTableAssociation, account: str, region: str) -> None:
        backend = ec2_backends[account][region]
        for table in backend.route_tables.values():
            for key, subnet in list(table.associations.items()):
                if table.id == self.route_table_id and subnet == self.subnet_id:
                    backend.disassociate_route_table(key)

    def attachment(self: VPCGatewayAttachment, account: str, region: str) -> None:
        ec2_backends[account][region].detach_internet_gateway(self.gateway_id, self.vpc_id)

    def gateway(self: InternetGateway, account: str, region: str) -> None:
        ec2_backends[account][region].delete_internet_gateway(self.id)

    for kind, delete in (
        (NatGateway, nat),
        (ElasticAddress, address),
        (Route, route),
        (RouteTable, table),
        (SubnetRouteTableAssociation, association),
        (VPCGatewayAttachment, attachment),
        (InternetGateway, gateway),
    ):
        where: Any = kind
        patch.setattr(where, "delete", delete, raising=False)
