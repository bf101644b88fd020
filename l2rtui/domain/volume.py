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
