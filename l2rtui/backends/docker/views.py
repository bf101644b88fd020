"""What the Engine says of networks and containers → rows of a snapshot (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from l2rtui.backends.docker import labels
from l2rtui.domain.ledger import Claim
from l2rtui.domain.plan import PodPlan
from l2rtui.domain.snapshot import PodView, RunView, SetView
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import RunSpec
from l2rtui.errors import BackendError

_NEVER = "0001-01-01"
_OUT_OF_MEMORY = "OOMKilled"


def seconds_of(text: str) -> float:
    """Seconds since the epoch of one of the Engine's times (RFC 3339, nanoseconds)."""
    return nanoseconds_of(text) / 1e9


def nanoseconds_of(text: str) -> int:
    """Nanoseconds since the epoch; a float would merge lines that were written within a tenth of a microsecond."""
    head, _, rest = text.partition(".")
    digits = rest.rstrip("Z").partition("+")[0] if rest else ""
    moment = datetime.fromisoformat(head.rstrip("Z").partition("+")[0]).replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1_000_000_000 + int(digits[:9].ljust(9, "0") or 0)


def spec_of(network: Mapping[str, Any]) -> RunSpec:
    """The spec on a run's network.

    Raises:
        BackendError: it cannot be read.
    """
    try:
        return msgspec.json.decode(network["Labels"][labels.RECORD], type=RunSpec)
    except (KeyError, msgspec.DecodeError) as error:
        name = network["Labels"].get(labels.RUN, network["Name"])
        raise BackendError(
            f"The record of {name} cannot be read.", f"`l2rtui destroy {name}` removes it."
        ) from error


def plan_of(container: Mapping[str, Any]) -> PodPlan:
    """The plan on a container.

    Raises:
        BackendError: it cannot be read.
    """
    try:
        return msgspec.json.decode(container["Config"]["Labels"][labels.POD], type=PodPlan)
    except (KeyError, msgspec.DecodeError) as error:
        raise BackendError(f"The record of the container {name_of(container)} cannot be read.") from error


def name_of(container: Mapping[str, Any]) -> str:
    """Name of a container as people write it."""
    return str(container["Name"]).removeprefix("/")


def run_view(network: Mapping[str, Any], replicas: Mapping[str, int], *, is_terminating: bool) -> RunView:
    """One run.

    Args:
        replicas: How many containers each set has: what is wanted, since none goes unless it is told to.
    """
    found = network["Labels"]
    uid, name, owner = found[labels.RUN_ID], found.get(labels.RUN, ""), found.get(labels.OWNER, "")
    created = seconds_of(network["Created"])
    try:
        spec = spec_of(network)
    except BackendError as error:
        return RunView(uid, name, name, owner=owner, created=created, reason="Corrupt", message=error.message)
    return RunView(
        uid,
        name,
        spec.experiment,
        owner=owner,
        seed=spec.seed,
        kind=spec.kind,
        created=created,
        sets=tuple(SetView(one.name, one.role, replicas.get(one.name, 0)) for one in spec.sets),
        is_terminating=is_terminating,
    )


def pod_view(container: Mapping[str, Any], node: str, seed: int, *, is_terminating: bool) -> PodView:
    """One container of a run."""
    found, state = container["Config"]["Labels"], container["State"]
    plan = plan_of(container)
    phase, reason, message = _phase(container)
    # While one runs, the Engine has forgotten how the last one ended.
    has_ended = state["Status"] != "running" and not state["FinishedAt"].startswith(_NEVER)
    code = state["ExitCode"] if has_ended else None
    return PodView(
        uid=container["Id"],
        name=name_of(container),
        node=node,
        owner=found.get(labels.OWNER, ""),
        run=found[labels.RUN],
        set_name=plan.set_spec.name,
        role=plan.set_spec.role,
        index=plan.index,
        seed=seed,
        claims=tuple(Claim(slot.gpu, slot.slot) for slot in plan.seat.slots),
        phase=phase,
        reason=reason,
        message=message,
        ready=state["Status"] == "running",
        restarts=int(container.get("RestartCount", 0)),
        created=seconds_of(container["Created"]),
        started=None if state["StartedAt"].startswith(_NEVER) else seconds_of(state["StartedAt"]),
        exit_code=code,
        is_terminating=is_terminating or state["Status"] in ("removing", "dead"),
        pid=state.get("Pid") or None,
    )


def _phase(container: Mapping[str, Any]) -> tuple[Phase, str, str]:
    """Phase, reason and sentence, in Kubernetes' words."""
    state = container["State"]
    error = str(state.get("Error") or "")
    match state["Status"]:
        case "running":
            return Phase.RUNNING, "", ""
        case "created":
            return (Phase.FAILED, "StartError", error) if error else (Phase.PENDING, "", "")
        case "restarting":
            return Phase.RUNNING, "CrashLoopBackOff", error
        case "paused":
            return Phase.RUNNING, "Paused", "somebody has paused it: `docker unpause` lets it go on"
        case "exited":
            if error:
                return Phase.FAILED, "StartError", error
            if state.get("OOMKilled"):
                return Phase.FAILED, _OUT_OF_MEMORY, "out of memory"
            return (Phase.SUCCEEDED, "", "") if state["ExitCode"] == 0 else (Phase.FAILED, "Error", "")
        case _:
            return Phase.UNKNOWN, "", str(state["Status"])


def encoded(spec: RunSpec) -> str:
    """A spec for a label."""
    return msgspec.json.encode(spec).decode()
