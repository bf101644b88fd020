"""Preflight checks of plans on this machine and its GPUs, its diagnosis, and leaks of deleted runs."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePath
from typing import Final

from l2rtui.backends.common import workdirs
from l2rtui.backends.common.train_settings import HINT, settings_findings, train_settings
from l2rtui.backends.local import process_scan, run_folders, volume_store
from l2rtui.backends.local.environment import (
    OWN_COMMANDS,
    RUNTIME_COMMAND,
    clean_environ,
    executables_of,
    find_command,
    is_own,
    working_folder,
)
from l2rtui.backends.local.node_reader import NodeReading
from l2rtui.backends.local.paths import REMOVED, STAGED, StateFolder
from l2rtui.backends.local.run_store import RunScan
from l2rtui.backends.local.secret_files import missing
from l2rtui.backends.local.supervision import client
from l2rtui.domain.node import Gpu
from l2rtui.domain.plan import LaunchPlan
from l2rtui.domain.preflight import Finding, Severity
from l2rtui.domain.quantity import counted, format_bytes, format_cores
from l2rtui.domain.receipt import Leak
from l2rtui.domain.sidecar import sidecar_of
from l2rtui.domain.workload import Role, RunSpec, SetSpec, Workdir
from l2rtui.errors import BackendError
from runtime.base import bounded_json, contract, environments
from runtime.base.installation import install_hint

_TORCH_SECONDS = 60.0
"""Time limit of importing torch, which takes seconds from a cold disk."""
# is_available() initialises no context, so it takes no memory of a GPU that others use.
_PROGRAM = """
import json, torch
print(json.dumps([torch.__version__, torch.version.cuda or "", torch.cuda.is_available()]))
"""
_RUNTIME_NEEDS = ("torch", "numpy", "gymnasium", "zmq", "safetensors")
_LOW_DISK_BYTES = 1 << 30
_STALE_SECONDS = 60.0
"""Age at which a half-made or half-deleted folder counts as a leak: a launch or destroy may still be at work."""
_FOR_A_SHELL = re.compile(r"[\s=~$;|&<>]|^(cd|source|export|ulimit|eval|alias|\.)$")
"""What only a shell reads, in the first word of a command."""
_NO_SHELL_HINT = (
    "No shell reads a command: write its words, [python, train.py], or [sh, -c, 'cd /data && ./run.sh']."
)
_INPUTS: Final = ("dataset", "resume_from", "init_policy")
"""Training settings that name a folder or file, which a learner reads at its start."""
_INTERPRETER: Final = re.compile(r"python[\d.]*|sh|bash|torchrun")
_FIRST_LINE_BYTES = 256
"""As many as the kernel reads."""
_CONFIG_SECONDS = 60.0
"""Time limit of `l2r-runtime config`, a process that makes the environment once."""


def check_gpus(gpus: tuple[Gpu, ...], driver: str) -> Iterator[Finding]:
    """Yield the findings of a machine with GPUs. Starts Python with torch, which takes seconds."""
    models = ", ".join(f"{count} x {model}" for model, count in Counter(gpu.model for gpu in gpus).items())
    version = f"driver {driver}" if driver else "of a driver that tells no version"
    yield Finding(Severity.OK, "gpu", f"{counted(len(gpus), 'GPU')}: {models}, {version}")
    if (finding := torch_finding(_ask_torch())) is not None:
        yield finding


def torch_finding(answer: tuple[str, str, bool] | None) -> Finding | None:
    """Return the finding for torch's version, its CUDA version (or empty) and whether it finds a GPU."""
    if answer is None:  # without torch the training runtime is not installed, which has its own finding
        return None
    version, cuda, sees = answer
    if sees:
        return Finding(Severity.OK, "torch", f"torch {version} computes on GPUs")
    if not cuda:
        sentence = f"torch {version} is built without CUDA, so learners compute on the CPU"
        return Finding(Severity.WARNING, "torch", sentence, "Install a build for CUDA: see pytorch.org.")
    sentence = f"torch {version} finds no GPU, so learners compute on the CPU"
    hint = f"It is built for CUDA {cuda}: nvidia-smi shows up to which version the driver goes."
    return Finding(Severity.WARNING, "torch", sentence, hint)


def _ask_torch() -> tuple[str, str, bool] | None:
    """Query torch in a separate process; None if it cannot be imported or does not respond."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            env=clean_environ(),
            capture_output=True,
            text=True,
            timeout=_TORCH_SECONDS,
            check=True,
        )
        version, cuda, sees = bounded_json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return str(version), str(cuda), bool(sees)


def check_plan(root: StateFolder, plan: LaunchPlan) -> tuple[Finding, ...]:
    """Check that commands exist and files can be written. Creates only the state folder."""
    findings = [_state_folder(root), *_disk(root)]
    with tempfile.TemporaryDirectory(prefix="l2r-") as folder:
        try:
            findings.extend(_runnable(plan, Path(folder)))
        except BackendError:  # a workdir that was removed from the store: the preflight of every backend refuses it
            pass
    findings.extend(_unsupported(root, plan))
    findings.extend(
        Finding(Severity.OK, "image", f"image {image} is not used: the local backend runs commands")
        for image in {run.spec.image for run in plan.runs if run.spec.image}
    )
    return tuple(findings)


def _runnable(plan: LaunchPlan, folder: Path) -> Iterator[Finding]:
    """Yield findings on the commands of a plan and on its training settings; own code is unpacked in a folder."""
    path = clean_environ().get("PATH", os.defpath)
    roots: dict[Workdir | None, Path] = {}
    for workdir in dict.fromkeys(run.spec.workdir for run in plan.runs):
        if workdir is not None:
            roots[workdir] = folder / workdir.sha256
            if not roots[workdir].exists():
                workdirs.unpack(workdir, roots[workdir])

    def cwd_of(spec: RunSpec) -> str:
        return str(roots[spec.workdir] / workdirs.TREE) if spec.workdir is not None else working_folder()

    # Once per command, not once per replica: a plan may have hundreds of pods of one set.
    commands: dict[str, tuple[str, str]] = {}
    for run in plan.runs:
        for pod in run.pods:
            place = dict(pod.env).get("PATH", path), cwd_of(run.spec)
            for name in executables_of(pod.set_spec.command):
                commands.setdefault(name, place)
    yield from (_command(name, *place) for name, place in commands.items())
    yield from _scripts(plan, cwd_of)
    # Seeds of an experiment have the same settings; each trial of a sweep has its own, and each check is a process.
    trained = {run.spec.train: run.spec for run in reversed(plan.runs) if train_settings(run.spec) is not None}
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for checked in pool.map(lambda spec: _settings(spec, path, cwd_of(spec)), trained.values()):
            yield from checked


def _scripts(plan: LaunchPlan, cwd_of: Callable[[RunSpec], str]) -> Iterator[Finding]:
    """Yield warnings about scripts that commands run and that are missing; setup or a step may still make them."""
    for spec, part in [(run.spec, part) for run in plan.runs for part in run.spec.sets]:
        folder = cwd_of(spec)
        if script := _missing_script(part.command, folder):
            place = f"in {folder}, where it starts" if spec.workdir is None else "among the files of workdir"
            sentence = f"its command runs {script}, which is not {place}"
            yield Finding(Severity.WARNING, f"{spec.name}/{part.name}", sentence)


def _unsupported(root: StateFolder, plan: LaunchPlan) -> Iterator[Finding]:
    """Yield findings on parts of specs that need a cluster, and on secrets that do not exist."""
    sets = [
        (f"{run.spec.name}/{set_spec.name}", run.spec, set_spec) for run in plan.runs for set_spec in run.spec.sets
    ]
    for name, _, set_spec in sets:
        if set_spec.template:
            sentence = "it is a pod template in Kubernetes' own words, and the local backend runs commands"
            yield Finding(Severity.REFUSAL, name, sentence, "Choose --backend kubernetes.")
    for name, _, set_spec in sets:
        # A refused template may have any mounts: one finding is enough.
        if not set_spec.template and (paths := volume_store.not_mounted(set_spec)):
            sentence = f"the local backend mounts nothing: {', '.join(paths)} stays as it is"
            yield Finding(Severity.WARNING, name, sentence)
    for name, spec, set_spec in sets:
        if sidecar_of(spec, set_spec) is not None:
            sentence = "its simulators are sidecars, and only pods of Kubernetes have those"
            hint = "--set train.environment_options.simulator.kind=reference, or container."
            yield Finding(Severity.REFUSAL, name, sentence, hint)
    for name, _, set_spec in sets:
        for secret in missing(root.secrets, set_spec.pod.secrets):
            hint = f"Keep it first: `l2rtui secret create {secret}`."
            yield Finding(Severity.REFUSAL, name, f"there is no secret {secret}", hint)


def diagnose(root: StateFolder, reading: NodeReading, scan: RunScan) -> tuple[Finding, ...]:
    """Diagnose this machine."""
    node = reading.node
    slots = counted(sum(gpu.slots for gpu in node.gpus), "slot")
    devices = ", ".join(gpu.model or gpu.label for gpu in node.gpus) or "no device"
    beside = f", {counted(node.cpu.slots, 'slot')} on its CPU" if node.cpu else ""
    size = f"{format_cores(node.cpu_cores)} cores, {format_bytes(node.memory_bytes)} of memory"
    summary = Finding(Severity.OK, "node", f"{node.name}: {size}, {slots} on {devices}{beside}")
    findings = [summary, _state_folder(root), *_disk(root), _runtime()]
    if reading.problem:
        hint = "Run nvidia-smi; after a driver's upgrade the machine must be restarted."
        findings.append(Finding(Severity.WARNING, "gpu", reading.problem, hint))
    elif all(gpu.is_cpu for gpu in node.gpus):
        findings.append(Finding(Severity.OK, "gpu", "there is no NVIDIA GPU: workers use the cpu device"))
    else:
        findings.extend(check_gpus(node.gpus, reading.driver))
    findings.extend(Finding(Severity.WARNING, "state", problem) for problem in scan.problems)
    sentence = "its supervisor has ended: nothing restarts its processes or stores their output"
    for name in (state.folder.name for state in scan.runs if not state.is_supervised):
        hint = f"The next command of its owner starts another; or `l2rtui destroy {name}`."
        findings.append(Finding(Severity.WARNING, name, sentence, hint))
    return tuple(findings)


def find_leaks(root: StateFolder, scan: RunScan) -> tuple[Leak, ...]:
    """Find processes, folders and sockets of this state folder that belong to no run of it."""
    uids = {state.folder.path: state.uid for state in scan.runs if state.record is not None}
    corrupt = {state.folder.path for state in scan.runs if state.record is None}
    leaks = []
    for process in process_scan.find_tagged(lambda process: Path(process.folder).parent == root.runs):
        folder = Path(process.folder)
        # Without a readable record the uid is unknown: then every process of the folder counts as its own.
        if folder in corrupt or uids.get(folder) == process.run_id:
            continue
        pid = process.proc.pid
        reason = f"its run is gone: end it with `kill -9 {pid}`"
        leaks.append(Leak(process.run, "Process", f"{pid} {process.command}".strip(), reason))
    leaks.extend(_stale_folders(root))
    for path, run in run_folders.orphaned_socket_dirs(root.runs).items():
        leaks.append(Leak(run.name, "Sockets", str(path), "its run is gone: remove the folder"))
    return tuple(leaks)


def _stale_folders(root: StateFolder) -> Iterable[Leak]:
    for pattern, reason in ((STAGED, "a launch was broken off"), (REMOVED, "a destroy was broken off")):
        for path in root.runs.glob(f"{pattern}*"):
            # Not st_mtime: a rename, which marks the folder as removed, only updates st_ctime.
            try:
                age = time.time() - path.stat().st_ctime
            except OSError:
                continue
            if age > _STALE_SECONDS:
                yield Leak(path.name, "Folder", str(path), f"{reason}: remove the folder")


def _state_folder(root: StateFolder) -> Finding:
    try:
        client.make_root(root)
        # Permission bits prove nothing on a read-only or full file system; writing does.
        with tempfile.TemporaryFile(dir=root.runs):
            pass
    except OSError as error:
        problem = client.unwritable_error(root, error)
        sentence = problem.message[0].lower() + problem.message[1:].rstrip(".")  # the style of all findings
        return Finding(Severity.REFUSAL, "state", sentence, problem.hint)
    return Finding(Severity.OK, "state", f"the state folder {root.path} can be written")


def _disk(root: StateFolder) -> Iterator[Finding]:
    try:
        free = shutil.disk_usage(root.runs).free
    except OSError:
        return  # covered by the state folder's own finding
    sentence = f"{format_bytes(free)} of space is left at {root.path}"
    if free < _LOW_DISK_BYTES:
        hint = "Free some space, or set XDG_STATE_HOME to another disk."
        sentence = f"only {sentence}" if free else f"no space is left at {root.path}"
        yield Finding(Severity.WARNING, "disk", sentence, hint)
    else:
        yield Finding(Severity.OK, "disk", sentence)


def _command(name: str, path: str, cwd: str) -> Finding:
    command = find_command(name, path, cwd) if name else None
    if command is None:
        hint = _NO_SHELL_HINT if _FOR_A_SHELL.search(name) else "Write its path, or install it."
        sentence = f"the command {name!r} is not found, or not executable"
        return Finding(Severity.REFUSAL, name or "command", sentence, hint)
    if problem := _script_problem(Path(command)):
        return Finding(Severity.REFUSAL, name, f"{command} cannot be started: {problem}", "Correct its first line.")
    if name in OWN_COMMANDS and is_own(command) and (missing := _missing()):
        needs = f"{name} needs {', '.join(missing)}, which this Python does not have"
        return Finding(Severity.REFUSAL, name, needs, install_hint("runtime"))
    return Finding(Severity.OK, name, f"the command is {command}")


def _script_problem(path: Path) -> str:
    """Return why the kernel cannot start a script; empty if it can, or if the file is not a script.

    The kernel says "No such file or directory" of a script that is there, and means its interpreter.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_FIRST_LINE_BYTES).decode("ascii")
    except (OSError, UnicodeDecodeError):
        return ""
    if not text.startswith("#!"):
        return "" if "\0" in text else "it has no first line that names an interpreter, such as #!/bin/sh"
    interpreter = text[2:].partition("\n")[0].strip(" \t").partition(" ")[0]
    if not interpreter or Path(interpreter).exists():
        return ""
    ends = ", as its lines end like those of Windows" if interpreter.endswith("\r") else ""
    return f"its interpreter {interpreter!r} is not there{ends}"


def _missing_script(command: Sequence[str], cwd: str) -> str:
    """Return the script that a command passes to an interpreter and that is not there; empty without one."""
    while command and command[0] == RUNTIME_COMMAND and "--" in command:  # it runs the words after -- later
        command = command[command.index("--") + 1 :]
    if len(command) < 2 or not _INTERPRETER.fullmatch(PurePath(command[0]).name):
        return ""
    script = command[1]
    # Other first arguments are options, or words of another meaning.
    is_script = not script.startswith("-") and PurePath(script).suffix in (".py", ".sh")
    return script if is_script and not Path(cwd, script).is_file() else ""


def _settings(spec: RunSpec, path: str, cwd: str) -> tuple[Finding, ...]:
    """Return the mistakes in the training settings; settings without a mistake are tried by the runtime itself."""
    return (*(settings_findings(spec) or (_tried_settings(spec, path, cwd),)), *_missing_inputs(spec, cwd))


def _missing_inputs(spec: RunSpec, cwd: str) -> Iterator[Finding]:
    """Yield warnings about missing files that the learner reads; another run may still write them."""
    settings = train_settings(spec) or {}
    for name in _INPUTS:
        value = settings.get(name)
        if not isinstance(value, str) or not value or "://" in value or Path(cwd, value).exists():
            continue
        hint = "Write a path from /: nothing replaces ~ here." if value.startswith("~") else ""
        sentence = f"train.{name} of {spec.name}: {value} does not exist on this machine, so its learner will fail"
        yield Finding(Severity.WARNING, "train", sentence, hint)


def _tried_settings(spec: RunSpec, path: str, cwd: str) -> Finding:
    command = find_command(RUNTIME_COMMAND, path, cwd)
    if command is None:
        return Finding(Severity.OK, "train", "the training settings are read when the processes start")
    if _is_refused_anyway(spec):  # the runtime would only repeat the refusal
        return Finding(Severity.OK, "train", "the training settings are read when there is such an environment")
    # In a process of its own: the settings belong to the runtime, which this package does not import.
    stepping = _stepping_set(spec)
    env = {
        **clean_environ(),
        # Variables that an environment may read. Without the run's name: it may write files under it.
        contract.ENV_RUN: "preflight",
        contract.ENV_INDEX: "0",
        contract.ENV_SEED: str(spec.seed),
        **dict(spec.env),
        **dict(stepping.env),
        contract.ENV_CONFIG: spec.train,
    }
    if spec.workdir is not None:
        env |= workdirs.variables(str(Path(cwd).parent), env)
    module = next((part.program for part in spec.sets if part.program is not None and part.program.text), None)
    argv = [command, "config", "--check"]
    # An environment may need a key that only its pods get.
    if not stepping.pod.secrets:
        argv.append("--make")
    try:
        with tempfile.TemporaryDirectory() as folder:
            if module is not None:
                file = Path(folder) / module.name
                file.write_text(module.text, encoding="utf-8")
                argv += ["--program", str(file)]
            done = subprocess.run(
                argv,
                env=env,
                cwd=cwd,
                # The code of an environment must not read what is typed, or piped to a loop of a script.
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_CONFIG_SECONDS,
                check=False,
            )
    except subprocess.TimeoutExpired:
        sentence = f"train of {spec.name}: its environment has not made a step within {_CONFIG_SECONDS:g} s"
        return Finding(Severity.WARNING, "train", f"{sentence}; the settings are checked when the run starts")
    except OSError as error:
        return Finding(Severity.WARNING, "train", f"the training settings could not be checked: {error}")
    if done.returncode == 0:
        return Finding(Severity.OK, "train", "the training settings are understood")
    lines = done.stderr.strip().splitlines()
    sentence = (
        lines[-1].removeprefix(f"{RUNTIME_COMMAND}: ").removeprefix(f"{contract.ENV_CONFIG}: ").rstrip(".")
        if lines
        else f"exit {done.returncode}"
    )
    if spec.workdir is not None and spec.workdir.setup and "No module named" in sentence:
        # What setup installs is not here yet; a module that it does not install is the reason of the run's end.
        return Finding(Severity.OK, "train", f"the environment is made after setup; before it: {sentence}")
    return Finding(Severity.REFUSAL, "train", f"train of {spec.name}: {sentence}", HINT)


def _stepping_set(spec: RunSpec) -> SetSpec:
    """Return the set whose processes step the environment: workers, or a learner that collects itself."""
    roles = (Role.WORKER, Role.LEARNER)
    return min(spec.sets, key=lambda part: roles.index(part.role) if part.role in roles else len(roles))


def _is_refused_anyway(spec: RunSpec) -> bool:
    """Return true for an unknown environment, which the preflight of every backend refuses."""
    name = (train_settings(spec) or {}).get("environment")
    return isinstance(name, str) and not environments.is_possible(name)


def _runtime() -> Finding:
    command = find_command(RUNTIME_COMMAND, clean_environ().get("PATH", os.defpath), working_folder())
    if command is not None and not is_own(command):  # as where l2rtui is the one file
        return Finding(Severity.OK, "runtime", f"the training runtime is {command}")
    if missing := _missing():
        sentence = f"the training runtime is not installed, without {', '.join(missing)}"
        return Finding(Severity.WARNING, "runtime", sentence, install_hint("runtime"))
    return Finding(Severity.OK, "runtime", "the training runtime is installed")


def _missing() -> list[str]:
    """Return packages that the runtime needs and this interpreter lacks, without importing any of them."""
    return [name for name in _RUNTIME_NEEDS if importlib.util.find_spec(name) is None]
