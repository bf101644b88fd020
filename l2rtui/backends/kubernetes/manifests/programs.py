"""Program of a set in its pods: mounted from the run's ConfigMap, or fetched by an init container."""

from __future__ import annotations

from typing import Any, Final

from l2rtui.backends.kubernetes import labels
from l2rtui.domain.plan import RunPlan
from l2rtui.domain.workload import PROGRAM_WORD, RunSpec, SetSpec

PROGRAM_DIR: Final = "/l2r-program"
"""Folder of the program in the container."""
_VOLUME: Final = "program"


def texts(spec: RunSpec) -> dict[str, str]:
    """Return keys and values of the run's ConfigMap with the texts of programs."""
    return {
        f"{labels.PROGRAM_KEY}{set_spec.name}": set_spec.program.text
        for set_spec in spec.sets
        if set_spec.program is not None and set_spec.program.text
    }


def command(set_spec: SetSpec) -> list[str]:
    """Return the command of a pod: the set's command with its program's path, or a supervisor of several
    workers.
    """
    path = f"{PROGRAM_DIR}/{set_spec.program.name}" if set_spec.program is not None else PROGRAM_WORD
    own = [path if word == PROGRAM_WORD else word for word in set_spec.command]
    if (workers := set_spec.workers_in_pod) == 1:
        return own
    options = (
        "--workers",
        str(workers),
        "--restart",
        str(set_spec.restart),
        "--grace",
        f"{set_spec.grace_seconds:g}",
    )
    return ["l2r-runtime", "supervise", *options, "--", *own]


def volume(run: RunPlan, set_spec: SetSpec) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the volume with the program, and its mount; empty without a program."""
    if set_spec.program is None:
        return [], []
    source: dict[str, Any] = {"emptyDir": {}}
    if set_spec.program.text:
        items = [{"key": f"{labels.PROGRAM_KEY}{set_spec.name}", "path": set_spec.program.name}]
        source = {"configMap": {"name": labels.run_object(run.spec.name), "items": items}}
    return [{"name": _VOLUME, **source}], [{"name": _VOLUME, "mountPath": PROGRAM_DIR, "readOnly": True}]


def fetching(set_spec: SetSpec, container: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the init container that fetches a program from its URL, with the container's variables and
    security.
    """
    if set_spec.program is None or not set_spec.program.url:
        return []
    # Ports and resources are not copied: a download needs no GPU.
    parts = {key: value for key, value in container.items() if key not in ("ports", "resources")}
    # Writable only here: the program cannot change its own file.
    mounts = [
        {"name": _VOLUME, "mountPath": PROGRAM_DIR} if mount["name"] == _VOLUME else mount
        for mount in container["volumeMounts"]
    ]
    argv = ["l2r-runtime", "fetch", set_spec.program.url, f"{PROGRAM_DIR}/{set_spec.program.name}"]
    return [{**parts, "name": "fetch", "command": argv, "volumeMounts": mounts}]
