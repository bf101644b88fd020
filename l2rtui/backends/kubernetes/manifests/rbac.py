"""Roles for viewers and researchers, generated from the table of permissions: ``manifests/rbac.yaml``.

python -m l2rtui.backends.kubernetes.manifests.rbac > manifests/rbac.yaml
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.api.resources import KINDS
from l2rtui.backends.kubernetes.rights import TABLE, RightRow, RoleScope, rows_of

_WIDTH: Final = 112
_HEAD: Final = """\
# What people need; nothing here is cluster-admin. Written by `make rbac` from l2rtui/backends/kubernetes/rights.py,
# which is compared with the calls of the program. A comment names the verbs of l2rtui that need a rule (`view`
# stands for every list and the app). An administrator applies it once:
#   sed 's/NAMESPACE/l2r/; s/USER/anna/' manifests/rbac.yaml | kubectl apply -f -
# Give each person, or each group that trusts itself, a namespace: the names of secrets can be guessed (l2r-RUN),
# and whoever may read secrets by name, or create pods, in a namespace can read the tokens of all runs there.
"""
_VIEWER: Final = """\
# 1. A viewer sees the runs of a namespace and their logs, changes nothing, and reads no secret:
#   kubectl -n l2r create rolebinding l2rtui-viewer --role l2rtui-viewer --user ben
"""
_RESEARCHER: Final = """\
# 2. A researcher launches, scales, kills and destroys runs in one namespace. Secrets are read by name, not listed.
"""
_CLAIMS: Final = """\
# 3. The namespace in which all users claim and reserve slots: launches from two namespaces never get the same one.
#    `l2rtui cluster prepare` makes the same. Against users without this Role a launch looks at all pods once more
#    after it has made its own, which needs the ledger. Where the setting claims_namespace names another namespace,
#    the Role belongs there.
apiVersion: v1
kind: Namespace
metadata: {name: CLAIMS}
"""
_CLUSTER: Final = """\
# 4. Optional, and what makes the slot ledger whole: reading nodes, and the pods of all namespaces. Without it a
#    slot that the researcher cannot see reads unknown, never free.
"""
_REACH: Final = (
    "Off, since it reaches every port of every pod by HTTP GET. A Role with it in the exporter's namespace will do:"
)
_GROUP: Final = "rbac.authorization.k8s.io"
# The order of verbs in Kubernetes' own Roles.
_VERBS: Final = ("get", "list", "watch", "create", "patch", "update", "delete")


class _Grant(Struct, frozen=True):
    """All permissions of a Role on one resource.

    Attributes:
        notes: Reasons for some of the permissions, and for an optional resource, the effect of its absence.
    """

    resource: str
    group: str
    verbs: tuple[str, ...]
    uses: tuple[str, ...]
    notes: tuple[str, ...]
    name: str
    is_off: bool


def manifest() -> str:
    """Return the text of ``manifests/rbac.yaml``."""
    viewer, researcher = rows_of(RoleScope.VIEWER), rows_of(RoleScope.VIEWER, RoleScope.RESEARCHER)
    parts = (
        _HEAD + _VIEWER + _role("Role", "l2rtui-viewer", viewer),
        _RESEARCHER + _role("Role", "l2rtui-researcher", researcher),
        _binding("Role", "l2rtui-researcher", "l2rtui-researcher"),
        claims_manifest(),
        _CLUSTER + _role("ClusterRole", "l2rtui-ledger", rows_of(RoleScope.CLUSTER)),
        _binding("ClusterRole", "l2rtui-ledger", "l2rtui-ledger-USER"),
    )
    return "---\n".join(parts)


def claims_manifest(subject: str = "USER", kind: str = "User", namespace: str = "") -> str:
    """Return the text of the shared namespace of claims, and the rights of a user or group there.

    Args:
        namespace: The one that the settings name; empty for the usual one.
    """
    namespace, name = namespace or labels.CLAIMS_NAMESPACE, "l2rtui-claims"
    rows = [row for row in TABLE if _concerns_claims(row)]
    parts = (
        _CLAIMS.replace("CLAIMS", namespace),
        _role("Role", name, rows, namespace),
        _binding("Role", name, f"{name}-{subject.replace(':', '-')}", namespace, f"{kind}, name: '{subject}'"),
    )
    return "---\n".join(parts)


def _concerns_claims(row: RightRow) -> bool:
    is_reservation = (
        row.right.kind == "ConfigMap" and not row.right.subresource and {"view", "reserve"} & {*row.uses}
    )
    return row.right.kind in ("Lease", "Namespace") or bool(is_reservation)


def _role(kind: str, name: str, rows: Iterable[RightRow], namespace: str = "NAMESPACE") -> str:
    text = f"apiVersion: {_GROUP}/v1\nkind: {kind}\nmetadata: {_metadata(kind, name, namespace)}\nrules:\n"
    return text + "".join(_rules(_grants(rows)))


def _binding(
    kind: str, role: str, name: str, namespace: str = "NAMESPACE", subject: str = "User, name: USER"
) -> str:
    return (
        f"apiVersion: {_GROUP}/v1\nkind: {kind}Binding\nmetadata: {_metadata(kind, name, namespace)}\n"
        f"roleRef: {{apiGroup: {_GROUP}, kind: {kind}, name: {role}}}\n"
        f"subjects: [{{apiGroup: {_GROUP}, kind: {subject}}}]\n"
    )


def _metadata(kind: str, name: str, namespace: str) -> str:
    return f"{{name: {name}, namespace: {namespace}}}" if kind == "Role" else f"{{name: {name}}}"


def _grants(rows: Iterable[RightRow]) -> Iterator[_Grant]:
    grouped: dict[tuple[str, str], list[RightRow]] = {}
    for row in rows:
        grouped.setdefault((row.right.resource, KINDS[row.right.kind].group), []).append(row)
    for (resource, group), members in grouped.items():
        # A rule confined to one object must not widen another rule of the same resource, so it is kept separate.
        for name, is_off in dict.fromkeys((row.name, row.is_off) for row in members):
            same = [row for row in members if (row.name, row.is_off) == (name, is_off)]
            verbs = tuple(verb for verb in _VERBS if verb in {row.right.verb for row in same})
            uses = tuple(dict.fromkeys(use for row in same for use in row.uses))
            yield _Grant(resource, group, verbs, uses, _notes(same), name, is_off)


def _notes(rows: Sequence[RightRow]) -> tuple[str, ...]:
    """Return the reasons of rows, and the effect of their absence if no command needs any of them."""
    notes = [f"{row.right.verb}: {row.reason}" for row in rows if row.reason]
    if all(row.is_optional for row in rows):
        notes += [f"for {row.only_for}" for row in rows if row.only_for]
        notes += [f"without: {row.without}" for row in rows if row.without]
    return tuple(dict.fromkeys(notes))


def _rules(grants: Iterable[_Grant]) -> Iterator[str]:
    """Yield the text of the rules: resources of one group with the same verbs and notes share a rule."""
    merged: dict[tuple[object, ...], list[_Grant]] = {}
    for grant in grants:
        key = (grant.group, grant.verbs, grant.notes, grant.name, grant.is_off)
        merged.setdefault(key, []).append(grant)
    for members in merged.values():
        yield _rule(members)


def _rule(members: Sequence[_Grant]) -> str:
    first = members[0]
    uses = ", ".join(dict.fromkeys(use for member in members for use in member.uses))
    notes = [uses, *first.notes, *([_REACH] if first.is_off else [])]
    comment = [f"# {line}" for note in notes for line in textwrap.wrap(note, _WIDTH)]
    rule = [
        f"- apiGroups: [{first.group or chr(34) * 2}]",
        f"  resources: [{', '.join(member.resource for member in members)}]",
        *([f"  resourceNames: [{first.name}]"] if first.name else []),
        f"  verbs: [{', '.join(first.verbs)}]",
    ]
    off = "# " if first.is_off else ""
    return "".join(f"  {line}\n" for line in (*comment, *(f"{off}{line}" for line in rule)))


if __name__ == "__main__":
    sys.stdout.write(manifest())
