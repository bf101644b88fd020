"""What a cluster needs besides runs, applied from ``manifests/addons``: drivers, metrics, volumes; each versioned.

The files are applied as they are, by server-side apply: what somebody has changed by hand in a field of ours comes
back, and fields of others stay.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from l2rtui.backends.kubernetes.client import Api, connect
from l2rtui.backends.kubernetes.errors import ApiError
from l2rtui.backends.registry import eks_token
from l2rtui.errors import L2RError

VERSION = "l2rtui.io/version"
"""Annotation of each object: the version of the add-on."""
_APPLIES_API_SERVICES = (1, 21)
"""Kubernetes 1.20 breaks off in the middle when an APIService is applied by the server."""


@dataclass(frozen=True, slots=True)
class Applied:
    """One object of one add-on."""

    addon: str
    version: str
    object: str
    outcome: str


def addons_folder() -> Path:
    """Where the manifests lie: in the source tree, or with the installed program."""
    here = Path(__file__).resolve()
    places = (here.parents[2] / "manifests" / "addons", here.parents[1] / "manifests" / "addons")
    return next((one for one in places if one.is_dir()), places[0])


def read_addons() -> list[tuple[str, dict[str, Any]]]:
    """Every object with the name of its add-on, in the order in which they are applied.

    Raises:
        L2RError: the files are not there.
    """
    import yaml

    folder = addons_folder()
    files = sorted(folder.glob("*.yaml"))
    if not files:
        raise L2RError(f"There are no add-ons in {folder}.", "Use the source tree, or --no-addons.")
    return [
        (file.stem, one) for file in files for one in yaml.safe_load_all(file.read_text("utf-8")) if one is not None
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
                raise L2RError(
                    f"The add-on {addon} was not applied: {name}: {error.message}", error.hint
                ) from error
            outcome = "would be applied" if dry_run else "applied"
            yield Applied(addon, meta["annotations"][VERSION], name, outcome)
    finally:
        await api.close()


async def _apply(api: Api, manifest: dict[str, Any], *, dry_run: bool) -> None:
    """Apply one object; where the server cannot apply objects of this kind, create or patch it."""
    kind, name = manifest["kind"], manifest["metadata"]["name"]
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
