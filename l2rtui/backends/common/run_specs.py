"""Specs of runs as every backend reads them: stored text, training settings, and variables of processes.

The variables are addresses of the other processes, limits and alerts. Backends provide addresses; names and
formats are defined here: our own, TensorFlow's ``TF_CONFIG``, and the plain variables of the Helm chart
``distributed-tensorflow``. The learner's endpoint is not included: each backend sets it.

Training settings are checked by the runtime's own rules, which need no runtime to be installed. The services give
every backend the same findings; where there are none, the local one asks the installed runtime.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from l2rtui.domain.plan import PodPlan, gpu_count
from l2rtui.domain.preflight import Finding, Severity
from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec, pod_name
from runtime.base import bounded_json, contract, environments
from runtime.base.alert_rules import rules_text


def decode(text: bytes | str) -> RunSpec:
    """Decode a stored spec and check that its JSON text fields can be decoded. Raises
    bounded_json.UndecodableError.
    """
    spec = bounded_json.decode(text, RunSpec)
    trial = (spec.trial.values,) if spec.trial is not None else ()
    for part in spec.sets:
        _check_texts((part.template, *part.pod.templates), (dict, list))
    _check_texts((spec.train, *trial), dict)
    _check_texts((spec.extras,), list)
    return spec


def _check_texts(texts: tuple[str, ...], kind: type | tuple[type, ...]) -> None:
    for text in texts:
        if text and not isinstance(bounded_json.loads(text), kind):
            raise bounded_json.UndecodableError("a part of it is not of its type")


Address = Callable[[SetSpec, int], str]
"""Address of one replica of a set."""


def joined_variables(run: RunSpec, set_spec: SetSpec) -> dict[str, str]:
    """Return the number of processes that join a learner or a parameter server; empty for any other process."""
    if set_spec.role not in {Role.LEARNER, Role.PS}:
        return {}
    joiners = sum(other.replicas for other in run.sets if other.role in {Role.WORKER, Role.EVALUATOR})
    return {contract.ENV_JOINERS: str(joiners)}


def has_peers(run: RunSpec) -> bool:
    """Return True if processes of this run find each other by name."""
    return any(set_spec.port for set_spec in run.sets)


def peer_variables(
    run: RunSpec, set_spec: SetSpec, index: int, *, tcp: Address, endpoint: Address | None = None, ip: str = ""
) -> dict[str, str]:
    """Return the variables of one process; empty in a run without peers.

    Args:
        endpoint: Returns ``tcp://HOST:PORT`` or ``ipc:///DIR`` of a replica. tcp: Returns its ``HOST:PORT``.
        ip: Address of this process; empty if the backend sets its variable in another way.
    """
    if not has_peers(run):
        return {}

    def tcp_endpoint(other: SetSpec, number: int) -> str:
        return f"tcp://{tcp(other, number)}"

    address = endpoint or tcp_endpoint
    listening = [other for other in run.sets if other.port]
    peers = {other.name: [address(other, number) for number in range(other.replicas)] for other in listening}
    variables = {contract.ENV_PEERS: json.dumps(peers, separators=(",", ":"))}
    if ip:
        variables[contract.ENV_POD_IP] = ip
    # TensorFlow's TFConfigClusterResolver reads TF_CONFIG; the scripts of the chart read the plain variables.
    if run.kind is Kind.PARAMETER_SERVER:
        hosts = {str(other.role): [tcp(other, number) for number in range(other.replicas)] for other in listening}
        variables |= _tensorflow(hosts, set_spec, index)
        variables["POD_NAME"] = pod_name(run.name, set_spec.name, index)  # read by the chart's scripts
        variables |= _hyperparameters(bounded_json.loads(run.train))
    return variables


def _tensorflow(hosts: Mapping[str, list[str]], set_spec: SetSpec, index: int) -> dict[str, str]:
    task = {"type": str(set_spec.role), "index": index}
    return {
        "TF_CONFIG": json.dumps({"cluster": hosts, "task": task}, separators=(",", ":")),
        "JOB_NAME": str(set_spec.role),
        "TASK_INDEX": str(index),
        "PS_HOSTS": ",".join(hosts.get(Role.PS, ())),
        "WORKER_HOSTS": ",".join(hosts.get(Role.WORKER, ())),
    }


def _hyperparameters(train: Mapping[str, object]) -> dict[str, str]:
    """Return each scalar training setting as a variable in capitals: ``LEARNING_RATE``."""
    return {
        name.upper(): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in train.items()
        if isinstance(value, str | int | float) and name.isidentifier()
    }


_GRACES = 2.0
"""Number of grace periods by which the supervisor's deadline is later than the learner's: the learner ends itself
and writes a checkpoint.
"""


def watch_variables(spec: RunSpec, part: SetSpec, pods: Sequence[PodPlan]) -> dict[str, str]:
    """Return limits, alerts and checks of a learner as variables; empty for other processes.

    Args:
        pods: Pods of the whole run, for its number of GPUs.
    """
    if part.role is not Role.LEARNER:
        return {}
    limits = spec.limits.text(gpu_count(pods)) if spec.limits is not None else ""
    is_alike = all(_surroundings(other) == _surroundings(part) for other in spec.sets if other.role is Role.WORKER)
    values = {
        contract.ENV_LIMITS: limits,
        contract.ENV_ALERTS: rules_text(spec.alerts),
        contract.ENV_TRY_ENVIRONMENT: "" if is_alike else "0",
    }
    return {name: value for name, value in values.items() if value}


def _surroundings(part: SetSpec) -> tuple[object, ...]:
    """Return the settings of a set that its environment can depend on."""
    pod = part.pod
    return part.env, part.template, pod.image, pod.secrets, pod.mounts, pod.templates, pod.security, pod.user


def backstop_seconds(spec: RunSpec, pods: Sequence[PodPlan]) -> float | None:
    """Return the seconds after which the supervisor of a run ends it; None for a run without such a limit.

    A learner ends the run on its own, so the supervisor waits longer and only ends a hung learner.
    """
    deadline = spec.limits.deadline_seconds(gpu_count(pods)) if spec.limits is not None else None
    if deadline is None:
        return None
    learner = next((part for part in spec.sets if part.role is Role.LEARNER), None)
    return deadline + (_GRACES * learner.grace_seconds if learner is not None else 0.0)


RUNTIME_COMMAND: Final = "l2r-runtime"
HINT: Final = "`l2rtui explain train` names all settings."
_ROLES: Final = ("learner", "worker", "evaluator")
"""Subcommands of the runtime that read the training settings of reinforcement learning."""


def train_settings(spec: RunSpec) -> Mapping[str, Any] | None:
    """Return the settings of a run with processes of the runtime; None for other runs and for invalid text."""
    commands = (set_spec.command[:2] for set_spec in spec.sets if not set_spec.template)
    if not any(
        len(command) == 2 and command[0] == RUNTIME_COMMAND and command[1] in _ROLES for command in commands
    ):
        return None
    try:
        settings = bounded_json.loads(spec.train or "{}")
    except ValueError:  # the runtime refuses it with its own sentence
        return None
    return settings if isinstance(settings, dict) else None


def settings_findings(spec: RunSpec) -> tuple[Finding, ...]:
    """Return a refusal for each mistake in a run's training settings."""
    settings = train_settings(spec)
    if settings is None:
        return ()
    from runtime.base.training_rules import mistakes_in  # 50 ms, which the first frame has no use for

    name = settings.get("environment", environments.DEFAULT)
    # An environment that does not exist has a finding of its own; its data says nothing about the method.
    is_missing = isinstance(name, str) and not environments.is_possible(name)
    checked = {key: value for key, value in settings.items() if key != "environment"} if is_missing else settings
    return tuple(
        Finding(Severity.REFUSAL, "train", f"train of {spec.name}: {sentence}", HINT)
        for sentence in mistakes_in(checked)
    )
