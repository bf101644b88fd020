"""The program of a set in its pods: out of the run's ConfigMap, or fetched before the container starts."""

from __future__ import annotations

from typing import Any, Final

from l2rtui.backends.kubernetes import labels
from l2rtui.domain.plan import RunPlan
from l2rtui.domain.workload import PROGRAM_WORD, RunSpec, SetSpec

PROGRAM_DIR: Final = "/l2r-program"
"""Where it lies in the container."""
_VOLUME: Final = "program"


def texts(spec: RunSpec) -> dict[str, str]:
    """Keys of the run's ConfigMap with the texts of programs."""
    return {
        f"{labels.PROGRAM_KEY}{one.name}": one.program.text
        for one in spec.sets
        if one.program is not None and one.program.text
    }


def command(one: SetSpec) -> list[str]:
    """The command of a set, with the path of its program."""
    if one.program is None:
        return list(one.command)
    path = f"{PROGRAM_DIR}/{one.program.name}"
    return [path if word == PROGRAM_WORD else word for word in one.command]


def volume(run: RunPlan, one: SetSpec) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The volume with the program, and its mount; nothing without one."""
    if one.program is None:
        return [], []
    source: dict[str, Any] = {"emptyDir": {}}
    if one.program.text:
        items = [{"key": f"{labels.PROGRAM_KEY}{one.name}", "path": one.program.name}]
        source = {"configMap": {"name": labels.run_object(run.spec.name), "items": items}}
    return [{"name": _VOLUME, **source}], [{"name": _VOLUME, "mountPath": PROGRAM_DIR, "readOnly": True}]


def fetching(one: SetSpec, container: dict[str, Any]) -> dict[str, Any]:
    """What brings a program from its address first, with the variables and rights of the container itself."""
    if one.program is None or not one.program.url:
        return {}
    parts = {key: value for key, value in container.items() if key not in ("ports", "resources")}
    mounts = [
        {"name": _VOLUME, "mountPath": PROGRAM_DIR} if mount["name"] == _VOLUME else mount
        for mount in container["volumeMounts"]
    ]
    words = ["l2r-runtime", "fetch", one.program.url, f"{PROGRAM_DIR}/{one.program.name}"]
    return {"initContainers": [{**parts, "name": "fetch", "command": words, "volumeMounts": mounts}]}
