"""Network policy of a run: its pods are reached by its own pods alone (networking.k8s.io/v1).

The exchange and the rendezvous prove who connects; torch's process groups, simulators and programs of users prove
nothing, and any pod of the cluster could reach them. Where no network plugin enforces policies, this one does
nothing. What still comes in: the kubelet, by which probes and port-forwards go, and Prometheus, from the namespace
of the setting ``metrics_namespace``, to the learner's status port.
"""

from __future__ import annotations

from typing import Any, Final

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.manifests.pod_parts import new_object
from l2rtui.backends.kubernetes.manifests.render import run_labels
from l2rtui.domain.plan import RunPlan
from l2rtui.domain.workload import Role
from runtime.base.contract import DATA_PORT

KIND: Final = "NetworkPolicy"
STATUS_PORT: Final = DATA_PORT + 2
"""Port of ``/metrics`` where a spec lets the learner's status server listen to others (``L2R_STATUS``)."""
_NAMESPACE: Final = "kubernetes.io/metadata.name"
"""Label of each namespace with its name, set by the API server since Kubernetes 1.21."""
_LISTENING: Final = frozenset({Role.LEARNER, Role.RENDEZVOUS, Role.PS})


def needs_policy(run: RunPlan) -> bool:
    """Return whether processes of a run listen to each other.

    Imported objects get no policy: nobody knows who is to reach them, and they may bring their own.
    """
    return any(not item.template and (item.role in _LISTENING or item.port) for item in run.spec.sets)


def network_policy(run: RunPlan, namespace: str, metrics_namespace: str = "") -> dict[str, Any]:
    """Return the policy of a run.

    Args:
        metrics_namespace: Namespace whose pods may read the learner's status port; empty for none.
    """
    own = {"matchLabels": {labels.RUN_ID: run.uid}}
    ingress: list[dict[str, Any]] = [{"from": [{"podSelector": own}]}]
    if metrics_namespace:
        ingress.append(
            {
                "from": [{"namespaceSelector": {"matchLabels": {_NAMESPACE: metrics_namespace}}}],
                "ports": [{"protocol": "TCP", "port": STATUS_PORT}],
            }
        )
    meta = {"namespace": namespace, "labels": run_labels(run)}
    spec = {"podSelector": own, "policyTypes": ["Ingress"], "ingress": ingress}
    return new_object(KIND, labels.run_object(run.spec.name), meta=meta, spec=spec)
