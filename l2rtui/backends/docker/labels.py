"""Every label of a run's objects, in one place, and the marks by which they are found again."""

from __future__ import annotations

from typing import Any, Final

PREFIX: Final = "docker.l2rtui.io/"
"""Not `l2rtui.io/`: the containers of a kubelet on this Engine carry the labels of their pods."""
RUN: Final = f"{PREFIX}run"
RUN_ID: Final = f"{PREFIX}run-id"
OWNER: Final = f"{PREFIX}owner"
CREATED: Final = f"{PREFIX}created"
RECORD: Final = f"{PREFIX}spec"
"""On the network: the spec of the run, JSON. It holds no secret: those are files."""
POD: Final = f"{PREFIX}pod"
"""On a container: its plan, JSON."""


def network_name(run: str) -> str:
    """The network in which the processes of a run find each other."""
    return f"l2rtui-{run}"


def of_run(uid: str) -> dict[str, Any]:
    """Filter for what belongs to one launch."""
    return {"label": [f"{RUN_ID}={uid}"]}


ALL: Final[dict[str, Any]] = {"label": [RUN_ID]}
"""Filter for what belongs to any run."""
