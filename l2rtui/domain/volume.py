"""Volumes and their files, as screens and commands show them."""

from __future__ import annotations

from msgspec import Struct


class Volume(Struct, frozen=True):
    """Storage that outlives pods.

    Attributes:
        phase: Bound, Pending, Lost or Terminating. modes: Access modes in Kubernetes' terms.
        mounted_by: Names of the pods that mount it. reason: Why it is not bound; empty if it is.
    """

    name: str
    size_bytes: int = 0
    phase: str = ""
    modes: tuple[str, ...] = ()
    storage_class: str = ""
    mounted_by: tuple[str, ...] = ()
    reason: str = ""


class FileEntry(Struct, frozen=True):
    """One file of a volume.

    Attributes:
        path: Relative to the listed folder; empty for the file itself. kind: File, folder, link or other.
        size: Bytes. changed: Seconds since the epoch.
    """

    path: str
    kind: str
    size: int
    changed: float


class KeptResult(Struct, frozen=True):
    """Folder with the results of a run on this machine.

    Attributes:
        id: Name of the folder, ``RUN-ID``; for an existing run, its name.
        changed: Time of its last change, in seconds since the epoch.
        used_by: Existing runs that write into it, or whose specs name it.
    """

    id: str
    run: str
    size_bytes: int
    changed: float
    path: str
    used_by: tuple[str, ...] = ()

    @property
    def is_of_run(self) -> bool:
        """True for the folder of an existing run, which is deleted with the run."""
        return self.id == self.run
