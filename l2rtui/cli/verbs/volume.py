"""volume: volumes and the files on them: ls, create, delete, files, get, put."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from l2rtui.backends.base import VolumeStore
from l2rtui.cli.output import Column, View
from l2rtui.cli.session import Session
from l2rtui.domain.quantity import format_bytes
from l2rtui.domain.volume import FileEntry, Volume
from l2rtui.errors import EXIT_DONE, EXIT_FAILED, UsageError
from l2rtui.services import volumes

_VOLUMES = View(
    name="name",
    columns=(
        Column("NAME", "name"),
        Column("SIZE", lambda document: format_bytes(document["size_bytes"]), is_number=True),
        Column("PHASE", "phase"),
        Column("ACCESS", lambda document: ",".join(document["modes"])),
        Column("CLASS", "storage_class"),
        Column("MOUNTED BY", lambda document: ",".join(document["mounted_by"])),
        Column("REASON", "reason"),
    ),
)
_FILES = View(
    name="path",
    columns=(
        Column("PATH", lambda document: document["path"] + ("/" if document["kind"] == "folder" else "")),
        Column("SIZE", lambda document: format_bytes(document["size_bytes"]), is_number=True),
        Column("CHANGED", "changed"),
        Column("KIND", "kind", is_wide=True),
    ),
)


async def run_volume(session: Session) -> int:
    """Run the action that the first argument names."""
    actions = {"ls": _list, "create": _create, "delete": _delete, "files": _files, "get": _get, "put": _put}
    if session.args.action != "delete":
        session.args.yes = True  # it alone asks
    return await actions[session.args.action](session)


def _store(session: Session) -> VolumeStore:
    if session.backend.volumes is None:
        raise UsageError(
            f"The {session.backend.name} backend has no volumes of its own: what runs keep lies in plain folders.",
            "Volumes are a cluster's: --backend kubernetes.",
        )
    return session.backend.volumes


async def _list(session: Session) -> int:
    session.out.show_all(_VOLUMES, [_document(volume) for volume in await _store(session).list()])
    return EXIT_DONE


async def _create(session: Session) -> int:
    session.require_change("volume create")
    name, args = _name(session), session.args
    if not args.size:
        raise UsageError("volume create needs --size, such as --size 50Gi.")
    modes = tuple(mode.strip().upper() for mode in args.access.split(",") if mode.strip())
    made = await _store(session).create(name, args.size, storage_class=args.storage_class, modes=modes)
    session.talk.say(f"made {name}: {made.phase}{f', {made.reason}' if made.reason else ''}")
    session.out.show_all(_VOLUMES, [_document(made)])
    return EXIT_DONE


async def _delete(session: Session) -> int:
    session.require_change("volume delete")
    name, store = _name(session), _store(session)
    if not session.confirm(
        lambda: f"Delete the volume {name} and all files in it {session.backend.acts_on()}?", name
    ):
        return EXIT_FAILED
    await store.delete(name)
    session.talk.say(f"deleted {name}")
    return EXIT_DONE


async def _files(session: Session) -> int:
    name, path = _path(session.args.source)
    async with _store(session).files(name, session.args.image) as files:
        session.out.show_all(_FILES, [_file(entry) for entry in await files.entries(path)])
    return EXIT_DONE


async def _get(session: Session) -> int:
    session.require_change("volume get")
    name, path = _path(session.args.source)
    target = _local(session.args.target or ".")
    async with _store(session).files(name, session.args.image) as files:
        sentence = await volumes.download(files, path, target, session.talk.step)
    session.talk.say(f"{sentence}, of {name}")
    return EXIT_DONE


async def _put(session: Session) -> int:
    session.require_change("volume put")
    name, path = _path(session.args.target)
    source = _local(session.args.source)
    async with _store(session).files(name, session.args.image) as files:
        sentence = await volumes.upload(files, source, path, session.talk.step)
    session.talk.say(f"{name}: {sentence}, of {source}")
    return EXIT_DONE


def _name(session: Session) -> str:
    name: str = session.args.source
    if not name or ":" in name:
        raise UsageError(f"volume {session.args.action} takes the name of a volume.")
    return name


def _path(word: str) -> tuple[str, str]:
    name, _, path = word.partition(":")
    if not name:
        raise UsageError("Name a volume, and a path in it: NAME:PATH.")
    return name, path


def _local(word: str) -> Path:
    return Path(word).expanduser()


def _document(volume: Volume) -> dict[str, Any]:
    return {**asdict(volume), "modes": list(volume.modes), "mounted_by": list(volume.mounted_by)}


def _file(entry: FileEntry) -> dict[str, Any]:
    changed = datetime.fromtimestamp(entry.changed, UTC).isoformat(timespec="seconds")
    return {"path": entry.path, "kind": entry.kind, "size_bytes": entry.size, "changed": changed}
