"""artifacts: list, download and compare the checkpoints of runs in a bucket or folder."""

from __future__ import annotations

from pathlib import Path

from l2rtui.cli.session import Session
from l2rtui.cloud.artifacts import Artifact, Artifacts
from l2rtui.domain.quantity import format_bytes
from l2rtui.errors import EXIT_DONE, UsageError
from l2rtui.services import artifacts
from l2rtui.services.volumes import Counter
from l2rtui.tables.artifacts import ARTIFACTS
from l2rtui.tables.column import Column, View

_COMPARE = View(
    name="field", columns=(Column("FIELD", "field"), Column("FIRST", "first"), Column("SECOND", "second"))
)


async def run_artifacts(session: Session) -> int:
    """Run the action that the first argument names."""
    actions = {"ls": _list, "get": _get, "compare": _compare}
    return await actions[session.args.action](session)


async def _list(session: Session) -> int:
    root = await artifacts.root_of(session.backend, session.args.place)
    session.out.show_all(ARTIFACTS, await Artifacts(root).list())
    return EXIT_DONE


async def _get(session: Session) -> int:
    session.require_change("artifacts get")
    places, artifact = await _find(session, session.args.place)
    folder = _folder(session.args.to)
    session.talk.say(f"fetching {artifact.location}/{artifact.name}: {format_bytes(artifact.bytes)}")
    data = await places.fetch(artifact, folder, Counter(session.talk.step, artifact.bytes).add)
    session.talk.say(f"{data} is whole; begin from it with `--set train.resume_from={folder}`")
    session.out.show_all(ARTIFACTS, [artifact])
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
    """Return the store and checkpoint that an argument names: PLACE, RUN, or PLACE/NAME."""
    place, _, name = word.rpartition("/")
    is_one = name.startswith("ckpt-")
    places = Artifacts(await artifacts.root_of(session.backend, f"{place}/" if is_one else word))
    return places, await artifacts.choose(places, name.removesuffix(".json") if is_one else session.args.name)
