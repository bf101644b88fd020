"""Names under which the pods of a run find each other: those of stable replicas, by a headless Service."""

from __future__ import annotations

from typing import Any, Final

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.peers import has_peers, peer_variables
from l2rtui.domain.plan import PodPlan, RunPlan
from l2rtui.domain.workload import RunSpec, SetSpec, pod_name
from runtime import contract

_POD_IP: Final = {"name": contract.ENV_POD_IP, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def service(run: RunPlan) -> list[dict[str, Any]]:
    """The headless Service of a run in which processes are found by name; nothing for others."""
    ports = sorted({one.port for one in run.spec.sets if one.port})
    if not ports:
        return []
    spec = {
        "clusterIP": "None",
        "selector": {labels.RUN_ID: run.uid, labels.STABLE: "true"},
        "ports": [{"name": f"port-{port}", "port": port, "protocol": "TCP", "targetPort": port} for port in ports],
        # A process may be asked for before it reports ready.
        "publishNotReadyAddresses": True,
    }
    name = labels.peers_service(run.spec.name)
    return [{"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}]


def hostname(run: RunPlan, pod: PodPlan) -> dict[str, str]:
    """What gives the pod of a stable replica its name under the Service."""
    if not pod.set_spec.port:
        return {}
    return {"hostname": pod.name, "subdomain": labels.peers_service(run.spec.name)}


def variables(run: RunPlan, pod: PodPlan) -> dict[str, str]:
    """What a pod is told of the others."""

    def tcp(one: SetSpec, index: int) -> str:
        host = f"{pod_name(run.spec.name, one.name, index)}.{labels.peers_service(run.spec.name)}"
        return f"{host}:{one.port}"

    def endpoint(one: SetSpec, index: int) -> str:
        return f"tcp://{tcp(one, index)}"

    return peer_variables(run.spec, pod.set_spec, pod.index, endpoint=endpoint, tcp=tcp)


def own_address(spec: RunSpec) -> list[dict[str, Any]]:
    """The variable with the pod's own address, where it has peers."""
    return [_POD_IP] if has_peers(spec) else []
