"""Add-ons of a cluster (drivers, metrics, volumes), applied from ``manifests/addons``; each has a version.

The files are applied unchanged, by server-side apply: a field of ours that was changed by hand is set back, and
fields of other managers stay.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from l2rtui.backends.kubernetes.api.client import Api, connect
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.registry import eks_token
from l2rtui.errors import L2RError

VERSION = "l2rtui.io/version"
"""Annotation of each object: the version of the add-on."""
_APPLIES_API_SERVICES = (1, 21)
"""Kubernetes 1.20 closes the connection when an APIService is applied on the server side."""


@dataclass(frozen=True, slots=True)
class Applied:
    """One object of one add-on."""

    addon: str
    version: str
    object: str
    outcome: str


def addons_folder() -> Path:
    """Return the folder of the manifests: in the source tree, or in the installed package."""
    here = Path(__file__).resolve()
    places = (here.parents[2] / "manifests" / "addons", here.parents[1] / "manifests" / "addons")
    return next((candidate for candidate in places if candidate.is_dir()), places[0])


def read_addons() -> list[tuple[str, dict[str, Any]]]:
    """Return every object with the name of its add-on, in the order in which they are applied.

    Raises:
        L2RError: the files are not there.
    """
    from l2rtui import bounded_yaml

    folder = addons_folder()
    files = sorted(folder.glob("*.yaml"))
    if not files:
        raise L2RError(f"There are no add-ons in {folder}.", "Use the source tree, or --no-addons.")
    return [
        (file.stem, manifest)
        for file in files
        for manifest in bounded_yaml.load_all(file.read_text("utf-8"))
        if manifest is not None
    ]


async def apply_addons(
    context: str, kubeconfig: str | None = None, *, dry_run: bool = False
) -> AsyncGenerator[Applied, None]:
    """Apply every add-on to a cluster.

    Args:
        dry_run: Let the server judge everything and change nothing.

    Raises:
        ApiError: the server refuses an object; names it.
    """
    objects = read_addons()
    api = await connect(context, kubeconfig, eks_token=eks_token)
    try:
        for addon, manifest in objects:
            meta = manifest["metadata"]
            name = f"{manifest['kind']} {meta['name']}"
            try:
                await _apply(api, manifest, dry_run=dry_run)
            except ApiError as error:
                sentence = f"The add-on {addon} was not applied: {name}: {error.message}"
                raise L2RError(sentence, error.hint) from error
            outcome = "would be applied" if dry_run else "applied"
            yield Applied(addon, meta["annotations"][VERSION], name, outcome)
    finally:
        await api.close()


async def _apply(api: Api, manifest: dict[str, Any], *, dry_run: bool) -> None:
    """Apply one object; where the server cannot apply objects of this kind, create or patch it."""
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    # force=True: the fields are ours, and a conflict with an older field manager must not stop an update.
    if kind != "APIService" or api.server_version >= _APPLIES_API_SERVICES:
        await api.apply(manifest, dry_run=dry_run, force=True)
        return
    try:
        await api.create(manifest, dry_run=dry_run)
    except ApiError as error:
        if not error.is_taken:
            raise
        if not dry_run:
            await api.patch(kind, None, name, manifest)
