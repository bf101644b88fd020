"""A ServiceAccount with the researcher's Role of manifests/rbac.yaml, complete or without one of its rights."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from l2rtui.backends.kubernetes.api.resources import KINDS
from l2rtui.backends.kubernetes.rights import Right
from tests.cluster.conftest import ROOT, eventually, kubectl, kubectl_json

RESEARCHER: Final = "l2rtui-researcher"
ACCOUNT: Final = "researcher"
_RBAC: Final = (ROOT / "manifests" / "rbac.yaml").read_text()


def grant(namespace: str, role: str, kinds: tuple[str, ...]) -> None:
    """Apply the parts of manifests/rbac.yaml of these kinds that concern one of its Roles."""
    items = _parts(namespace, role, kinds)
    assert len(items) == len(kinds)
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    kubectl("apply", "-f", "-", stdin=text.replace("l2rtui-ledger", f"l-{namespace}"))


def service_account(namespace: str, folder: Path) -> str:
    """Create the ServiceAccount, bind it to the Role, and return the path of its kubeconfig."""
    kubectl("-n", namespace, "create", "serviceaccount", ACCOUNT)
    grant(namespace, RESEARCHER, ("Role",))
    words = ("--role", RESEARCHER, "--serviceaccount", f"{namespace}:{ACCOUNT}")
    kubectl("-n", namespace, "create", "rolebinding", ACCOUNT, *words)
    config = kubectl_json("config", "view", "--raw", "--minify")
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{ACCOUNT}/token"
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": 3600},
    }
    token = json.loads(kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(request)))["status"]["token"]
    (user,) = config["users"]
    user["user"] = {"token": token}
    file = folder / "account.kubeconfig"
    file.write_text(json.dumps(config))
    file.chmod(0o600)
    return str(file)


@contextlib.contextmanager
def without(namespace: str, *rights: Right) -> Iterator[None]:
    """Remove some rights from the Role; the server applies the change at entry and at exit."""
    _apply(namespace, *rights)
    eventually(f"no right to {rights[-1]}", lambda: not _may(namespace, rights[-1]))
    yield
    _apply(namespace)
    eventually(f"the right to {rights[-1]}", lambda: _may(namespace, rights[-1]))


def _apply(namespace: str, *missing: Right) -> None:
    (role,) = _parts(namespace, RESEARCHER, ("Role",))
    role["rules"] = [rule for rule in _single_rules(role) if not any(_is_about(rule, right) for right in missing)]
    kubectl("replace", "-f", "-", stdin=json.dumps(role))


def _parts(namespace: str, role: str, kinds: tuple[str, ...]) -> list[dict[str, Any]]:
    text = _RBAC.replace("NAMESPACE", namespace).replace("USER", ACCOUNT)
    return [item for item in yaml.safe_load_all(text) if item["kind"] in kinds and role in json.dumps(item)]


def _single_rules(role: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the rules with one resource and one verb each, so that one right can be left out."""
    for rule in role["rules"]:
        for resource, verb in itertools.product(rule["resources"], rule["verbs"]):
            yield rule | {"resources": [resource], "verbs": [verb]}


def _is_about(rule: dict[str, Any], right: Right) -> bool:
    wanted = ([KINDS[right.kind].group], [right.resource], [right.verb])
    return (rule["apiGroups"], rule["resources"], rule["verbs"]) == wanted


def _may(namespace: str, right: Right) -> bool:
    group = KINDS[right.kind].group
    kind = f"{KINDS[right.kind].plural}{f'.{group}' if group else ''}"
    words = ["auth", "can-i", right.verb, kind, "--as", f"system:serviceaccount:{namespace}:{ACCOUNT}"]
    words += ["--subresource", right.subresource] if right.subresource else []
    return kubectl("-n", namespace, *words, check=False).strip().endswith("yes")
