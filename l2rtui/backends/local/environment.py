"""What a pod's process is given: its variables, and where its command is found."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from l2rtui.backends.local import peers
from l2rtui.backends.local.layout import RunFolder
from l2rtui.backends.local.processes import ENV_FOLDER
from l2rtui.backends.local.records import RunRecord
from l2rtui.backends.local.secretfiles import variables
from l2rtui.backends.peers import joined_variables
from l2rtui.domain.plan import PodPlan
from l2rtui.domain.workload import PROGRAM_WORD
from runtime import contract

RUNTIME_COMMAND = "l2r-runtime"
OWN_COMMANDS = frozenset({RUNTIME_COMMAND, "l2rtui"})
"""Commands of this very distribution: the copy beside this interpreter is the one that fits."""
_NOT_FOR_CHILDREN = ("TEXTUAL", "COLUMNS", "LINES", "L2R_", "L2RTUI_")


def clean_environ(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The user's environment without what concerns this terminal, or a run that l2rtui itself was started in."""
    environ = os.environ if environ is None else environ
    return {key: value for key, value in environ.items() if not key.startswith(_NOT_FOR_CHILDREN)}


def run_environ(folder: RunFolder, name: str, uid: str, base: Mapping[str, str]) -> dict[str, str]:
    """The environment of a supervisor: the user's, and the marks by which every process of the run is found."""
    return {**base, contract.ENV_RUN: name, contract.ENV_RUN_ID: uid, ENV_FOLDER: str(folder.path)}


def pod_environ(
    record: RunRecord, folder: RunFolder, plan: PodPlan, pod_uid: str, base: Mapping[str, str], cores: float
) -> dict[str, str]:
    """The environment of a pod's process: the user's, the plan's, then the contract's.

    Args:
        cores: Of this machine; a set that says nothing gets an equal share, at least one.

    Raises:
        OSError: a secret is not there.
    """
    share = max(1.0, cores // max(1, len(record.pods)))
    told = peers.variables(record, plan)
    secrets = variables(folder.root.secrets, plan.set_spec.pod.secrets)
    environ = {**run_environ(folder, record.spec.name, record.uid, base), **secrets, **told, **dict(plan.env)}
    environ["PATH"] = os.pathsep.join(filter(None, (environ.get("PATH", os.defpath), _own_bin())))
    return environ | {
        contract.ENV_RUN: record.spec.name,
        contract.ENV_RUN_ID: record.uid,
        contract.ENV_POD: plan.name,
        contract.ENV_POD_ID: pod_uid,
        contract.ENV_ROLE: plan.set_spec.role,
        contract.ENV_SET: plan.set_spec.name,
        contract.ENV_INDEX: str(plan.index),
        contract.ENV_SEED: str(record.spec.seed),
        **joined_variables(record.spec, plan.set_spec),
        contract.ENV_ENDPOINT: record.endpoint,
        contract.ENV_TOKEN_FILE: str(folder.token),
        contract.ENV_DIR: record.volume or str(folder.data),
        contract.ENV_CONFIG: record.spec.train,
        contract.ENV_CPUS: f"{plan.set_spec.resources.cpu_cores or share:g}",
        ENV_FOLDER: str(folder.path),
        "PYTHONUNBUFFERED": "1",
    }


def pod_command(folder: RunFolder, plan: PodPlan) -> tuple[str, ...]:
    """The command of a pod, with the path of its program; one that has an address is fetched first."""
    one = plan.set_spec
    if one.program is None:
        return one.command
    path = str(folder.program(one.name, one.program.name))
    command = tuple(path if word == PROGRAM_WORD else word for word in one.command)
    return (RUNTIME_COMMAND, "fetch", one.program.url, path, "--", *command) if one.program.url else command


def starts_with(command: tuple[str, ...]) -> list[str]:
    """Everything that a command starts: itself, and what it wraps behind ``--`` where it is our own."""
    found = []
    while command:
        found.append(command[0])
        is_wrapper = command[0] == RUNTIME_COMMAND and "--" in command
        command = command[command.index("--") + 1 :] if is_wrapper else ()
    return found or [""]


def find_command(name: str, path: str, cwd: str) -> str | None:
    """Where a command is: as exec finds it, our own commands beside this interpreter first; None when nowhere.

    The folder of this interpreter also ends the PATH of each process, after the user's own: there it offers what is
    missing and shadows nothing.
    """
    if "/" in name:
        found = str(Path(cwd, name))
        return found if _is_program(found) else None
    own = _own_bin()
    order = (own, path) if name in OWN_COMMANDS else (path, own)
    folders = [one for part in order for one in part.split(os.pathsep) if one]
    return next((found for one in folders if _is_program(found := str(Path(cwd, one, name)))), None)


def working_folder() -> str:
    """Where we stand; home, where that folder was deleted under us."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return str(Path.home())


def _own_bin() -> str:
    return str(Path(sys.executable).parent) if sys.executable else ""


def _is_program(path: str) -> bool:
    return Path(path).is_file() and os.access(path, os.X_OK)
