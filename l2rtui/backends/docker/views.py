"""Rows of a snapshot from the Engine's JSON for networks and containers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from l2rtui.backends.common import stored_spec
from l2rtui.domain.history import spec_id
from l2rtui.domain.ledger import DeviceUsage
from l2rtui.domain.plan import PodPlan, RunPlan
from l2rtui.domain.snapshot import PodView, RunView, SetView
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import RunSpec
from l2rtui.errors import BackendError
from runtime.base import bounded_json

PREFIX: Final = "docker.l2rtui.io/"
"""Not `l2rtui.io/`: the containers of a kubelet on this Engine have the labels of their pods."""
RUN: Final = f"{PREFIX}run"
RUN_ID: Final = f"{PREFIX}run-id"
OWNER: Final = f"{PREFIX}owner"
RECORD: Final = f"{PREFIX}spec"
"""On the network: the spec of the run as JSON. It holds no secret, since everyone who may list networks can read
it.
"""
POD: Final = f"{PREFIX}pod"
"""On a container: its plan, JSON."""


def network_name(run: str) -> str:
    """Return the name of the network that connects the processes of a run."""
    return f"l2rtui-{run}"


def of_plan(run: RunPlan) -> dict[str, str]:
    """Return the labels of every object of a planned run."""
    return {RUN: run.spec.name, RUN_ID: run.uid, OWNER: run.owner}


def of_run(uid: str) -> dict[str, Any]:
    """Return the filter for objects of one launch."""
    return {"label": [f"{RUN_ID}={uid}"]}


ALL: Final[dict[str, Any]] = {"label": [RUN_ID]}
"""Filter for objects of any run."""


_NEVER = "0001-01-01"
_OUT_OF_MEMORY = "OOMKilled"


def seconds_of(text: str) -> float:
    """Parse a time of the Engine (RFC 3339 with nanoseconds) into seconds since the epoch."""
    return nanoseconds_of(text) / 1e9


def nanoseconds_of(text: str) -> int:
    """Parse a time of the Engine into nanoseconds since the epoch."""
    # Not as a float: it would merge log lines that were written within a tenth of a microsecond. And not by
    # datetime.fromisoformat, which drops digits beyond microseconds.
    head, _, rest = text.partition(".")
    digits = rest.rstrip("Z").partition("+")[0] if rest else ""
    moment = datetime.fromisoformat(head.rstrip("Z").partition("+")[0]).replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1_000_000_000 + int(digits[:9].ljust(9, "0") or 0)


def spec_of(network: Mapping[str, Any]) -> RunSpec:
    """Decode the spec on a run's network. Raises BackendError if it cannot be read."""
    try:
        return stored_spec.decode(network["Labels"][RECORD])
    except (KeyError, ValueError) as error:
        name = network["Labels"].get(RUN, network["Name"])
        hint = f"`l2rtui destroy {name}` removes it."
        raise BackendError(f"The record of {name} cannot be read.", hint) from error


def plan_of(container: Mapping[str, Any]) -> PodPlan:
    """Decode the plan on a container. Raises BackendError if it cannot be read."""
    try:
        return bounded_json.decode(container["Config"]["Labels"][POD], PodPlan)
    except (KeyError, ValueError) as error:
        raise BackendError(f"The record of the container {name_of(container)} cannot be read.") from error


def name_of(container: Mapping[str, Any]) -> str:
    """Return the name of a container without the slash that the Engine puts before it."""
    return str(container["Name"]).removeprefix("/")


def run_view(network: Mapping[str, Any], replicas: Mapping[str, int], *, is_terminating: bool) -> RunView:
    """Return the row of a run. ``replicas`` (containers per set) is also the desired number: the Engine removes
    none.
    """
    marks = network["Labels"]
    uid, name, owner = marks[RUN_ID], marks.get(RUN, ""), marks.get(OWNER, "")
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
        sets=tuple(SetView(row.name, row.role, replicas.get(row.name, 0), row.slots > 0) for row in spec.sets),
        is_terminating=is_terminating,
        trial=spec.trial,
        spec_id=spec_id(spec),
    )


def pod_view(container: Mapping[str, Any], node: str, seed: int, *, is_terminating: bool) -> PodView:
    """Return the row of a container."""
    marks, state = container["Config"]["Labels"], container["State"]
    plan = plan_of(container)
    phase, reason, message = _phase(container)
    # While a process runs, the Engine no longer knows how the previous one ended.
    has_ended = state["Status"] != "running" and not state["FinishedAt"].startswith(_NEVER)
    return PodView(
        uid=container["Id"],
        name=name_of(container),
        node=node,
        owner=marks.get(OWNER, ""),
        run=marks[RUN],
        set_name=plan.set_spec.name,
        role=plan.set_spec.role,
        index=plan.index,
        seed=seed,
        devices=tuple(DeviceUsage(slot.gpu, slot.slot) for slot in plan.seat.slots),
        phase=phase,
        reason=reason,
        message=message,
        ready=state["Status"] == "running",
        restarts=int(container.get("RestartCount", 0)),
        created=seconds_of(container["Created"]),
        started=None if state["StartedAt"].startswith(_NEVER) else seconds_of(state["StartedAt"]),
        exit_code=state["ExitCode"] if has_ended else None,
        ended=seconds_of(state["FinishedAt"]) if has_ended and phase.is_over else None,
        is_terminating=is_terminating or state["Status"] in ("removing", "dead"),
        pid=state.get("Pid") or None,
        ip=_address(container),
    )


def _address(container: Mapping[str, Any]) -> str:
    """Return its address in the network of its run; empty while it is not running."""
    networks = (container.get("NetworkSettings") or {}).get("Networks") or {}
    return next((str(item["IPAddress"]) for item in networks.values() if item.get("IPAddress")), "")


def _phase(container: Mapping[str, Any]) -> tuple[Phase, str, str]:
    """Return phase, reason and sentence, in Kubernetes' terms."""
    state = container["State"]
    error = str(state.get("Error") or "")
    match state["Status"]:
        case "running":
            return Phase.RUNNING, "", ""
        case "created":
            return (Phase.FAILED, "StartError", error) if error else (Phase.PENDING, "", "")
        case "restarting":  # the Engine waits 0.1 s, then twice as long each time, up to a minute
            return Phase.RUNNING, "CrashLoopBackOff", error
        case "paused":
            return Phase.RUNNING, "Paused", "it was paused: `docker unpause` resumes it"
        case "exited":
            if error:
                return Phase.FAILED, "StartError", error
            if state.get("OOMKilled"):
                return Phase.FAILED, _OUT_OF_MEMORY, "out of memory"
            return (Phase.SUCCEEDED, "", "") if state["ExitCode"] == 0 else (Phase.FAILED, "Error", "")
        case _:
            return Phase.UNKNOWN, "", str(state["Status"])
