"""Volumes and the files in them, as screens and verbs show them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Volume:
    """Storage that outlives pods.

    Attributes:
        phase: Bound, Pending, Lost or Terminating. modes: access modes in Kubernetes' words.
        mounted_by: Names of the pods that mount it. reason: why it is not bound; empty when it is.
    """

    name: str
    size_bytes: int = 0
    phase: str = ""
    modes: tuple[str, ...] = ()
    storage_class: str = ""
    mounted_by: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a volume.

    Attributes:
        path: Relative to the listed folder; empty for the file itself. kind: file, folder, link or other.
        size: Bytes. changed: Seconds since the epoch.
    """

    path: str
    kind: str
    size: int
    changed: float


@dataclass(frozen=True, slots=True)
class KeptResult:
    """Folder with the results of a run on this machine.

    Attributes:
        id: Name of the folder, ``RUN-ID``; of a run that is there, its name.
        changed: Time of its last change, in seconds since the epoch.
        used_by: Runs that are there and write into it, or whose specs name it.
    """

    id: str
    run: str
    size_bytes: int
    changed: float
    path: str
    used_by: tuple[str, ...] = ()

    @property
    def is_of_run(self) -> bool:
        """True for the folder of a run that is there: it goes with its run."""
        return self.id == self.run
