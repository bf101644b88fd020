"""The API server as a place to ask for objects: read, list, create, apply, replace, patch, delete.

Objects are plain dicts here, as in manifests. Where a kind lives stands in ``kinds``; how bytes get there and back
in ``connection``.
"""

from __future__ import annotations

import builtins
import time
from collections.abc import Mapping
from typing import Any, Final

from l2rtui.backends.kubernetes.connection import Connection, decoded
from l2rtui.backends.kubernetes.credentials import Credentials, EksSigner, make_credentials
from l2rtui.backends.kubernetes.errors import ApiError, Asked
from l2rtui.backends.kubernetes.kinds import KINDS, KindPath
from l2rtui.backends.kubernetes.kubeconfig import Access, load_access
from l2rtui.backends.kubernetes.labels import FIELD_MANAGER

MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"
PAGE: Final = 500
"""Objects in one answer of a list that the server reads from its store: what it can hold without harm."""
_CAN_SECONDS = 60.0


class Api(Connection):
    """One context of one cluster; made by connect().

    Attributes:
        context: Name of the context. user: as whom, for sentences.
        namespace: The one that the context chooses. namespaces: those that were asked for; empty for no wish.
        server_version: (major, minor).
        has_streamed_lists: False once this server has refused to stream a list; watches remember it here.
        has_exporters: False once no exporter of GPU figures has answered: a look does not wait for them twice.
    """

    def __init__(
        self, access: Access, credentials: Credentials | None = None, namespaces: tuple[str, ...] = ()
    ) -> None:
        super().__init__(access, credentials)
        self.context = access.context
        self.user = access.user.name
        self.namespace = namespaces[0] if namespaces else access.namespace
        self.namespaces = namespaces
        self.server_version = (1, 20)
        self.has_streamed_lists = True
        self.has_exporters = True
        self._can: dict[tuple[str, str, str, str], tuple[float, bool]] = {}
        self._groups: dict[str, tuple[str, ...]] = {}

    async def read(self, kind: str, namespace: str | None, name: str) -> dict[str, Any]:
        """One object."""
        return _object(await self.get_json(KINDS[kind].path(namespace, name)))

    async def list(
        self, kind: str, namespace: str | None, *, labels: str = "", fields: str = ""
    ) -> builtins.list[dict[str, Any]]:
        """All objects of a kind in one namespace, or (None) in all; in pages, at one revision.

        Args:
            labels, fields: Selectors as kubectl's ``-l`` and ``--field-selector`` take them.
        """
        wanted = {"labelSelector": labels, "fieldSelector": fields}
        base = {key: value for key, value in wanted.items() if value} | {"limit": str(PAGE)}
        items: builtins.list[dict[str, Any]] = []
        query, path = dict(base), KINDS[kind].path(namespace)
        while True:
            try:
                answer = _object(await self.get_json(path, query))
            except ApiError as error:
                if not (error.is_gone and "continue" in query):
                    raise
                items, query = [], {key: value for key, value in base.items() if key != "limit"}
                continue  # the revision of the first page is gone: once more, in one piece
            items += [item for item in answer.get("items") or [] if isinstance(item, dict)]
            token = _object(answer.get("metadata")).get("continue")
            if not token:
                return items
            query = {**base, "continue": str(token)}

    async def create(self, manifest: dict[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """Create an object; is_taken when its name is."""
        path = self._kind_of(manifest).path(self._namespace_of(manifest))
        query = {"fieldManager": FIELD_MANAGER} | _dry(dry_run)
        answer = await self.request("POST", path, query=query, body=manifest)
        return _object(decoded(Asked("POST", path), answer))

    async def apply(
        self, manifest: dict[str, Any], *, dry_run: bool = False, force: bool = False
    ) -> dict[str, Any]:
        """Server-side apply under our field manager; is_conflict when another manager owns a field.

        Args:
            force: Take such fields over.
        """
        path = self._path_of(manifest)
        query = {"fieldManager": FIELD_MANAGER} | _dry(dry_run) | ({"force": "true"} if force else {})
        answer = await self.request("PATCH", path, query=query, body=manifest, content_type=APPLY_PATCH)
        return _object(decoded(Asked("PATCH", path), answer))

    async def replace(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Put an object in place of what is there; is_conflict unless its resourceVersion is the newest."""
        path = self._path_of(manifest)
        answer = await self.request("PUT", path, query={"fieldManager": FIELD_MANAGER}, body=manifest)
        return _object(decoded(Asked("PUT", path), answer))

    async def patch(
        self,
        kind: str,
        namespace: str | None,
        name: str,
        body: object,
        *,
        content_type: str = MERGE_PATCH,
        subresource: str = "",
    ) -> dict[str, Any]:
        """Change a part of an object, or of a subresource such as ``status`` or ``scale``."""
        path = KINDS[kind].path(namespace, name, subresource)
        query = {"fieldManager": FIELD_MANAGER}
        answer = await self.request("PATCH", path, query=query, body=body, content_type=content_type)
        return _object(decoded(Asked("PATCH", path), answer))

    async def delete(
        self,
        kind: str,
        namespace: str | None,
        name: str,
        *,
        uid: str = "",
        resource_version: str = "",
        propagation: str = "",
        grace_seconds: int | None = None,
    ) -> None:
        """Delete an object, if it is still the one that is meant; is_conflict when it is not.

        Args:
            uid, resource_version: What it must have. propagation: ``Foreground``, ``Background`` or ``Orphan``.
        """
        options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1"}
        wanted = {"uid": uid, "resourceVersion": resource_version}
        if preconditions := {key: value for key, value in wanted.items() if value}:
            options["preconditions"] = preconditions
        if propagation:
            options["propagationPolicy"] = propagation
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        await self.request("DELETE", KINDS[kind].path(namespace, name), body=options)

    async def can(self, verb: str, kind: str, namespace: str | None, *, subresource: str = "") -> bool:
        """Whether the user may do this, as the server says; remembered for a minute.

        Args:
            namespace: None asks for all of them.
        """
        key = (verb, kind, namespace or "", subresource)
        until, answer = self._can.get(key, (0.0, False))
        if time.monotonic() < until:
            return answer
        path = KINDS[kind]
        attributes = {"verb": verb, "group": path.group, "resource": path.plural, "subresource": subresource}
        if namespace:
            attributes["namespace"] = namespace
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        status = _object((await self.create(review)).get("status"))
        answer = status.get("allowed") is True
        self._can[key] = (time.monotonic() + _CAN_SECONDS, answer)
        return answer

    def forget_rights(self) -> None:
        """What the user may do is asked anew."""
        self._can.clear()

    async def group_versions(self, group: str) -> tuple[str, ...]:
        """Versions of an API group that this server serves, its favourite first; empty where it has none."""
        if group not in self._groups:
            try:
                answer = _object(await self.get_json(f"/apis/{group}"))
            except ApiError as error:
                if not error.is_not_found:
                    raise
                answer = {}
            first = _object(answer.get("preferredVersion")).get("version")
            names = [str(_object(one).get("version", "")) for one in answer.get("versions") or []]
            self._groups[group] = tuple(sorted(filter(None, names), key=lambda name: name != first))
        return self._groups[group]

    def _kind_of(self, manifest: Mapping[str, Any]) -> KindPath:
        return KINDS[manifest["kind"]].at(manifest.get("apiVersion", ""))

    def _namespace_of(self, manifest: Mapping[str, Any]) -> str:
        return _object(manifest.get("metadata")).get("namespace") or self.namespace

    def _path_of(self, manifest: Mapping[str, Any]) -> str:
        return self._kind_of(manifest).path(self._namespace_of(manifest), manifest["metadata"]["name"])


async def connect(
    context: str = "",
    kubeconfig: str | None = None,
    namespaces: tuple[str, ...] = (),
    *,
    eks_token: EksSigner | None = None,
) -> Api:
    """Open a context and see that its server answers.

    Args:
        context: Empty means the current one.
        kubeconfig: Path, or several joined; None means KUBECONFIG, ~/.kube/config, or the pod's own account.
        namespaces: The only ones to look at; empty means all that the user may list, else the context's own.
        eks_token: See make_credentials().

    Raises:
        ConfigError: no such context, or its files cannot be used.
        ApiError: the server does not answer or does not let us in.
    """
    access = load_access(context, kubeconfig)
    api = Api(access, make_credentials(access, eks_token), namespaces)
    await api.choose_encoding()
    try:
        version = _object(await api.get_json("/version"))
    except ApiError as error:
        if not error.is_forbidden:  # an old habit of hardened clusters: what matters is what else we may do
            await api.close()
            raise
    except BaseException:
        await api.close()
        raise
    else:
        api.server_version = (_number(version.get("major"), 1), _number(version.get("minor"), 20))
    return api


def _number(text: object, otherwise: int) -> int:
    digits = "".join(one for one in str(text) if one.isdigit())  # some clouds write "27+"
    return int(digits) if digits else otherwise


def _dry(dry_run: bool) -> dict[str, str]:
    return {"dryRun": "All"} if dry_run else {}


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
