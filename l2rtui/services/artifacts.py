"""Checkpoints of a run: their root, the newest complete one, a spec that resumes from one, differences."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from l2rtui.backends.base import Backend
from l2rtui.cloud.artifacts import Artifact, Artifacts
from l2rtui.domain.workload import RunSpec, name_problem
from l2rtui.errors import NotFoundError, UsageError
from l2rtui.services import destroyed_specs
from runtime.base import bounded_json

DATA_DIR: Final = "/l2r"
"""Path of L2R_DIR in containers."""


async def root_of(backend: Backend, target: str) -> str:
    """Return the root of checkpoints: a URL or path unchanged, or the root of the named run.

    This is the place to which the run copies checkpoints according to its spec, otherwise its results folder if
    that is on this machine, even after the run was destroyed.

    Raises:
        NotFoundError: the run does not exist.
        UsageError: the run copies no checkpoints, and its results are on another machine.
    """
    if "/" in target or target.startswith(("~", ".")):
        return target
    try:
        spec = await backend.spec(target)
    except NotFoundError:
        if folder := await _folder_of(backend, target):
            return folder
        raise
    train: dict[str, Any] = bounded_json.decode(spec.train)
    place = train.get("artifacts")
    if isinstance(place, str) and place:
        root = f"{place.rstrip('/')}/{spec.name}"
        # A path of the pods may exist here too: a login node often mounts the same file system.
        volume = "" if "://" in place or backend.results is not None else _volume_of(spec, root)
        if volume and not await asyncio.to_thread(Path(root).is_dir):
            raise UsageError(
                f"{target} keeps its checkpoints in {root} of its pods.", f"See `l2rtui volume files {volume}`."
            )
        return root
    if folder := await _folder_of(backend, target):
        return folder
    hint = "Launch with `--set train.artifacts=s3://BUCKET/PREFIX` or a folder; or name a place."
    if volume := _volume_of(spec, DATA_DIR):
        hint = f"They are in its volume {volume}: see `l2rtui volume files {volume}`."
    raise UsageError(f"{target} copies its checkpoints nowhere.", hint)


def _volume_of(spec: RunSpec, path: str) -> str:
    """Return the claim that holds a path of the pods, as ``CLAIM`` or ``CLAIM:FOLDER``; empty without one."""
    for mount in (mount for part in spec.sets for mount in part.pod.mounts if mount.claim):
        if PurePosixPath(path).is_relative_to(mount.path):
            inner = PurePosixPath(path).relative_to(mount.path)
            return mount.claim if inner == PurePosixPath() else f"{mount.claim}:{inner}"
    return ""


async def _folder_of(backend: Backend, run: str) -> str:
    """Return the folder of this machine with the results of a run; empty without one."""
    folder = await backend.results(run) if backend.results is not None else None
    return str(folder) if folder is not None else ""


async def tensorboard_folder(backend: Backend, run: str) -> str:
    """Return the folder with the TensorBoard files of a run, which may be destroyed; empty if none is here."""
    folder = await _folder_of(backend, run)
    path = Path(folder, "tensorboard")
    is_there: bool = bool(folder) and await asyncio.to_thread(path.is_dir)
    return str(path) if is_there else ""


async def choose(store: Artifacts, name: str) -> Artifact:
    """Return the checkpoint of this name, or the newest complete one for an empty name.

    Raises:
        NotFoundError: no such checkpoint.
    """
    artifacts = [artifact for artifact in await store.list() if name in ("", artifact.name)]
    complete = [artifact for artifact in artifacts if not artifact.problem]
    if not complete:
        what = f"no checkpoint {name}" if name else "no whole checkpoint"
        raise NotFoundError(f"There is {what} in {store.root}.", "See `l2rtui artifacts ls PLACE`.")
    return max(complete, key=lambda artifact: (artifact.facts.get("time", 0.0), artifact.name))


async def resumed(backend: Backend, artifact: Artifact, name: str) -> RunSpec:
    """Return the spec of a run that continues from a checkpoint: the spec that made it, under a new name.

    Raises:
        UsageError: the name is not valid, or the checkpoint is damaged.
        NotFoundError: the spec of the run that made it is unknown.
    """
    if problem := name_problem(name):
        raise UsageError(f"{problem}.")
    if artifact.problem:
        sentence = f"{artifact.location}/{artifact.name} cannot be used: {artifact.problem}."
        raise UsageError(sentence, "Take another.")
    run = str(artifact.facts.get("run") or "")
    try:
        # The live spec first: the history has only destroyed runs.
        before = await backend.spec(run)
    except NotFoundError:
        before = (await asyncio.to_thread(destroyed_specs.find, run or artifact.name))[0]
    train: dict[str, Any] = {**bounded_json.decode(before.train), "resume_from": artifact.location}
    return replace(before, name=name, experiment=name, train=msgspec.json.encode(train).decode())


def differences(first: Artifact, second: Artifact) -> Sequence[tuple[str, Any, Any]]:
    """Return name and both values of each fact that differs, and of the counters always."""
    keys = dict.fromkeys([*first.facts, *second.facts])
    facts = [(key, first.facts.get(key), second.facts.get(key)) for key in keys]
    counters = ("name", "env_steps", "updates", "bytes")
    always = [(name, getattr(first, name), getattr(second, name)) for name in counters]
    return [("place", first.location, second.location), *always, *(row for row in facts if row[1] != row[2])]
