"""Client of one API server: read, list, create, apply, replace, patch and delete objects; ask for permissions.

Objects are plain dicts here, as in manifests. ``resources`` has the paths of kinds, ``http`` the transport.
"""

from __future__ import annotations

import builtins
import time
from collections.abc import Mapping
from typing import Any, Final

from l2rtui.backends.kubernetes.api.credentials import Credentials, make_credentials
from l2rtui.backends.kubernetes.api.errors import ApiError, RequestInfo
from l2rtui.backends.kubernetes.api.http import FIELD_MANAGER, JSON, Connection, decode_json, not_understood
from l2rtui.backends.kubernetes.api.kubeconfig import Access, impersonating, load_access
from l2rtui.backends.kubernetes.api.login import EksSigner
from l2rtui.backends.kubernetes.api.resources import KINDS, KindPath, kind_of

MERGE_PATCH: Final = "application/merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"
PAGE: Final = 500
"""Objects per page of a list, as in kubectl and client-go: larger pages strain the server's memory."""
_PERMISSION_SECONDS = 60.0


class Api(Connection):
    """Client of one context of one cluster; created by connect().

    Attributes:
        context: Name of the context.
        user: Name of the acting user, for messages.
        namespace: Default namespace.
        namespaces: Namespaces that the caller restricts itself to; empty for no restriction.
        server_version: (major, minor).
        has_streamed_lists: False once this server has refused to stream a list; shared by all its watches.
        has_exporters: False once no GPU metrics exporter has answered, so that later snapshots do not wait for one.
        has_shared_claims: The user may claim slots in the namespace that all users share, as far as was asked.
    """

    def __init__(
        self, access: Access, credentials: Credentials | None = None, namespaces: tuple[str, ...] = ()
    ) -> None:
        super().__init__(access, credentials)
        self.context = access.context
        self.user = access.acting_user
        self.namespace = namespaces[0] if namespaces else access.namespace
        self.namespaces = namespaces
        # The oldest supported version: assumed if a hardened server hides /version.
        self.server_version = (1, 20)
        self.has_streamed_lists = True
        self.has_exporters = True
        self.has_shared_claims = False
        self._permissions: dict[tuple[str, str, str, str], tuple[float, bool]] = {}
        self._groups: dict[str, tuple[str, ...]] = {}

    async def read(self, kind: str, namespace: str | None, name: str) -> dict[str, Any]:
        """Return one object."""
        return _object(await self.get_json(KINDS[kind].path(namespace, name)))

    async def find(self, kind: str, namespace: str | None, name: str) -> dict[str, Any] | None:
        """Return one object; None if no object of this name exists."""
        try:
            return await self.read(kind, namespace, name)
        except ApiError as error:
            if error.is_not_found:
                return None
            raise

    async def list(
        self, kind: str, namespace: str | None, *, labels: str = "", fields: str = ""
    ) -> builtins.list[dict[str, Any]]:
        """Return all objects of a kind in one namespace, or in all (None); read in pages at one revision.

        Args:
            labels, fields: Selectors in the syntax of kubectl's ``-l`` and ``--field-selector``.
        """
        selectors = {"labelSelector": labels, "fieldSelector": fields}
        base = {key: value for key, value in selectors.items() if value} | {"limit": str(PAGE)}
        items: builtins.list[dict[str, Any]] = []
        query, path = dict(base), KINDS[kind].path(namespace)
        while True:
            try:
                answer = _object(await self.get_json(path, query))
            except ApiError as error:
                if not (error.is_gone and "continue" in query):
                    raise
                # The revision of the first page was compacted (5 min by default): read everything again in one
                # piece, like client-go's pager, since pages of another revision would be inconsistent with the ones
                # already read.
                items, query = [], {key: value for key, value in base.items() if key != "limit"}
                continue
            if "items" not in answer:  # it would look like an empty list
                raise not_understood(RequestInfo("GET", path), "a list")
            items += [item for item in answer["items"] or [] if isinstance(item, dict)]
            token = _object(answer.get("metadata")).get("continue")
            if not token:
                return items
            query = {**base, "continue": str(token)}

    async def create(self, manifest: dict[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """Create an object; the error's ``is_taken`` is True if the name exists."""
        path = self._kind_of(manifest).path(self._namespace_of(manifest))
        return await self._write("POST", path, manifest, _dry(dry_run))

    async def apply(
        self, manifest: dict[str, Any], *, dry_run: bool = False, force: bool = False
    ) -> dict[str, Any]:
        """Apply an object (server-side apply); the error's ``is_conflict`` means that another manager owns a field.

        Args:
            force: Take ownership of such fields.
        """
        # Apply patches have a YAML media type, and JSON is a subset of YAML.
        query = _dry(dry_run) | ({"force": "true"} if force else {})
        return await self._write("PATCH", self._path_of(manifest), manifest, query, APPLY_PATCH)

    async def replace(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Replace an object; the error's ``is_conflict`` means that its resourceVersion is not the newest."""
        return await self._write("PUT", self._path_of(manifest), manifest)

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
        """Patch an object, or a subresource such as ``status`` or ``scale``."""
        path = KINDS[kind].path(namespace, name, subresource)
        return await self._write("PATCH", path, body, content_type=content_type)

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
        """Delete an object; the error's ``is_conflict`` means that the preconditions do not hold.

        Args:
            uid, resource_version: Preconditions; empty for none.
            propagation: ``Foreground``, ``Background`` or ``Orphan``; empty for the kind's default.
            grace_seconds: None for the object's own grace period.
        """
        options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1"}
        required = {"uid": uid, "resourceVersion": resource_version}
        # Without a uid, a new object of the same name would be deleted.
        if preconditions := {key: value for key, value in required.items() if value}:
            options["preconditions"] = preconditions
        if propagation:
            options["propagationPolicy"] = propagation
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        await self.request("DELETE", KINDS[kind].path(namespace, name), body=options)

    async def can(self, verb: str, kind: str, namespace: str | None, *, subresource: str = "") -> bool:
        """Check whether the user may do this (SelfSubjectAccessReview), cached for a minute. Namespace None:
        everywhere.
        """
        key = (verb, kind, namespace or "", subresource)
        until, answer = self._permissions.get(key, (0.0, False))
        if time.monotonic() < until:
            return answer
        path = KINDS[kind]
        attributes = {"verb": verb, "group": path.group, "resource": path.plural, "subresource": subresource}
        attributes |= {"namespace": namespace} if namespace else {}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
        review_object = await self.create({**review, "spec": {"resourceAttributes": attributes}})
        answer = _object(review_object.get("status")).get("allowed") is True
        self._permissions[key] = (time.monotonic() + _PERMISSION_SECONDS, answer)
        return answer

    def forget_permissions(self) -> None:
        """Drop cached permissions, so that can() asks again."""
        self._permissions.clear()
        self.has_shared_claims = False

    async def group_versions(self, group: str) -> tuple[str, ...]:
        """Return the versions of an API group that this server serves, the preferred one first; empty if
        unknown.
        """
        if group not in self._groups:
            try:
                answer = _object(await self.get_json(f"/apis/{group}"))
            except ApiError as error:
                if not error.is_not_found:
                    raise
                answer = {"versions": ()}
            if "versions" not in answer:  # it would look like a group that is not served
                raise not_understood(RequestInfo("GET", f"/apis/{group}"), "an API group")
            first = _object(answer.get("preferredVersion")).get("version")
            names = [str(_object(version).get("version", "")) for version in answer.get("versions") or []]
            # Cached for the life of the client: groups only change when the cluster is upgraded.
            self._groups[group] = tuple(sorted(filter(None, names), key=lambda name: name != first))
        return self._groups[group]

    async def visible_namespaces(self, kind: str) -> tuple[str | None, ...]:
        """Return the namespaces in which to list a kind: the user's, (None,) for all, or the context's own."""
        return self.namespaces or ((None,) if await self.may_list_all(kind, ("list",)) else (self.namespace,))

    async def may_list_all(self, kind: str, verbs: tuple[str, ...] = ("list", "watch")) -> bool:
        """Return True if all objects of a kind may be listed and watched."""
        try:
            return all([await self.can(verb, kind, None) for verb in verbs])
        except ApiError as error:
            if not (error.is_forbidden or error.is_not_found or error.status >= 500):
                raise
        # Some servers forbid access reviews, and an admission webhook that is down can fail them like everything
        # that is created: a list of one object is equivalent.
        try:
            await self.get_json(KINDS[kind].path(None), {"limit": "1"})
        except ApiError as error:
            if not error.is_forbidden:
                raise
            return False
        return True

    async def _write(
        self, method: str, path: str, body: object, query: Mapping[str, str] | None = None, content_type: str = JSON
    ) -> dict[str, Any]:
        query = {"fieldManager": FIELD_MANAGER, **(query or {})}
        answer = await self.request(method, path, query=query, body=body, content_type=content_type)
        return _object(decode_json(RequestInfo(method, path), answer))

    def _kind_of(self, manifest: Mapping[str, Any]) -> KindPath:
        return KINDS[kind_of(manifest)].at(manifest.get("apiVersion", ""))

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
    act_as: tuple[str, tuple[str, ...]] = ("", ()),
) -> Api:
    """Open a context and check that its server answers.

    Args:
        context: Empty for the current context.
        kubeconfig: Path, or several joined; None for KUBECONFIG, ~/.kube/config, or the pod's own account.
        namespaces: Restrict the client to these; empty for all that the user may list, else the context's own.
        eks_token: See make_credentials().
        act_as: User and groups to impersonate, see impersonating(); empty for the kubeconfig's.

    Raises:
        ConfigError: The context does not exist, or its files cannot be used.
        ApiError: The server does not respond or refuses the login.
    """
    access = impersonating(load_access(context, kubeconfig), *act_as)
    api = Api(access, make_credentials(access, eks_token), namespaces)
    try:
        await api.choose_encoding()
        version = _object(await api.get_json("/version"))
    except ApiError as error:
        # Hardened clusters deny /version to authenticated users; other requests may still be allowed.
        if not error.is_forbidden:
            await api.close()
            raise
    except BaseException:
        # Also on cancellation: the caller has no client yet that it could close.
        await api.close()
        raise
    else:
        api.server_version = (_number(version.get("major"), 1), _number(version.get("minor"), 20))
    return api


def _number(text: object, otherwise: int) -> int:
    digits = "".join(character for character in str(text) if character.isdigit())  # some clouds write "27+"
    return int(digits) if digits else otherwise


def _dry(dry_run: bool) -> dict[str, str]:
    return {"dryRun": "All"} if dry_run else {}


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
