"""Secrets of Kubernetes for runs: variables, and logins of registries; marked as ours and never read back."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.client import Api
from l2rtui.backends.kubernetes.errors import ApiError
from l2rtui.domain.secret import Secret, SecretKind, SecretView
from l2rtui.errors import NotFoundError, RefusedError

KEPT: Final = f"{labels.PREFIX}secret"
"""Label of a secret that people keep here. Not managed-by, which marks what belongs to a run and goes with it."""
_TYPES: Final = {SecretKind.VARIABLES: "Opaque", SecretKind.REGISTRY: "kubernetes.io/dockerconfigjson"}


class KubernetesSecrets:
    """The secrets of the namespace where runs are launched.

    Args:
        api: Gives the open connection.
    """

    def __init__(self, api: Callable[[], Awaitable[Api]], owner: str) -> None:
        self._api = api
        self._owner = owner

    async def list(self) -> tuple[SecretView, ...]:
        """Those that l2rtui keeps, by name."""
        api = await self._api()
        found = await api.list("Secret", api.namespace, labels=KEPT)
        return tuple(sorted(map(_view, found), key=lambda one: one.name))

    async def keep(self, secret: Secret, *, replace: bool = False) -> None:
        """Create it, or put it in place of ours of this name."""
        api = await self._api()
        manifest = self._manifest(secret, api.namespace)
        try:
            await api.create(manifest)
        except ApiError as error:
            if not error.is_taken:
                raise
        else:
            return
        found = await self._ours(api, secret.name)
        if not replace:
            raise RefusedError(
                f"There is a secret {secret.name} in {api.namespace}.", "Add --replace, or delete it."
            )
        if found.get("type") == _TYPES[secret.kind]:
            manifest["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
            await api.replace(manifest)
            return
        await api.delete("Secret", api.namespace, secret.name, uid=found["metadata"]["uid"])  # a type cannot change
        await api.create(manifest)

    async def delete(self, name: str) -> None:
        """Remove one of ours."""
        api = await self._api()
        found = await self._ours(api, name)
        await api.delete("Secret", api.namespace, name, uid=found["metadata"]["uid"])

    async def _ours(self, api: Api, name: str) -> dict[str, Any]:
        try:
            found = await api.read("Secret", api.namespace, name)
        except ApiError as error:
            if error.is_not_found:
                raise NotFoundError(
                    f"There is no secret {name} in {api.namespace}.", "See `l2rtui secret ls`."
                ) from None
            raise
        if KEPT not in (found["metadata"].get("labels") or {}):
            raise RefusedError(f"The secret {name} in {api.namespace} was not made by `l2rtui secret`.")
        return found

    def _manifest(self, secret: Secret, namespace: str) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": secret.name,
                "namespace": namespace,
                "labels": {
                    KEPT: str(secret.kind),
                    labels.APP_PART_OF: labels.MANAGED_BY,
                    labels.OWNER: labels.label_value(self._owner),
                },
                "annotations": {labels.OWNER: self._owner},
            },
            "type": _TYPES[secret.kind],
            "data": {key: base64.b64encode(value.encode()).decode() for key, value in secret.values},
        }


def _view(found: Mapping[str, Any]) -> SecretView:
    meta = found["metadata"]
    is_registry = found.get("type") == _TYPES[SecretKind.REGISTRY]
    return SecretView(
        str(meta["name"]),
        SecretKind.REGISTRY if is_registry else SecretKind.VARIABLES,
        tuple(sorted(found.get("data") or {})),
        str((meta.get("annotations") or {}).get(labels.OWNER, "")),
        str(meta.get("creationTimestamp") or ""),
    )
