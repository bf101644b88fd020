"""Persistent volume claims: listed with the pods that mount them, created, deleted, and opened for their files."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.manifests.pod_parts import new_object
from l2rtui.backends.kubernetes.storage.volume_files import PodFiles, opened
from l2rtui.domain.quantity import parse_bytes, parse_quantity
from l2rtui.domain.volume import Volume
from l2rtui.domain.workload import name_problem
from l2rtui.errors import NotFoundError, RefusedError, UsageError

KIND: Final = "PersistentVolumeClaim"
MODES: Final = {"RWO": "ReadWriteOnce", "RWX": "ReadWriteMany", "ROX": "ReadOnlyMany", "RWOP": "ReadWriteOncePod"}
_BIND_SECONDS = 3.0
_BIND_POLL_SECONDS = 0.3


class Volumes:
    """The claims of one namespace.

    Args:
        connect: Returns the open connection.
        image: Image of the pods that transfer files; it needs a POSIX shell, GNU find and tar.
        owner: User name for the labels of new objects.
    """

    def __init__(self, connect: Callable[[], Awaitable[Api]], image: str, owner: str) -> None:
        self._connect = connect
        self._image = image
        self._owner = owner

    async def list(self) -> tuple[Volume, ...]:
        """Return every claim, and the pods that mount it."""
        api = await self._connect()
        claims, pods = await asyncio.gather(api.list(KIND, api.namespace), api.list("Pod", api.namespace))
        users = _users(pods)
        return tuple(_volume(claim, tuple(users[str(claim["metadata"]["name"])])) for claim in claims)

    async def create(
        self, name: str, size: str, *, storage_class: str = "", modes: tuple[str, ...] = ("RWO",)
    ) -> Volume:
        """Create a claim, and wait briefly until it is bound.

        Args:
            size: A quantity, such as ``50Gi``. storage_class: Empty for the cluster's default.
            modes: Short names of access modes: RWO, RWX, ROX, RWOP.

        Raises:
            UsageError: A value is invalid.
            ApiError: The server refuses.
        """
        _refuse_values(name, size, modes)
        api = await self._connect()
        access_modes = [MODES[mode] for mode in modes]
        spec: dict[str, Any] = {"accessModes": access_modes, "resources": {"requests": {"storage": size}}}
        if storage_class:
            # A missing field means the default class; an empty name means no dynamic provisioning.
            spec["storageClassName"] = "" if storage_class == "none" else storage_class
        own_labels = {labels.APP_MANAGED_BY: labels.MANAGED_BY, labels.OWNER: labels.label_value(self._owner)}
        meta = {"namespace": api.namespace, "labels": own_labels}
        await api.create(new_object(KIND, name, meta=meta, spec=spec))
        # With WaitForFirstConsumer the claim stays Pending until a pod mounts it, so the wait is short.
        until = asyncio.get_running_loop().time() + _BIND_SECONDS
        while True:
            volume = _volume(await api.read(KIND, api.namespace, name), ())
            if volume.phase == "Bound" or asyncio.get_running_loop().time() > until:
                return volume
            await asyncio.sleep(_BIND_POLL_SECONDS)

    async def delete(self, name: str) -> None:
        """Delete a claim; NotFoundError if it does not exist, RefusedError while a pod mounts it."""
        api = await self._connect()
        volume = await self._read_volume(api, name)
        if volume.mounted_by:
            raise RefusedError(
                f"{name} is mounted by {', '.join(volume.mounted_by)}.", "Destroy what uses it first."
            )
        await api.delete(KIND, api.namespace, name)

    @asynccontextmanager
    async def files(self, name: str, image: str = "") -> AsyncGenerator[PodFiles]:
        """Open a claim's files through a pod that is deleted when the context ends.

        Raises:
            NotFoundError: The claim does not exist. BackendError: The pod does not start.
        """
        api = await self._connect()
        volume = await self._read_volume(api, name)
        image = image or self._image
        if not image:
            raise UsageError(
                f"Nothing says which image carries the files of {name}.", "Name one: --image NAME, or the setting."
            )
        pods = await api.list("Pod", api.namespace)
        user = next((pod for pod in pods if volume.name in _mounts(pod) and _node(pod)), None)
        # ReadWriteOnce is per node, not per pod: a second pod can mount the volume on the same node.
        is_bound_to_node = "ReadWriteMany" not in volume.modes and user is not None
        node = _node(user) if is_bound_to_node and user is not None else ""
        async with opened(api, volume, image, self._owner, node=node) as pod_files:
            yield pod_files

    async def _read_volume(self, api: Api, name: str) -> Volume:
        if (claim := await api.find(KIND, api.namespace, name)) is None:
            raise NotFoundError(f"There is no volume {name} in {api.namespace}.", "See `l2rtui volume ls`.")
        users = _users(await api.list("Pod", api.namespace))
        return _volume(claim, tuple(users[name]))


def _refuse_values(name: str, size: str, modes: tuple[str, ...]) -> None:
    """Refuse values before they are sent: the server's own messages name fields that the user has not written."""
    if problem := name_problem(name, 253):
        raise UsageError(f"{problem}.")
    if unknown := [mode for mode in modes if mode not in MODES]:
        raise UsageError(f"{unknown[0]} is not an access mode.", f"They are {', '.join(MODES)}.")
    try:
        parse_bytes(size)
    except ValueError as error:
        raise UsageError(f"size: {error}.", "Write it as 50Gi.") from None


def _volume(claim: dict[str, Any], mounted_by: tuple[str, ...]) -> Volume:
    spec, status = claim.get("spec") or {}, claim.get("status") or {}
    requests = (spec.get("resources") or {}).get("requests") or {}
    size = (status.get("capacity") or {}).get("storage") or requests.get("storage")
    phase = str(status.get("phase", "Pending"))
    waits = "no volume fits it, or none is made before a pod mounts it" if phase == "Pending" else ""
    lost = "its volume no longer exists" if phase == "Lost" else ""
    return Volume(
        name=str(claim["metadata"]["name"]),
        size_bytes=int(parse_quantity(str(size))) if size else 0,
        phase="Terminating" if claim["metadata"].get("deletionTimestamp") else phase,
        modes=tuple(map(str, spec.get("accessModes") or ())),
        storage_class=str(spec.get("storageClassName") or ""),
        mounted_by=mounted_by,
        reason=waits or lost,
    )


def _users(pods: list[dict[str, Any]]) -> defaultdict[str, list[str]]:
    """Return the names of pods by the claims that they mount."""
    users: defaultdict[str, list[str]] = defaultdict(list)
    for pod in pods:
        for claim in _mounts(pod):
            users[claim].append(str(pod["metadata"]["name"]))
    return users


def _mounts(pod: dict[str, Any]) -> list[str]:
    """Return the claims that a pod mounts; empty for a pod that has ended."""
    if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return []
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    names = ((volume.get("persistentVolumeClaim") or {}).get("claimName") for volume in volumes)
    return [str(name) for name in names if name]


def _node(pod: dict[str, Any]) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")
