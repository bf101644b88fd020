"""DNS names of stable replicas: a headless Service, and the variables that name the peers of a pod."""

from __future__ import annotations

from typing import Any, Final

from l2rtui.backends.common.peer_env import has_peers, peer_variables
from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.manifests.pod_parts import new_object
from l2rtui.domain.plan import PodPlan, RunPlan
from l2rtui.domain.workload import RunSpec, SetSpec, pod_name
from runtime.base import contract

_POD_IP: Final = {"name": contract.ENV_POD_IP, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def service(run: RunPlan) -> list[dict[str, Any]]:
    """Return the headless Service of a run whose processes are found by name; empty for other runs."""
    ports = sorted({set_spec.port for set_spec in run.spec.sets if set_spec.port})
    if not ports:
        return []
    spec = {
        "clusterIP": "None",
        "selector": {labels.RUN_ID: run.uid, labels.STABLE: "true"},
        "ports": [{"name": f"port-{port}", "port": port, "protocol": "TCP", "targetPort": port} for port in ports],
        # Peers connect while a process is still starting, before it reports ready.
        "publishNotReadyAddresses": True,
    }
    return [new_object("Service", labels.peers_service(run.spec.name), spec=spec)]


def hostname(run: RunPlan, pod: PodPlan) -> dict[str, str]:
    """Return the fields that give the pod of a stable replica its DNS name under the Service."""
    if not pod.set_spec.port:
        return {}
    return {"hostname": pod.name, "subdomain": labels.peers_service(run.spec.name)}


def variables(run: RunPlan, pod: PodPlan) -> dict[str, str]:
    """Return the variables that name the peers of a pod."""

    def tcp(set_spec: SetSpec, index: int) -> str:
        # Short form: the pod's search path adds namespace and cluster domain.
        host = f"{pod_name(run.spec.name, set_spec.name, index)}.{labels.peers_service(run.spec.name)}"
        return f"{host}:{set_spec.port}"

    return peer_variables(run.spec, pod.set_spec, pod.index, tcp=tcp)


def own_address(spec: RunSpec) -> list[dict[str, Any]]:
    """Return the variable with the pod's own address, if it has peers."""
    return [_POD_IP] if has_peers(spec) else []
