"""Where the checkpoints of a run are, and what tells two of them apart."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from l2rtui.backends.artifacts import Artifact, Artifacts
from l2rtui.backends.base import Backend
from l2rtui.domain.workload import RunSpec, name_problem
from l2rtui.errors import NotFoundError, UsageError
from l2rtui.services import lastruns


async def root_of(backend: Backend, target: str) -> str:
    """The place that a word names: a URL or path as it is, a run by what its spec says.

    Raises:
        NotFoundError: there is no such run.
        UsageError: the run copies its checkpoints nowhere.
    """
    if "/" in target or target.startswith(("~", ".")):
        return target
    spec = await backend.spec(target)
    train: dict[str, Any] = msgspec.json.decode(spec.train)
    place = train.get("artifacts")
    if not isinstance(place, str) or not place:
        raise UsageError(
            f"{target} copies its checkpoints nowhere.",
            "Launch with `--set train.artifacts=s3://BUCKET/PREFIX` or a folder; or name a place.",
        )
    return f"{place.rstrip('/')}/{spec.name}"


async def choose(places: Artifacts, name: str) -> Artifact:
    """One checkpoint: by its name, or the newest that is whole where the name is empty.

    Raises:
        NotFoundError: there is none.
    """
    found = [one for one in await places.list() if name in ("", one.name)]
    whole = [one for one in found if not one.problem]
    if not whole:
        what = f"no checkpoint {name}" if name else "no whole checkpoint"
        raise NotFoundError(f"There is {what} in {places.root}.", "See `l2rtui artifacts ls PLACE`.")
    return max(whole, key=lambda one: (one.facts.get("time", 0.0), one.name))


async def resumed(backend: Backend, one: Artifact, name: str) -> RunSpec:
    """The spec of a run that trains on from where a checkpoint lies: that of who made it, under a new name.

    Raises:
        UsageError: the name is none, or the checkpoint is not whole.
        NotFoundError: nobody knows the spec of the run that made it.
    """
    if problem := name_problem(name):
        raise UsageError(f"{problem}.")
    if one.problem:
        raise UsageError(f"{one.place}/{one.name} cannot be used: {one.problem}.", "Take another.")
    run = str(one.facts.get("run") or "")
    try:
        before = await backend.spec(run)
    except NotFoundError:
        before = (await asyncio.to_thread(lastruns.find, run or one.name))[0]
    train: dict[str, Any] = {**msgspec.json.decode(before.train), "resume_from": one.place}
    return replace(before, name=name, experiment=name, train=msgspec.json.encode(train).decode())


def differences(first: Artifact, second: Artifact) -> Sequence[tuple[str, Any, Any]]:
    """Name and both values of everything in which two checkpoints differ, and of what they count."""
    keys = dict.fromkeys([*first.facts, *second.facts])
    facts = [(key, first.facts.get(key), second.facts.get(key)) for key in keys]
    always = [
        ("place", first.place, second.place),
        ("name", first.name, second.name),
        ("env_steps", first.env_steps, second.env_steps),
        ("updates", first.updates, second.updates),
        ("bytes", first.bytes, second.bytes),
    ]
    return [*always, *(row for row in facts if row[1] != row[2])]
