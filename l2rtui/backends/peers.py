"""What the processes of a run are told of each other beside where the learner is: variables, the same everywhere.

Backends give addresses; which variable holds them, and in whose words, is written here once: our own, TensorFlow's
``TF_CONFIG``, and the plain ones of the Helm chart ``distributed-tensorflow``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec, pod_name
from runtime import contract

Address = Callable[[SetSpec, int], str]
"""Address of one replica of a set."""


def joined_variables(run: RunSpec, one: SetSpec) -> dict[str, str]:
    """What a learner or a parameter server is told of those that join it; nothing for any other process."""
    if one.role not in {Role.LEARNER, Role.PS}:
        return {}
    joiners = sum(other.replicas for other in run.sets if other.role in {Role.WORKER, Role.EVALUATOR})
    return {contract.ENV_JOINERS: str(joiners)}


def has_peers(run: RunSpec) -> bool:
    """Whether processes of this run are found by name."""
    return any(one.port for one in run.sets)


def peer_variables(
    run: RunSpec, one: SetSpec, index: int, *, endpoint: Address, tcp: Address, ip: str = ""
) -> dict[str, str]:
    """What a process is told of the others; nothing in a run without peers.

    Args:
        endpoint: ``tcp://HOST:PORT`` or ``ipc:///DIR`` of a replica. tcp: its ``HOST:PORT``.
        ip: Address of this process; empty where the backend tells it in another way.
    """
    if not has_peers(run):
        return {}
    listening = [other for other in run.sets if other.port]
    peers = {other.name: [endpoint(other, number) for number in range(other.replicas)] for other in listening}
    found = {contract.ENV_PEERS: json.dumps(peers, separators=(",", ":"))}
    if ip:
        found[contract.ENV_POD_IP] = ip
    if run.kind is Kind.PARAMETER_SERVER:
        hosts = {str(other.role): [tcp(other, number) for number in range(other.replicas)] for other in listening}
        found |= _tensorflow(hosts, one, index) | {"POD_NAME": pod_name(run.name, one.name, index)}
        found |= _hyperparameters(json.loads(run.train))
    return found


def _tensorflow(hosts: Mapping[str, list[str]], one: SetSpec, index: int) -> dict[str, str]:
    task = {"type": str(one.role), "index": index}
    return {
        "TF_CONFIG": json.dumps({"cluster": hosts, "task": task}, separators=(",", ":")),
        "JOB_NAME": str(one.role),
        "TASK_INDEX": str(index),
        "PS_HOSTS": ",".join(hosts.get(Role.PS, ())),
        "WORKER_HOSTS": ",".join(hosts.get(Role.WORKER, ())),
    }


def _hyperparameters(train: Mapping[str, object]) -> dict[str, str]:
    """Each plain training setting as a variable in capitals: ``LEARNING_RATE``."""
    return {
        name.upper(): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in train.items()
        if isinstance(value, str | int | float) and name.isidentifier()
    }
