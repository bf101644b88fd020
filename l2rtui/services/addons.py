"""Add-ons of a cluster (drivers, metrics, volumes), applied from ``manifests/addons``; each has a version.

They are applied by server-side apply: a field of ours that was changed by hand is reset, and fields of other
managers stay. Images are named by the digest that their registry has for the tag in the file. If the registry does
not answer, the digest that already runs on the cluster stays, otherwise the tag.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from l2rtui.backends.kubernetes.api.client import Api, connect
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.manifests import rbac
from l2rtui.backends.registry import eks_token
from l2rtui.domain.imageref import parse_image
from l2rtui.errors import L2RError
from l2rtui.services import images as registries

VERSION = "l2rtui.io/version"
"""Annotation of each object: the version of the add-on."""
_APPLIES_API_SERVICES = (1, 21)
"""Kubernetes before this version closes the connection when an APIService is applied on the server side."""
_LOOKUP_SECONDS: Final = 10.0
"""For all registries together: an installation behind a wall must not wait for each of them."""
EVERYBODY: Final = "system:authenticated"
"""Group of everybody who can log in to a cluster."""
_EFS_DRIVER: Final = "efs.csi.aws.com"


class Applied(Struct, frozen=True):
    """One object of one add-on, with the images of its pods."""

    addon: str
    version: str
    object: str
    outcome: str
    images: tuple[str, ...] = ()


class AddonImage(Struct, frozen=True):
    """One image of an add-on.

    Attributes:
        name: As in the file, with a tag. digest: current digest of the tag; empty if unknown.
        reason: Why the digest is not known.
    """

    addon: str
    name: str
    digest: str = ""
    reason: str = ""

    @property
    def sentence(self) -> str:
        """One line for the user."""
        if self.digest:
            return f"{self.addon}: {self.name}@{self.digest}"
        return f"{self.addon}: {self.name} by its tag, for its digest is not known: {self.reason}"


def addons_folder() -> Path:
    """Return the folder of the manifests: in the source tree, or in the installed package."""
    here = Path(__file__).resolve()
    places = (here.parents[2] / "manifests" / "addons", here.parents[1] / "manifests" / "addons")
    return next((candidate for candidate in places if candidate.is_dir()), places[0])


def read_addons() -> list[tuple[str, dict[str, Any]]]:
    """Return every object with the name of its add-on, in the order in which they are applied.

    Raises:
        L2RError: the files do not exist.
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


async def resolve_images() -> list[AddonImage]:
    """Ask the registries for the digest of every image of the add-ons; a registry that does not answer is not an
    error.
    """
    pairs = {(addon, name) for addon, manifest in read_addons() for name in images_of(manifest)}
    return list(await asyncio.gather(*(_resolve(addon, name) for addon, name in sorted(pairs))))


async def _resolve(addon: str, name: str) -> AddonImage:
    image = parse_image(name)
    if image.digest:  # a file that was edited to name a digest
        return AddonImage(addon, str(image).partition("@")[0], image.digest)
    try:
        async with asyncio.timeout(_LOOKUP_SECONDS):
            return AddonImage(addon, name, await registries.digest_of(image))
    except L2RError as error:
        return AddonImage(addon, name, reason=error.message.rstrip("."))
    except TimeoutError:
        return AddonImage(addon, name, reason=f"{image.registry} has not answered within {_LOOKUP_SECONDS:g} s")


def _containers(manifest: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    pod = ((manifest.get("spec") or {}).get("template") or {}).get("spec") or {}
    yield from (*(pod.get("initContainers") or ()), *(pod.get("containers") or ()))


def images_of(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the images of the containers of a workload."""
    return tuple(str(container["image"]) for container in _containers(manifest))


async def apply_addons(
    context: str,
    kubeconfig: str | None = None,
    *,
    dry_run: bool = False,
    images: Sequence[AddonImage] = (),
    file_system: str = "",
) -> AsyncGenerator[Applied, None]:
    """Apply every add-on to a cluster.

    Args:
        dry_run: Let the server check everything without changes.
        images: Digests of their images, from ``resolve_images``.
        file_system: Id of an EFS file system that becomes a volume; empty for none.

    Raises:
        ApiError: the server refuses an object; names it.
    """
    objects = read_addons()
    if file_system:
        objects.append(("shared files", shared_volume(file_system)))
    digests = {image.name: image.digest for image in images if image.digest}
    async with aclosing(_apply_all(context, kubeconfig, objects, digests, dry_run=dry_run)) as applied:
        async for item in applied:
            yield item


async def prepare_claims(
    context: str,
    kubeconfig: str | None = None,
    *,
    namespace: str = "",
    users: Sequence[str] = (),
    dry_run: bool = False,
) -> AsyncGenerator[Applied, None]:
    """Make the namespace in which the users of all namespaces claim slots.

    Args:
        namespace: The one that the settings name; empty for the usual one.
        users: Those who may claim there; empty for everybody who can log in.

    Raises:
        ApiError: the server refuses an object; names it.
    """
    from l2rtui import bounded_yaml

    subjects = [(user, "User") for user in users] or [(EVERYBODY, "Group")]
    texts = [rbac.claims_manifest(*subject, namespace) for subject in subjects]
    objects = {str(manifest): ("claims", manifest) for text in texts for manifest in bounded_yaml.load_all(text)}
    async with aclosing(_apply_all(context, kubeconfig, list(objects.values()), {}, dry_run=dry_run)) as applied:
        async for item in applied:
            yield item


async def _apply_all(
    context: str,
    kubeconfig: str | None,
    objects: Sequence[tuple[str, dict[str, Any]]],
    digests: Mapping[str, str],
    *,
    dry_run: bool,
) -> AsyncGenerator[Applied, None]:
    """Apply objects, each of which has the name of its add-on."""
    api = await connect(context, kubeconfig, eks_token=eks_token)
    made = {manifest["metadata"]["name"] for _, manifest in objects if manifest["kind"] == "Namespace"}
    try:
        for addon, manifest in objects:
            meta = manifest["metadata"]
            name = f"{manifest['kind']} {meta['name']}"
            try:
                await _pin(api, manifest, digests)
                await _apply(api, manifest, dry_run=dry_run)
            except ApiError as error:
                if dry_run and error.is_not_found and meta.get("namespace") in made:
                    continue  # its namespace is made by none but a real request
                sentence = f"{addon} was not applied: {name}: {error.message}"
                raise L2RError(sentence, error.hint) from error
            outcome = "would be applied" if dry_run else "applied"
            version = (meta.get("annotations") or {}).get(VERSION, "")
            yield Applied(addon, version, name, outcome, images_of(manifest))
    finally:
        await api.close()


async def _pin(api: Api, manifest: dict[str, Any], digests: Mapping[str, str]) -> None:
    """Name the images of a manifest by digest: the given one, otherwise the running one of the same tag."""
    names = images_of(manifest)
    if not names:
        return
    current: dict[str, str] = {}
    # If a registry did not answer: otherwise the tag would replace a digest, and restart all pods.
    if not set(names) <= set(digests):
        meta = manifest["metadata"]
        existing = await api.find(manifest["kind"], meta["namespace"], meta["name"])
        pairs = (image.partition("@") for image in images_of(existing or {}))
        current = {name: digest for name, _, digest in pairs if digest}
    for container in _containers(manifest):
        name = container["image"]
        if digest := digests.get(name) or current.get(name, ""):
            container["image"] = f"{name}@{digest}"


def shared_volume(file_system: str) -> dict[str, Any]:
    """Return an EFS file system as an existing volume, which is neither created nor removed.

    A claim binds it by its class, which has the volume's name: a StorageClass of that name need not exist.
    """
    name = f"efs-{file_system}"
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Ti"},  # required but meaningless: EFS grows automatically
            "accessModes": ["ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": name,
            "csi": {"driver": _EFS_DRIVER, "volumeHandle": file_system},
        },
    }


async def _apply(api: Api, manifest: dict[str, Any], *, dry_run: bool) -> None:
    """Apply one object; if the server cannot apply objects of this kind, create or patch it."""
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
