"""Kubernetes Secrets for runs: variables and registry logins, labelled as l2rtui's; values are never read back."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from l2rtui.backends.common import run_specs
from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.manifests.pod_parts import new_object
from l2rtui.domain.secret import Secret, SecretKind, SecretView
from l2rtui.errors import NotFoundError, RefusedError

SECRET_LABEL: Final = f"{labels.PREFIX}secret"
"""Label of a secret that a user has stored. Not ``managed-by``, which marks objects that are deleted with their
run.
"""
_TYPES: Final = {SecretKind.VARIABLES: "Opaque", SecretKind.REGISTRY: "kubernetes.io/dockerconfigjson"}


class KubernetesSecrets:
    """The secrets of the namespace of new runs.

    Args:
        api: Returns the open connection.
        owner: User name for the annotation of new secrets.
    """

    def __init__(self, api: Callable[[], Awaitable[Api]], owner: str) -> None:
        self._api = api
        self._owner = owner
        self._hidden = ""

    @property
    def hidden(self) -> str:
        """Sentence on why the latest list may be incomplete; empty for a complete list."""
        return self._hidden

    async def list(self) -> tuple[SecretView, ...]:
        """Return the secrets that l2rtui has created, by name.

        Listing Secrets would show the tokens of all runs. A user who may not list them gets the secrets that the
        specs of the namespace's runs name, each read by its name; ``hidden`` then says so.
        """
        api = await self._api()
        self._hidden = ""
        try:
            items = await api.list("Secret", api.namespace, labels=SECRET_LABEL)
        except ApiError as error:
            if not error.is_forbidden:
                raise
            items = await _read_all(api, await _names_in_specs(api))
            self._hidden = (
                f"You may not list secrets in {api.namespace}: only those that its runs name are shown. "
                "All others can be replaced and deleted by their names."
            )
        return tuple(sorted(map(_view, items), key=lambda view: view.name))

    async def keep(self, secret: Secret, *, replace: bool = False) -> None:
        """Create a secret, or replace the one that l2rtui has created under this name."""
        api = await self._api()
        manifest = self._manifest(secret, api.namespace)
        try:
            await api.create(manifest)
        except ApiError as error:
            if not error.is_taken:
                raise
        else:
            return
        existing = await self._ours(api, secret.name)
        if not replace:
            raise RefusedError(
                f"There is a secret {secret.name} in {api.namespace}.", "Add --replace, or delete it."
            )
        if existing.get("type") == _TYPES[secret.kind]:
            # The version that was checked to be ours: a change in between makes the replace fail.
            manifest["metadata"]["resourceVersion"] = existing["metadata"]["resourceVersion"]
            await api.replace(manifest)
            return
        await api.delete("Secret", api.namespace, secret.name, uid=existing["metadata"]["uid"])
        await api.create(manifest)

    async def delete(self, name: str) -> None:
        """Remove a secret that l2rtui has created."""
        api = await self._api()
        existing = await self._ours(api, name)
        await api.delete("Secret", api.namespace, name, uid=existing["metadata"]["uid"])

    async def _ours(self, api: Api, name: str) -> dict[str, Any]:
        if (existing := await api.find("Secret", api.namespace, name)) is None:
            raise NotFoundError(f"There is no secret {name} in {api.namespace}.", "See `l2rtui secret ls`.")
        if SECRET_LABEL not in (existing["metadata"].get("labels") or {}):
            raise RefusedError(f"The secret {name} in {api.namespace} was not made by `l2rtui secret`.")
        return existing

    def _manifest(self, secret: Secret, namespace: str) -> dict[str, Any]:
        own_labels = {
            SECRET_LABEL: str(secret.kind),
            labels.APP_PART_OF: labels.MANAGED_BY,
            labels.OWNER: labels.label_value(self._owner),
        }
        meta = {"namespace": namespace, "labels": own_labels, "annotations": {labels.OWNER: self._owner}}
        data = {key: base64.b64encode(value.encode()).decode() for key, value in secret.values}
        return new_object("Secret", secret.name, meta=meta, type=_TYPES[secret.kind], data=data)


async def _names_in_specs(api: Api) -> set[str]:
    """Return the names of secrets in the specs of all runs; a spec that this version cannot read is skipped."""
    names: set[str] = set()
    for item in await api.list("ConfigMap", api.namespace, labels=labels.MANAGED):
        try:
            spec = run_specs.decode((item.get("data") or {})[labels.SPEC_KEY])
        except (KeyError, TypeError, ValueError):
            continue
        names.update(name for item in spec.sets for name in (*item.pod.secrets, *item.pod.pull_secrets))
    return names


async def _read_all(api: Api, names: Iterable[str]) -> list[dict[str, Any]]:
    """Return the secrets of these names that l2rtui has created."""
    items = await asyncio.gather(*(api.find("Secret", api.namespace, name) for name in sorted(names)))
    return [item for item in items if item is not None and SECRET_LABEL in (item["metadata"].get("labels") or {})]


def _view(manifest: Mapping[str, Any]) -> SecretView:
    meta = manifest["metadata"]
    is_registry = manifest.get("type") == _TYPES[SecretKind.REGISTRY]
    return SecretView(
        str(meta["name"]),
        SecretKind.REGISTRY if is_registry else SecretKind.VARIABLES,
        tuple(sorted(manifest.get("data") or {})),
        str((meta.get("annotations") or {}).get(labels.OWNER, "")),
        str(meta.get("creationTimestamp") or ""),
    )
