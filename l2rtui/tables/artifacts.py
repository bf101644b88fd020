"""Images and checkpoints: columns and JSON documents."""

from __future__ import annotations

from datetime import UTC, datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from l2rtui.domain.imageref import parse_image
from l2rtui.domain.quantity import format_bytes
from l2rtui.domain.status import Level
from l2rtui.tables.column import Column, Document, TableColumn, View, app_only, both

if TYPE_CHECKING:
    from l2rtui.cloud.artifacts import Artifact
    from l2rtui.cloud.images.engine import LocalImage

_FACTS: Final = ("run", "run_id", "seed", "environment", "algorithm", "eval_return")


# --- images ----------------------------------------------------------------------------------------------------
def local_image_document(image: LocalImage) -> dict[str, Any]:
    """Return the JSON form of an image in the Engine's store."""
    digest = image.digests[0].partition("@")[2] if image.digests else ""
    build = {"created": image.created, "revision": image.revision, "dirty": image.is_dirty}
    build |= {"base": image.base, "base_digest": image.base_digest}
    return image_document(image.name, digest, id=image.id, size_bytes=image.size_bytes, **build)


def image_document(name: str, digest: str, **more: Any) -> dict[str, Any]:
    """Return the JSON form of an image of a registry, of which only the digest is known, and more facts."""
    facts = {"id": "", "size_bytes": None, "created": "", "revision": "", "dirty": None} | more
    facts = {"base": "", "base_digest": ""} | facts
    pinned = str(parse_image(name).pinned(digest)) if digest else ""
    return {"image": name, "digest": digest, "pinned": pinned, **facts}


IMAGES: Final[View[Document]] = View(
    "image",
    (
        both("image", itemgetter("image"), 60, style="strong"),
        Column(
            "SIZE",
            "size_bytes",
            text=format_bytes,
            app=TableColumn("size", "size", 8, right=True, text=format_bytes),
        ),
        app_only(TableColumn("built", "built", 6, is_age=True, right=True)),
        both("revision", itemgetter("revision"), 14, style="dim"),
        both(
            "dirty",
            itemgetter("dirty"),
            5,
            style="dim",
            text=lambda is_dirty: "yes" if is_dirty else "no",
            level=lambda row: Level.WARN if row["dirty"] else None,
        ),
        Column("CREATED", "created", is_wide=True),
        both("digest", itemgetter("digest"), 80, 2, style="dim"),
    ),
)


# --- checkpoints -----------------------------------------------------------------------------------------------
def _made(artifact: Artifact) -> str | None:
    made = artifact.facts.get("time")
    if not isinstance(made, int | float):
        return None
    return datetime.fromtimestamp(made, UTC).isoformat(timespec="seconds")


def artifact_document(artifact: Artifact) -> dict[str, Any]:
    """Return the JSON form of a checkpoint; its facts come from inside a run and may have any type."""
    return {
        "place": artifact.location,
        "name": artifact.name,
        "env_steps": artifact.env_steps,
        "updates": artifact.updates,
        "bytes": artifact.bytes,
        "sha256": artifact.sha256,
        **{name: artifact.facts.get(name) for name in _FACTS},
        "made": _made(artifact),
        "problem": artifact.problem,
    }


ARTIFACTS: Final[View[Artifact]] = View(
    lambda artifact: f"{artifact.location}/{artifact.name}",
    (
        Column("NAME", lambda artifact: artifact.name, app=TableColumn("checkpoint", "checkpoint", 40)),
        both("run", lambda artifact: artifact.facts.get("run"), 24),
        both("seed", lambda artifact: artifact.facts.get("seed"), 6, is_number=True),
        both(
            "env steps",
            lambda artifact: artifact.env_steps,
            14,
            header="STEPS",
            key="steps",
            is_number=True,
            text="{:,}".format,
        ),
        Column("UPDATES", lambda artifact: artifact.updates, is_number=True),
        both("return", lambda artifact: artifact.facts.get("eval_return"), 10, is_number=True),
        both("size", lambda artifact: artifact.bytes, 8, is_number=True, text=format_bytes, cli_text=format_bytes),
        Column("MADE", _made, app=TableColumn("made", "made", 8, right=True)),
        Column("PLACE", lambda artifact: artifact.location, is_wide=True),
        both("problem", lambda artifact: artifact.problem, 80, 2, style="bad"),
    ),
    document=artifact_document,
)
