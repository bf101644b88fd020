"""Tokens for EKS, signed in this process.

A token is a presigned GetCallerIdentity request for STS, which the cluster sends to learn the identity of its
bearer (https://github.com/kubernetes-sigs/aws-iam-authenticator). Signing needs no network, unless a role is
assumed, and neither the ``aws`` nor the ``aws-iam-authenticator`` program.
"""

from __future__ import annotations

import base64
import time
from typing import Any

from l2rtui.errors import BackendError

_VALID_SECONDS = 60
"""Validity of the presigned URL; the authenticator accepts a token for 15 minutes from its date."""
_TOKEN_SECONDS = 14 * 60  # a minute less than 15, for clock differences


def sign_eks_token(cluster: str, region: str = "", profile: str = "", role: str = "") -> tuple[str, float]:
    """Return a token and its expiry in seconds since the epoch.

    Raises:
        ImportError: botocore is not installed.
        BackendError: There are no credentials or no region, or the role is refused.
    """
    import botocore.exceptions
    import botocore.session
    from botocore.model import ServiceId
    from botocore.signers import RequestSigner

    try:
        session: Any = botocore.session.Session(profile=profile or None)
        region = region or session.get_config_variable("region") or "us-east-1"
        credentials = _assumed(session, region, role) if role else session.get_credentials()
        if credentials is None:
            raise BackendError("There are no AWS credentials.", "Log in: `aws configure` or `aws sso login`.")
        endpoint = session.create_client("sts", region_name=region).meta.endpoint_url
        signer = RequestSigner(
            ServiceId("sts"), region, "sts", "v4", credentials, session.get_component("event_emitter")
        )
        url = signer.generate_presigned_url(
            {
                "method": "GET",
                "url": f"{endpoint}/?Action=GetCallerIdentity&Version=2011-06-15",
                "body": {},
                "headers": {"x-k8s-aws-id": cluster},  # signed: a token for one cluster is refused by another
                "context": {},
            },
            region_name=region,
            expires_in=_VALID_SECONDS,
            operation_name="",
        )
    except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
        raise BackendError(f"No token for the EKS cluster {cluster}: {error}.") from error
    return f"k8s-aws-v1.{base64.urlsafe_b64encode(url.encode()).decode().rstrip('=')}", time.time() + _TOKEN_SECONDS


def _assumed(session: Any, region: str, role: str) -> Any:
    from botocore.credentials import Credentials

    answer = session.create_client("sts", region_name=region).assume_role(RoleArn=role, RoleSessionName="l2rtui")
    granted = answer["Credentials"]
    return Credentials(granted["AccessKeyId"], granted["SecretAccessKey"], granted["SessionToken"])
