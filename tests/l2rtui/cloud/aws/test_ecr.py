"""Amazon's registry: a login, and repositories that are created if missing."""

from __future__ import annotations

import pytest

from l2rtui.cloud.aws.clients import Cloud, CloudError
from l2rtui.domain.imageref import parse_image
from l2rtui.services import images
from tests.l2rtui.cloud.aws.conftest import CLIENTS, REGION

pytestmark = pytest.mark.filterwarnings("default")  # from moto

IMAGE = parse_image(f"123456789012.dkr.ecr.{REGION}.amazonaws.com/lab/node:1")


async def test_a_repository_is_made_once_and_says_whose_it_is(account):
    client = account.client("ecr")
    assert await images.prepare_registry(IMAGE) is True
    assert await images.prepare_registry(IMAGE) is False
    (repository,) = client.describe_repositories()["repositories"]
    assert repository["repositoryName"] == "lab/node"
    tags = client.list_tags_for_resource(resourceArn=repository["repositoryArn"])["tags"]
    assert {"Key": "l2rtui/managed", "Value": "true"} in tags


async def test_other_registries_need_no_repository(account):
    assert await images.prepare_registry(parse_image("registry.example/lab/node:1")) is False
    assert account.client("ecr").describe_repositories()["repositories"] == []


async def test_the_login_is_the_account_s_and_is_not_shown(account):
    login = await images.login_for(IMAGE.registry)
    assert (login.user, login.secret) == ("AWS", "123456789012-auth-token")
    assert "auth-token" not in repr(login)


async def test_a_refusal_names_the_permission(account, monkeypatch):
    cloud = Cloud(REGION)
    cloud.clients = CLIENTS
    with pytest.raises(CloudError, match=r"refuses create_repository: .*Invalid"):
        await images.ensure_repository(cloud, "UPPER/CASE")


async def test_no_credentials_is_a_sentence(monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(CloudError, match=r"There are no AWS credentials\. Log in"):
        await images.registry_login(Cloud(REGION))
