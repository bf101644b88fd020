"""Addresses of a run's processes on this machine: folders of sockets, or ports of the loopback device."""

from __future__ import annotations

from l2rtui.backends.common.run_variables import peer_variables
from l2rtui.backends.local.state_files import RunRecord
from l2rtui.domain.plan import PodPlan, RunPlan
from l2rtui.domain.workload import Role, SetSpec, pod_name

LOOPBACK = "127.0.0.1"


def socket_folders(run: RunPlan) -> list[str]:
    """Return the names of the folders, within the run's socket folder, in which its replicas listen."""
    listening = [spec for spec in run.spec.sets if spec.port and spec.role is not Role.RENDEZVOUS]
    return [f"{spec.name}-{index}" for spec in listening for index in range(spec.replicas)]


def variables(record: RunRecord, plan: PodPlan) -> dict[str, str]:
    """Return the variables that give a process the addresses of the others."""

    def tcp(spec: SetSpec, index: int) -> str:
        return f"{LOOPBACK}:{record.ports.get(pod_name(record.spec.name, spec.name, index), spec.port)}"

    def endpoint(spec: SetSpec, index: int) -> str:
        # torch's rendezvous only supports TCP.
        if spec.role is Role.RENDEZVOUS:
            return f"tcp://{tcp(spec, index)}"
        return f"ipc://{record.socket_dir}/{spec.name}-{index}"

    return peer_variables(record.spec, plan.set_spec, plan.index, endpoint=endpoint, tcp=tcp, ip=LOOPBACK)
