"""Where processes of a run find each other on this machine: folders of sockets, or ports of the loopback device."""

from __future__ import annotations

from l2rtui.backends.local.records import RunRecord
from l2rtui.backends.peers import has_peers, peer_variables
from l2rtui.domain.plan import PodPlan, RunPlan
from l2rtui.domain.workload import Role, SetSpec, pod_name

LOOPBACK = "127.0.0.1"


def socket_folders(run: RunPlan) -> list[str]:
    """Folders of sockets that the run's replicas listen in, within that of the run."""
    found = [one for one in run.spec.sets if one.port and one.role is not Role.RENDEZVOUS]
    return [f"{one.name}-{index}" for one in found for index in range(one.replicas)]


def variables(record: RunRecord, plan: PodPlan) -> dict[str, str]:
    """What a process is told of the others."""
    if not has_peers(record.spec):
        return {}

    def tcp(one: SetSpec, index: int) -> str:
        return f"{LOOPBACK}:{record.ports.get(pod_name(record.spec.name, one.name, index), one.port)}"

    def endpoint(one: SetSpec, index: int) -> str:
        # torch's rendezvous speaks TCP alone.
        if one.role is Role.RENDEZVOUS:
            return f"tcp://{tcp(one, index)}"
        return f"ipc://{record.socket_dir}/{one.name}-{index}"

    return peer_variables(record.spec, plan.set_spec, plan.index, endpoint=endpoint, tcp=tcp, ip=LOOPBACK)
