"""Existing file system, which a cluster uses but does not own: checked before anything is created."""

from __future__ import annotations

from l2rtui.cloud.aws.clients import Cloud
from l2rtui.errors import NotFoundError, RefusedError, UsageError


async def check_file_system(cloud: Cloud, name: str, vpc: str, own: str) -> None:
    """Check that a file system can be mounted from the cluster's network.

    Args:
        name: Id of the file system. vpc: Id of the cluster's network; empty before it exists.
        own: Id of the file system that the cluster itself created; empty for none.

    Raises:
        NotFoundError: It does not exist here. RefusedError: It is the cluster's own, which is deleted with it.
        UsageError: It is being removed, or another network has its mount targets.
    """
    if name == own:
        raise RefusedError(
            f"{name} is the file system that this cluster created, and would be deleted with it.",
            "Take it out of the file: the cluster has it already.",
        )
    answer = await cloud.find("efs", "describe_file_systems", FileSystemId=name)
    systems = (answer or {}).get("FileSystems") or []
    if not systems:
        raise NotFoundError(f"There is no file system {name} in this region.", "Correct the id, or leave it out.")
    state = str(systems[0].get("LifeCycleState"))
    if state not in ("available", "updating"):
        raise UsageError(f"The file system {name} is {state}.", "Name another, or leave it out.")
    targets = await cloud.list_all("efs", "describe_mount_targets", "MountTargets", FileSystemId=name)
    # EFS: all mount targets of a file system are in one network.
    if other := next((target for target in targets if not vpc or target.get("VpcId") != vpc), None):
        raise UsageError(
            f"The file system {name} has mount targets in another network, {other.get('VpcId', 'unknown')}, "
            "and EFS allows one network at a time.",
            "Remove them there first, or leave it out and mount it by a PersistentVolume of your own.",
        )
