"""Checkpoints of a run: their root, the newest complete one, a spec that resumes from one, differences."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from l2rtui.backends.base import Backend
from l2rtui.cloud.artifacts import Artifact, Artifacts
from l2rtui.domain.workload import RunSpec, name_problem
from l2rtui.errors import NotFoundError, UsageError
from l2rtui.services import run_history


async def root_of(backend: Backend, target: str) -> str:
    """Return the root of checkpoints: a URL or path unchanged, or the one in the spec of the run that is named.

    Raises:
        NotFoundError: there is no such run.
        UsageError: the run uploads no checkpoints.
    """
    if "/" in target or target.startswith(("~", ".")):
        return target
    spec = await backend.spec(target)
    train: dict[str, Any] = msgspec.json.decode(spec.train)
    place = train.get("artifacts")
    if not isinstance(place, str) or not place:
        hint = "Launch with `--set train.artifacts=s3://BUCKET/PREFIX` or a folder; or name a place."
        raise UsageError(f"{target} copies its checkpoints nowhere.", hint)
    return f"{place.rstrip('/')}/{spec.name}"


async def choose(store: Artifacts, name: str) -> Artifact:
    """Return the checkpoint of this name, or the newest complete one where the name is empty.

    Raises:
        NotFoundError: there is none.
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
        NotFoundError: the spec of the run that made it is not known.
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
        before = (await asyncio.to_thread(run_history.find, run or artifact.name))[0]
    train: dict[str, Any] = {**msgspec.json.decode(before.train), "resume_from": artifact.location}
    return replace(before, name=name, experiment=name, train=msgspec.json.encode(train).decode())


def differences(first: Artifact, second: Artifact) -> Sequence[tuple[str, Any, Any]]:
    """Return name and both values of each fact that differs, and of the counters in any case."""
    keys = dict.fromkeys([*first.facts, *second.facts])
    facts = [(key, first.facts.get(key), second.facts.get(key)) for key in keys]
    counters = ("name", "env_steps", "updates", "bytes")
    always = [(name, getattr(first, name), getattr(second, name)) for name in counters]
    return [("place", first.location, second.location), *always, *(row for row in facts if row[1] != row[2])]
