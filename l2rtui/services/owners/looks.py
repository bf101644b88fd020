"""Earlier looks at idle GPUs, in ``gpu-idle.json``: one command sees a moment, two in sequence a span.

Errors are ignored: a file that is missing, unreadable or invalid counts as empty, and a failed write is skipped.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from l2rtui.config import state_dir
from l2rtui.domain.owners.idle_gpus import IdleGpus, IdleSpan
from runtime.base import bounded_json
from runtime.base.atomic_files import write_private

MAX_GAP_SECONDS: Final = 900.0
"""Longest gap between two looks that counts as continuous: ``cron`` looks every few minutes."""
MAX_BYTES: Final = 8 << 20
_MAX_PLACES: Final = 32


class _Span(msgspec.Struct, frozen=True):
    """One idle GPU, the uids of the pods on it, and the start time."""

    node: str
    gpu: int
    holders: list[str]
    since: float
    is_least: bool = True


class _Look(msgspec.Struct, frozen=True):
    """Look at one cluster."""

    time: float
    spans: list[_Span]


_Looks = Annotated[dict[str, _Look], msgspec.Meta(max_length=_MAX_PLACES)]


def idle_gpus(place: str, now: float) -> IdleGpus:
    """Return a tracker that continues from the last look at a place, unless that is too old.

    Args:
        place: Backend or context.
        now: Seconds since the epoch.
    """
    look = _read().get(place)
    if look is None or not 0.0 <= now - look.time <= MAX_GAP_SECONDS:
        return IdleGpus()
    spans = {
        (span.node, span.gpu): IdleSpan(frozenset(span.holders), span.since, span.is_least) for span in look.spans
    }
    return IdleGpus(spans)


def remember(place: str, idle: IdleGpus, now: float) -> None:
    """Save a look for the next one; errors are ignored."""
    spans = [_Span(*key, sorted(span.holders), span.since, span.is_least) for key, span in idle.spans.items()]
    looks = {name: look for name, look in _read().items() if now - look.time <= MAX_GAP_SECONDS}
    looks.pop(place, None)
    newest = dict(sorted(looks.items(), key=lambda item: -item[1].time)[: _MAX_PLACES - 1])
    text = msgspec.json.encode({**newest, place: _Look(now, spans)}).decode()
    try:
        # With two parallel commands the later look stays, and each is complete.
        write_private(state_dir() / "gpu-idle.json", text)
    except OSError:
        return


def _read() -> dict[str, _Look]:
    try:
        with (state_dir() / "gpu-idle.json").open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        return bounded_json.decode(data, _Looks) if len(data) <= MAX_BYTES else {}
    except (OSError, ValueError):
        return {}
