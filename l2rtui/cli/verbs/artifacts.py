"""artifacts: the checkpoints that runs have put into a bucket or on a volume: ls, get, compare."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from l2rtui.backends.artifacts import Artifact, Artifacts
from l2rtui.cli.output import Column, View
from l2rtui.cli.session import Session
from l2rtui.domain.quantity import format_bytes
from l2rtui.errors import EXIT_DONE, UsageError
from l2rtui.services import artifacts
from l2rtui.services.progress import Counter

_LIST = View(
    name=lambda one: f"{one['place']}/{one['name']}",
    columns=(
        Column("NAME", lambda one: one["name"]),
        Column("RUN", lambda one: one["run"]),
        Column("SEED", lambda one: one["seed"], is_number=True),
        Column("STEPS", lambda one: one["env_steps"], is_number=True),
        Column("UPDATES", lambda one: one["updates"], is_number=True),
        Column("RETURN", lambda one: one["eval_return"], is_number=True),
        Column("SIZE", lambda one: format_bytes(one["bytes"]), is_number=True),
        Column("MADE", lambda one: one["made"]),
        Column("PLACE", lambda one: one["place"], is_wide=True),
        Column("PROBLEM", lambda one: one["problem"]),
    ),
)
_COMPARE = View(
    name=lambda one: one["field"],
    columns=(
        Column("FIELD", lambda one: one["field"]),
        Column("FIRST", lambda one: one["first"]),
        Column("SECOND", lambda one: one["second"]),
    ),
)


async def run_artifacts(session: Session) -> int:
    """Do what the first word says."""
    actions = {"ls": _list, "get": _get, "compare": _compare}
    return await actions[session.args.action](session)


async def _list(session: Session) -> int:
    root = await artifacts.root_of(session.backend, session.args.place)
    session.out.show_all(_LIST, [_document(one) for one in await Artifacts(root).list()])
    return EXIT_DONE


async def _get(session: Session) -> int:
    session.require_change("artifacts get")
    places, one = await _find(session, session.args.place)
    folder = _folder(session.args.to)
    session.talk.say(f"fetching {one.place}/{one.name}: {format_bytes(one.bytes)}")
    data = await places.fetch(one, folder, Counter(session.talk.step, one.bytes).add)
    session.talk.say(f"{data} is whole; begin from it with `--set train.resume_from={folder}`")
    session.out.show_all(_LIST, [_document(one)])
    return EXIT_DONE


def _folder(word: str) -> Path:
    return Path(word or ".").expanduser().resolve()


async def _compare(session: Session) -> int:
    if not session.args.other:
        raise UsageError("artifacts compare takes two: PLACE[/NAME] and PLACE[/NAME].")
    _, first = await _find(session, session.args.place)
    _, second = await _find(session, session.args.other)
    rows = artifacts.differences(first, second)
    session.out.show_all(_COMPARE, [dict(zip(("field", "first", "second"), row, strict=True)) for row in rows])
    return EXIT_DONE


async def _find(session: Session, word: str) -> tuple[Artifacts, Artifact]:
    """A word names a place, a run, or one checkpoint in a place."""
    place, _, name = word.rpartition("/")
    is_one = name.startswith("ckpt-")
    places = Artifacts(await artifacts.root_of(session.backend, f"{place}/" if is_one else word))
    return places, await artifacts.choose(places, name.removesuffix(".json") if is_one else session.args.name)


def _document(one: Artifact) -> dict[str, Any]:
    made = one.facts.get("time")
    return {
        "place": one.place,
        "name": one.name,
        "env_steps": one.env_steps,
        "updates": one.updates,
        "bytes": one.bytes,
        "sha256": one.sha256,
        "run": one.facts.get("run"),
        "run_id": one.facts.get("run_id"),
        "seed": one.facts.get("seed"),
        "environment": one.facts.get("environment"),
        "algorithm": one.facts.get("algorithm"),
        "eval_return": one.facts.get("eval_return"),
        "made": datetime.fromtimestamp(made, UTC).isoformat(timespec="seconds")
        if isinstance(made, int | float)
        else None,
        "problem": one.problem,
    }
