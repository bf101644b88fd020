"""What only this machine can tell about a plan, and about itself; and what runs that are gone have left behind."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from l2rtui.backends.base import Leak
from l2rtui.backends.local import control, folders, processes, volumes
from l2rtui.backends.local.environment import (
    OWN_COMMANDS,
    RUNTIME_COMMAND,
    clean_environ,
    find_command,
    starts_with,
    working_folder,
)
from l2rtui.backends.local.layout import REMOVED, STAGED, Root
from l2rtui.backends.local.machine import MachineView
from l2rtui.backends.local.secretfiles import missing
from l2rtui.backends.local.store import Look
from l2rtui.domain.plan import LaunchPlan
from l2rtui.domain.preflight import Finding, Weight
from l2rtui.domain.quantity import format_bytes, format_cores
from l2rtui.domain.sidecar import sidecar_of
from l2rtui.domain.workload import RunSpec
from l2rtui.errors import BackendError
from runtime.contract import ENV_CONFIG

_RUNTIME_NEEDS = ("torch", "numpy", "gymnasium", "zmq", "safetensors")
_INSTALL_RUNTIME = "Install it: pip install 'l2rtui[runtime]'."
_TRAINED = (("learner",), ("worker",), ("evaluator",))
"""Words of the runtime's commands that read the training settings of reinforcement learning."""
_LOW_DISK_BYTES = 1 << 30
_STALE_SECONDS = 60.0
_ASK_SECONDS = 20.0


def check_plan(root: Root, plan: LaunchPlan) -> tuple[Finding, ...]:
    """Find out whether commands exist and files can be written. Creates nothing but the state folder."""
    path = clean_environ().get("PATH", os.defpath)
    cwd = working_folder()
    findings = [_state_folder(root)]
    if (disk := _disk(root)) is not None:
        findings.append(disk)
    commands: dict[str, str] = {}
    for pod in (pod for run in plan.runs for pod in run.pods):
        own_path = dict(pod.env).get("PATH", path)
        commands.update((name, own_path) for name in starts_with(pod.set_spec.command) if name not in commands)
    findings.extend(_command(name, own_path, cwd) for name, own_path in commands.items())
    findings.extend(_settings(run.spec, path, cwd) for run in plan.runs if _asks_runtime(run.spec))
    findings.extend(
        Finding(
            Weight.REFUSAL,
            f"{run.spec.name}/{one.name}",
            "it is a pod template in Kubernetes' own words, and the local backend runs commands",
            "Choose --backend kubernetes.",
        )
        for run in plan.runs
        for one in run.spec.sets
        if one.template
    )
    findings.extend(
        Finding(
            Weight.WARNING,
            f"{run.spec.name}/{one.name}",
            f"the local backend mounts nothing: {', '.join(volumes.not_mounted(one))} stays as it is",
        )
        for run in plan.runs
        for one in run.spec.sets
        if volumes.not_mounted(one) and not one.template
    )
    findings.extend(
        Finding(
            Weight.REFUSAL,
            f"{run.spec.name}/{one.name}",
            "its simulators are sidecars, and only pods of Kubernetes have those",
            "--set train.environment_options.simulator.kind=reference, or container.",
        )
        for run in plan.runs
        for one in run.spec.sets
        if sidecar_of(run.spec, one) is not None
    )
    findings.extend(
        Finding(
            Weight.REFUSAL,
            f"{run.spec.name}/{one.name}",
            f"there is no secret {name}",
            f"Keep it first: `l2rtui secret create {name}`.",
        )
        for run in plan.runs
        for one in run.spec.sets
        for name in missing(root.secrets, one.pod.secrets)
    )
    findings.extend(
        Finding(Weight.OK, "image", f"image {image} is not used: the local backend runs commands")
        for image in {run.spec.image for run in plan.runs if run.spec.image}
    )
    return tuple(findings)


def diagnose(root: Root, machine: MachineView, look: Look) -> tuple[Finding, ...]:
    """What works on this machine."""
    node = machine.node
    slots = sum(gpu.slots for gpu in node.gpus)
    devices = ", ".join(gpu.model or gpu.label for gpu in node.gpus) or "no device"
    findings = [
        Finding(
            Weight.OK,
            "node",
            f"{node.name}: {format_cores(node.cpu_cores)} cores, {format_bytes(node.memory_bytes)} of memory, "
            f"{slots} slots on {devices}",
        ),
        _state_folder(root),
        *filter(None, (_disk(root),)),
        _runtime(),
    ]
    if machine.problem:
        hint = "Run nvidia-smi; after a driver's upgrade the machine must be restarted."
        findings.append(Finding(Weight.WARNING, "gpu", machine.problem, hint))
    elif all(gpu.is_cpu for gpu in node.gpus):
        findings.append(Finding(Weight.OK, "gpu", "there is no NVIDIA GPU: workers sit on the cpu device"))
    findings.extend(Finding(Weight.WARNING, "state", problem) for problem in look.problems)
    findings.extend(
        Finding(
            Weight.WARNING,
            state.folder.name,
            "its supervisor is gone: nothing restarts its processes or stores their output",
            f"Open the app, which starts another, or `l2rtui destroy {state.folder.name}`.",
        )
        for state in look.runs
        if not state.is_supervised
    )
    return tuple(findings)


def find_leaks(root: Root, look: Look) -> tuple[Leak, ...]:
    """Processes, folders and sockets of this state folder that belong to no run of it."""
    uids = {state.folder.path: state.uid for state in look.runs if state.record is not None}
    corrupt = {state.folder.path for state in look.runs if state.record is None}
    leaks = []
    for one in processes.marked(lambda one: Path(one.folder).parent == root.runs):
        folder = Path(one.folder)
        if folder in corrupt or uids.get(folder) == one.run_id:
            continue
        name = f"{one.proc.pid} {one.command}".strip()
        leaks.append(Leak(one.run, "Process", name, f"its run is gone: end it with `kill -9 {one.proc.pid}`"))
    leaks.extend(_stale_folders(root))
    for path, target in folders.short_socket_dirs().items():
        if target.parent == root.runs and not target.exists():
            leaks.append(Leak(target.name, "Sockets", str(path), "its run is gone: remove the folder"))
    return tuple(leaks)


def _stale_folders(root: Root) -> Iterable[Leak]:
    for pattern, reason in ((STAGED, "a launch was broken off"), (REMOVED, "a destroy was broken off")):
        for path in root.runs.glob(f"{pattern}*"):
            try:
                age = time.time() - path.stat().st_ctime
            except OSError:
                continue
            if age > _STALE_SECONDS:
                yield Leak(path.name, "Folder", str(path), f"{reason}: remove the folder")


def _state_folder(root: Root) -> Finding:
    try:
        control.make_root(root)
        with tempfile.TemporaryFile(dir=root.runs):
            pass
    except OSError as error:
        problem: BackendError = control.unwritable(root, error)
        sentence = problem.message[0].lower() + problem.message[1:].rstrip(".")  # as all findings are written
        return Finding(Weight.REFUSAL, "state", sentence, problem.hint)
    return Finding(Weight.OK, "state", f"the state folder {root.path} can be written")


def _disk(root: Root) -> Finding | None:
    try:
        free = shutil.disk_usage(root.runs).free
    except OSError:
        return None  # the state folder's own finding says it
    if free < _LOW_DISK_BYTES:
        hint = "Free some space, or set XDG_STATE_HOME to another disk."
        return Finding(Weight.WARNING, "disk", f"only {format_bytes(free)} of space is left at {root.path}", hint)
    return Finding(Weight.OK, "disk", f"{format_bytes(free)} of space is left at {root.path}")


def _command(name: str, path: str, cwd: str) -> Finding:
    found = find_command(name, path, cwd) if name else None
    if found is None:
        hint = "Write its path, or install it."
        return Finding(
            Weight.REFUSAL, name or "command", f"the command {name!r} is not found, or not executable", hint
        )
    if name in OWN_COMMANDS and (missing := _missing()):
        needs = f"{name} needs {', '.join(missing)}, which this Python does not have"
        return Finding(Weight.REFUSAL, name, needs, _INSTALL_RUNTIME)
    return Finding(Weight.OK, name, f"the command is {found}")


def _asks_runtime(spec: RunSpec) -> bool:
    return any(one.command[:1] == (RUNTIME_COMMAND,) and one.command[1:2] in _TRAINED for one in spec.sets)


def _settings(spec: RunSpec, path: str, cwd: str) -> Finding:
    """Let the runtime itself judge the training settings: better now than in six logs."""
    command = find_command(RUNTIME_COMMAND, path, cwd)
    if command is None:
        return Finding(Weight.OK, "train", "the training settings are read when the processes start")
    env = {**clean_environ(), ENV_CONFIG: spec.train}
    try:
        done = subprocess.run(
            [command, "config", "--json"],
            env=env,
            capture_output=True,
            text=True,
            timeout=_ASK_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding(Weight.WARNING, "train", f"the training settings could not be checked: {error}")
    if done.returncode == 0:
        return Finding(Weight.OK, "train", "the training settings are understood")
    words = done.stderr.strip().splitlines()
    sentence = words[-1].removeprefix(f"{RUNTIME_COMMAND}: ").rstrip(".") if words else f"exit {done.returncode}"
    hint = f"`{RUNTIME_COMMAND} config` lists the settings."
    return Finding(Weight.REFUSAL, "train", f"train of {spec.name}: {sentence}", hint)


def _runtime() -> Finding:
    if missing := _missing():
        sentence = f"the training runtime is not installed, without {', '.join(missing)}"
        return Finding(Weight.WARNING, "runtime", sentence, _INSTALL_RUNTIME)
    return Finding(Weight.OK, "runtime", "the training runtime is installed")


def _missing() -> list[str]:
    """What the runtime needs and this interpreter lacks, found without importing any of it."""
    return [name for name in _RUNTIME_NEEDS if importlib.util.find_spec(name) is None]
