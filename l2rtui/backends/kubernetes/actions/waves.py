"""Waves: the pods of a launch divided into parts that start one after the other. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from l2rtui.backends.kubernetes.manifests.render import replicas_of

Manifest = dict[str, Any]


@dataclass(slots=True)
class WavePart:
    """One controller in one wave.

    Attributes:
        replicas: Number of pods of the controller at the end of the wave, including earlier waves.
        is_first: The controller is created in this wave; otherwise it is scaled.
        is_last: The controller has all its pods after this wave.
    """

    manifest: Manifest
    replicas: int
    is_first: bool
    is_last: bool


def divide(controllers: Sequence[Manifest], size: int) -> list[list[WavePart]]:
    """Divide pods into waves of ``size``; the pods of one controller may be spread over several waves."""
    waves: list[list[WavePart]] = [[]]
    room = size
    for manifest in controllers:
        total = replicas_of(manifest)
        started = 0
        # At least one part for each controller: a controller with 0 replicas is created as well.
        while True:
            if not room:
                waves.append([])
                room = size
            count = min(total - started, room)
            waves[-1].append(WavePart(manifest, started + count, started == 0, started + count == total))
            started, room = started + count, room - count
            if started == total:
                break
    return waves


def pods_after(waves: Iterable[Iterable[WavePart]]) -> int:
    """Return the number of pods that exist after these waves."""
    latest = {(part.manifest["kind"], part.manifest["metadata"]["name"]): part for parts in waves for part in parts}
    return sum(max(0, part.replicas) for part in latest.values())
