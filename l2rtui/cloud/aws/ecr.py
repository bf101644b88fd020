"""Amazon's registry: a login that lasts twelve hours, and repositories that are made before the first push."""

from __future__ import annotations

import base64
from typing import Any

from l2rtui.backends.aws.clients import Cloud, CloudError
from l2rtui.errors import BackendError


async def registry_login(cloud: Cloud) -> tuple[str, str]:
    """User and password for the account's registry.

    Raises:
        CloudError: the account may not, or there are no credentials.
    """
    answer = await cloud.ask("ecr", "get_authorization_token")
    granted = answer.get("authorizationData") or [{}]
    user, colon, secret = base64.b64decode(granted[0].get("authorizationToken") or "").decode().partition(":")
    if not colon:
        raise BackendError("Amazon's registry gave no login.", "Try again.")
    return user, secret


async def ensure_repository(cloud: Cloud, name: str) -> bool:
    """Make a repository unless it is there; say whether it was made."""
    try:
        await cloud.ask("ecr", "describe_repositories", repositoryNames=[name])
    except CloudError as error:
        if not error.is_missing:
            raise
    else:
        return False
    wanted: dict[str, Any] = {
        "repositoryName": name,
        "imageScanningConfiguration": {"scanOnPush": True},
        "tags": [{"Key": "l2rtui/managed", "Value": "true"}],
    }
    try:
        await cloud.ask("ecr", "create_repository", **wanted)
    except CloudError as error:
        if "AlreadyExists" not in error.code:  # somebody else was quicker, and that is as good
            raise
    return True
