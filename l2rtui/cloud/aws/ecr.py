"""Amazon's container registry: logins (12 hours), and repositories, which must exist before the first push."""

from __future__ import annotations

import base64
from typing import Any

from l2rtui.cloud.aws.clients import Cloud, CloudError
from l2rtui.errors import BackendError


async def registry_login(cloud: Cloud) -> tuple[str, str]:
    """Return user and password for the account's registry; CloudError without permission or credentials."""
    answer = await cloud.call("ecr", "get_authorization_token")
    granted = answer.get("authorizationData") or [{}]
    user, colon, secret = base64.b64decode(granted[0].get("authorizationToken") or "").decode().partition(":")
    if not colon:
        raise BackendError("Amazon's registry gave no login.", "Try again.")
    return user, secret


async def ensure_repository(cloud: Cloud, name: str) -> bool:
    """Create a repository unless it exists; return whether it was created."""
    if await cloud.find("ecr", "describe_repositories", repositoryNames=[name]) is not None:
        return False
    request: dict[str, Any] = {
        "repositoryName": name,
        "imageScanningConfiguration": {"scanOnPush": True},
        "tags": [{"Key": "l2rtui/managed", "Value": "true"}],
    }
    try:
        await cloud.call("ecr", "create_repository", **request)
    except CloudError as error:
        if "AlreadyExists" not in error.code:  # someone else created it first, which is fine
            raise
    return True
