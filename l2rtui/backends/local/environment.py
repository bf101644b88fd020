"""Environment variables and command of a pod's process."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from l2rtui.backends.common import workdirs
from l2rtui.backends.common.run_variables import joined_variables, peer_variables, watch_variables
from l2rtui.backends.local.paths import RunFolder
from l2rtui.backends.local.process_scan import ENV_FOLDER
from l2rtui.backends.local.secret_files import variables
from l2rtui.backends.local.state_files import RunRecord
from l2rtui.domain.plan import PodPlan, RunPlan
from l2rtui.domain.workload import PROGRAM_WORD, Role, RunSpec, SetSpec, pod_name
from runtime.base import contract

LOOPBACK = "127.0.0.1"


def socket_folders(run: RunPlan) -> list[str]:
    """Return the names of the folders, within the run's socket folder, in which its replicas listen."""
    listening = [spec for spec in run.spec.sets if spec.port and spec.role is not Role.RENDEZVOUS]
    return [f"{spec.name}-{index}" for spec in listening for index in range(spec.replicas)]


def local_peer_variables(record: RunRecord, plan: PodPlan) -> dict[str, str]:
    """Return the variables that give a process the addresses of the others."""

    def tcp(spec: SetSpec, index: int) -> str:
        return f"{LOOPBACK}:{record.ports.get(pod_name(record.spec.name, spec.name, index), spec.port)}"

    def endpoint(spec: SetSpec, index: int) -> str:
        # torch's rendezvous only supports TCP.
        if spec.role is Role.RENDEZVOUS:
            return f"tcp://{tcp(spec, index)}"
        return f"ipc://{record.socket_dir}/{spec.name}-{index}"

    return peer_variables(record.spec, plan.set_spec, plan.index, endpoint=endpoint, tcp=tcp, ip=LOOPBACK)


RUNTIME_COMMAND = "l2r-runtime"
OWN_COMMANDS = frozenset({RUNTIME_COMMAND, "l2rtui"})
"""Commands of this distribution: the copy next to this interpreter has the same version."""
_NOT_FOR_CHILDREN = ("TEXTUAL", "COLUMNS", "LINES", "L2R_", "L2RTUI_")


def clean_environ(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the user's environment without variables of this terminal or of a surrounding run."""
    environ = os.environ if environ is None else environ
    return {key: value for key, value in environ.items() if not key.startswith(_NOT_FOR_CHILDREN)}


def run_environ(folder: RunFolder, name: str, uid: str, base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a supervisor: the user's, plus the tags that mark each process of the run."""
    return {**base, contract.ENV_RUN: name, contract.ENV_RUN_ID: uid, ENV_FOLDER: str(folder.path)}


def pod_environ(
    record: RunRecord, folder: RunFolder, plan: PodPlan, pod_uid: str, base: Mapping[str, str], cores: float
) -> dict[str, str]:
    """Return the environment of a pod's process: the user's, the plan's, then the contract's; later ones win.

    Args:
        cores: CPU cores of this node; a set without a request gets an equal share, at least one.

    Raises:
        OSError: A secret does not exist.
    """
    # Libraries such as torch start a thread per core: without a share, every pod would start all of them.
    share = max(1.0, cores // max(1, len(record.pods)))
    peers = local_peer_variables(record, plan)
    secrets = variables(folder.root.secrets, plan.set_spec.pod.secrets)
    environ = {**run_environ(folder, record.spec.name, record.uid, base), **secrets, **peers, **dict(plan.env)}
    if (workdir := workdirs.workdir_of(record.spec, plan.set_spec)) is not None:
        environ |= workdirs.variables(str(folder.workdir), environ)
        environ |= workdirs.setup_variables(str(folder.workdir)) if workdir.setup else {}
    environ |= _folder_variables(environ, record.cwd)
    environ.pop("OLDPWD", None)  # of the user's shell
    # Last in the PATH: `l2r-runtime` is found even if the user's environment is not this interpreter's.
    environ["PATH"] = os.pathsep.join(filter(None, (environ.get("PATH", os.defpath), _own_bin())))
    # The contract comes last: neither the user's shell nor a spec may change a pod's identity.
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
        **watch_variables(record.spec, plan.set_spec, [pod.plan for pod in record.pods]),
        contract.ENV_ENDPOINT: record.endpoint,
        contract.ENV_TOKEN_FILE: str(folder.token),
        contract.ENV_DIR: record.volume or str(folder.data),
        contract.ENV_CONFIG: record.spec.train,
        contract.ENV_CPUS: f"{plan.set_spec.resources.cpu_cores or share:g}",
        ENV_FOLDER: str(folder.path),
        "PYTHONUNBUFFERED": "1",
    }


def _folder_variables(environ: Mapping[str, str], cwd: str) -> dict[str, str]:
    """Return the PWD of a process that starts in a folder; that of the user's shell may be another one."""
    path = environ.get("PWD", "")
    try:
        # A shell keeps the name by which the user reached the folder, perhaps through a link.
        is_same = path.startswith("/") and Path(path).samefile(cwd)
    except OSError:
        is_same = False
    return {"PWD": path if is_same else cwd}


def pod_command(folder: RunFolder, spec: RunSpec, set_spec: SetSpec) -> tuple[str, ...]:
    """Return the command of a pod with the path of its program, after the setup of its own code; a program with a
    URL is fetched first.
    """
    command, program = set_spec.command, set_spec.program
    if program is not None:
        path = str(folder.program(set_spec.name, program.name))
        command = tuple(path if word == PROGRAM_WORD else word for word in command)
        command = (RUNTIME_COMMAND, "fetch", program.url, path, "--", *command) if program.url else command
    workdir = workdirs.workdir_of(spec, set_spec)
    if workdir is None or not workdir.setup:
        return command
    setup = json.dumps(own_python(spec, workdir.setup), ensure_ascii=False)
    store = str(folder.root.packages)
    return (RUNTIME_COMMAND, "setup", "--store", store, str(folder.workdir), setup, "--", *command)


def own_python(spec: RunSpec, setup: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return setup commands with this interpreter as their Python and pip, if processes of the run have it too.

    What pip compiles or chooses for another Python could not be imported.
    """
    if all(part.command[:1] != (RUNTIME_COMMAND,) for part in spec.sets):
        return [list(command) for command in setup]
    own = {"python": [sys.executable], "python3": [sys.executable]}
    if importlib.util.find_spec("pip") is not None:  # environments of uv have none: then it is the user's
        own |= {name: [sys.executable, "-m", "pip"] for name in ("pip", "pip3")}
    return [[*own.get(command[0], command[:1]), *command[1:]] for command in setup]


def executables_of(command: tuple[str, ...]) -> list[str]:
    """Return the executables of a command: the command itself and, for our own commands, the one wrapped after
    ``--``.
    """
    names = []
    while command:
        names.append(command[0])
        # `l2r-runtime fetch URL PATH -- COMMAND` runs COMMAND afterwards, so that must exist too.
        is_wrapper = command[0] == RUNTIME_COMMAND and "--" in command
        command = command[command.index("--") + 1 :] if is_wrapper else ()
    return names or [""]


def find_command(name: str, path: str, cwd: str) -> str | None:
    """Return the path of a command as exec finds it, our own commands next to this interpreter first; None if
    missing.

    The folder of this interpreter is also the last in each process's PATH: there it adds commands and shadows none.
    """
    if "/" in name:
        path_here = str(Path(cwd, name))
        return path_here if _is_executable(path_here) else None
    # The user's PATH may lead to an older installation of l2rtui, whose contract differs.
    own = _own_bin()
    order = (own, path) if name in OWN_COMMANDS else (path, own)
    candidates = (str(Path(cwd, folder, name)) for part in order for folder in part.split(os.pathsep) if folder)
    return next(filter(_is_executable, candidates), None)


def is_own(command: str) -> bool:
    """Return True if a command stands next to this interpreter, whose packages it then uses."""
    return Path(command).parent == Path(_own_bin())


def working_folder() -> str:
    """Return the working folder; the home folder if it was deleted meanwhile."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return str(Path.home())


def _own_bin() -> str:
    return str(Path(sys.executable).parent) if sys.executable else ""


def _is_executable(path: str) -> bool:
    # Unlike `Path.is_file`, this is False in a PATH folder without search permission, which shells skip too.
    return os.path.isfile(path) and os.access(path, os.X_OK)  # noqa: PTH113
