"""Amazon's services as provided by moto: in this process for frequent tests, otherwise behind a port."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.fakes.moto_server import moto_server

REGION = "us-west-2"


@pytest.fixture
def amazon(monkeypatch: pytest.MonkeyPatch, tmp_path) -> Iterator[None]:
    """An empty account; boto3 in this process only calls moto, which only its tests import."""
    from moto import mock_aws

    from tests.l2rtui.cloud.aws.moto_repairs import repair

    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    for name, value in settings(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")  # hundreds of images, read again for each test
    repair(monkeypatch)
    with mock_aws():
        yield


@pytest.fixture
def amazon_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The same behind a port, for separate programs; yields its address."""
    from tests.l2rtui.cloud.aws.moto_repairs import repair

    repair(monkeypatch)
    with moto_server() as address:
        yield address


def settings(folder: Path) -> dict[str, str]:
    """The environment of a user with a moto account and a separate home."""
    return {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(folder / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(folder / "none"),
        "XDG_STATE_HOME": str(folder / "state"),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "HOME": str(folder),
    }


CLIENTS: dict[str, Any] = {}
"""Clients for moto in this process: making one reads megabytes, and they keep no state of an account."""


class Account:
    """All resources of an account, listed by every service's own call."""

    def __init__(self, clients: dict[str, Any], endpoint: str | None = None) -> None:
        self._clients = clients
        self._session = boto3.session.Session(region_name=REGION)
        self._endpoint = endpoint

    def client(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = self._session.client(service, endpoint_url=self._endpoint)
        return self._clients[service]

    def inventory(self) -> dict[str, list[str]]:
        """Return the resources that exist, by kind; empty kinds are left out."""
        ec2, efs, eks = self.client("ec2"), self.client("efs"), self.client("eks")
        own = [{"Name": "is-default", "Values": ["false"]}]
        networks = [item["VpcId"] for item in ec2.describe_vpcs(Filters=own)["Vpcs"]]
        inside = [{"Name": "vpc-id", "Values": networks or ["none"]}]
        clusters = eks.list_clusters()["clusters"]
        nats = ec2.describe_nat_gateways()["NatGateways"]
        resources = {
            "vpc": networks,
            "subnet": [item["SubnetId"] for item in ec2.describe_subnets(Filters=inside)["Subnets"]],
            "route table": [
                item["RouteTableId"] for item in ec2.describe_route_tables(Filters=inside)["RouteTables"]
            ],
            "internet gateway": [
                item["InternetGatewayId"] for item in ec2.describe_internet_gateways()["InternetGateways"]
            ],
            "nat": [item["NatGatewayId"] for item in nats if item["State"] != "deleted"],
            "address": [item["AllocationId"] for item in ec2.describe_addresses()["Addresses"]],
            "interface": [
                item["NetworkInterfaceId"] for item in ec2.describe_network_interfaces()["NetworkInterfaces"]
            ],
            "security group": [
                item["GroupId"] for item in ec2.describe_security_groups(Filters=inside)["SecurityGroups"]
            ],
            "volume": [item["VolumeId"] for item in ec2.describe_volumes()["Volumes"]],
            "role": [item["RoleName"] for item in self.client("iam").list_roles()["Roles"]],
            "stack": [
                item["StackName"]
                for item in self.client("cloudformation").describe_stacks()["Stacks"]
                if item["StackStatus"] != "DELETE_COMPLETE"
            ],
            "files": [item["FileSystemId"] for item in efs.describe_file_systems()["FileSystems"]],
            "cluster": clusters,
            "group": [item for name in clusters for item in eks.list_nodegroups(clusterName=name)["nodegroups"]],
            "balancer": [
                item["LoadBalancerName"] for item in self.client("elbv2").describe_load_balancers()["LoadBalancers"]
            ],
            "log group": [item["logGroupName"] for item in self.client("logs").describe_log_groups()["logGroups"]],
        }
        return {kind: names for kind, names in resources.items() if names}


@pytest.fixture
def account(amazon: None) -> Account:
    return Account(CLIENTS)
