"""Labels of a run's objects, and the filters that select objects by them."""

from __future__ import annotations

from typing import Any, Final

from l2rtui.domain.plan import RunPlan

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
