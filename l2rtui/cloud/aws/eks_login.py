"""Login at an EKS cluster: its entry in a kubeconfig, with this program as its credential plugin, and the tokens.

kubectl runs ``l2rtui cluster token`` for each login, and l2rtui itself signs in-process: neither ``aws`` nor
``aws-iam-authenticator`` has to be installed.

A token is a presigned GetCallerIdentity request for STS, which the cluster sends to learn the identity of its
bearer (https://github.com/kubernetes-sigs/aws-iam-authenticator). Signing needs no network, unless a role is
assumed.
"""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from l2rtui.errors import BackendError, ConfigError
from runtime.base.atomic_files import write_private


def default_path() -> Path:
    """Return the file that kubectl would write to: the first of ``$KUBECONFIG``, or the default."""
    listed = [part for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    return Path(listed[0]) if listed else Path.home() / ".kube" / "config"


def write_entry(path: Path, cluster: Mapping[str, Any], region: str, profile: str = "") -> str:
    """Add or update the entry of a cluster, make it the current context, and return its name.

    Args:
        cluster: EKS' description of the cluster.

    Raises:
        BackendError: The cluster has no address yet. ConfigError: The file cannot be read or written.
    """
    name = str(cluster["name"])
    server = str(cluster.get("endpoint") or "").rstrip("/")
    authority = str((cluster.get("certificateAuthority") or {}).get("data") or "")
    if not server or not authority:
        raise BackendError(f"The cluster {name} has no address yet.", "Wait until it is ACTIVE.")
    args = ["cluster", "token", "--name", name, "--region", region, *(["--profile", profile] if profile else [])]
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": "l2rtui",
        "args": args,
        "interactiveMode": "Never",
    }
    document = _read(path)
    for key, value in (
        ("clusters", {"cluster": {"server": server, "certificate-authority-data": authority}}),
        ("users", {"user": {"exec": plugin}}),
        ("contexts", {"context": {"cluster": name, "user": name}}),
    ):
        # Appended, not replaced in place: other entries keep their order, and comments are lost either way.
        others = [
            entry for entry in document.get(key) or [] if isinstance(entry, dict) and entry.get("name") != name
        ]
        document[key] = [*others, {"name": name, **value}]
    document["current-context"] = name
    _write(path, document)
    return name


def remove_entry(path: Path, name: str, endpoint: str = "") -> bool:
    """Remove the entry of a cluster if `write_entry` has created it; return whether it existed.

    Args:
        endpoint: Required address of the entry; empty for any.
    """
    document = _read(path)
    clusters = [entry for entry in document.get("clusters") or [] if isinstance(entry, dict)]
    ours = next((entry for entry in clusters if entry.get("name") == name), None)
    if ours is None or not _is_ours(document, name):
        return False
    server = str((ours.get("cluster") or {}).get("server", "")).rstrip("/")
    # A cluster of the same name in another region or account has another address: its entry is kept.
    if endpoint and server != endpoint.rstrip("/"):
        return False
    for key in ("clusters", "users", "contexts"):
        document[key] = [entry for entry in document.get(key) or [] if entry.get("name") != name]
    # Empty instead of another context: kubectl must not silently act on a cluster that the user has not chosen.
    if document.get("current-context") == name:
        document["current-context"] = ""
    _write(path, document)
    return True


def _is_ours(document: Mapping[str, Any], name: str) -> bool:
    users = {
        user.get("name"): user.get("user") or {} for user in document.get("users") or [] if isinstance(user, dict)
    }
    plugin = users.get(name, {}).get("exec") or {}
    return plugin.get("command") == "l2rtui" and list(plugin.get("args") or ())[:2] == ["cluster", "token"]


def _read(path: Path) -> dict[str, Any]:
    import yaml

    from l2rtui import bounded_yaml

    try:
        document = bounded_yaml.load(path.read_text("utf-8"))
    except FileNotFoundError:
        document = None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(
            f"{path} cannot be read as a kubeconfig: {type(error).__name__}.", "Correct it."
        ) from error
    if document is not None and not isinstance(document, dict):
        raise ConfigError(f"{path} is no kubeconfig.", "Name another file with --kubeconfig.")
    return document or {"apiVersion": "v1", "kind": "Config", "preferences": {}}


def _write(path: Path, document: Mapping[str, Any]) -> None:
    """Replace the file; it is private, as it contains credentials of other clusters."""
    import yaml

    try:
        write_private(path, yaml.safe_dump(document, sort_keys=False))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.") from error


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
