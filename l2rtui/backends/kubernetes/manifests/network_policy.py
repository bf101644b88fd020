"""Network policy of a run: only its own pods can reach its pods (networking.k8s.io/v1).

The exchange and the rendezvous authenticate their peers. torch's process groups, simulators and users' programs do
not, and any pod of the cluster could reach them. If no network plugin enforces policies, this one has no effect.
Still allowed are the kubelet, which probes and port-forwards use, and Prometheus in the namespace of the setting
``metrics_namespace``, to the learner's status port.
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
"""Port of ``/metrics`` if a spec lets the learner's status server accept remote connections (``L2R_STATUS``)."""
_NAMESPACE: Final = "kubernetes.io/metadata.name"
"""Label of each namespace with its name, set by the API server since Kubernetes 1.21."""
_LISTENING: Final = frozenset({Role.LEARNER, Role.RENDEZVOUS, Role.PS})


def needs_policy(run: RunPlan) -> bool:
    """Return whether processes of a run accept connections from each other.

    Imported objects get no policy: their clients are unknown, and they may bring their own policy.
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
