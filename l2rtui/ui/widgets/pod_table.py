"""Pods as rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import PodView
from l2rtui.domain.status import Level
from l2rtui.ui.text import NOTHING, Span, Tone, status_text, tone_of
from l2rtui.ui.widgets.rows import Column, Row
from l2rtui.ui.widgets.virtual_table import VirtualTable

COLUMNS: Final = (
    Column("pod", "pod", most=40),
    Column("status", "status", most=22),
    Column("set", "set", most=14, rank=4),
    Column("role", "role", most=9, rank=2),
    Column("node", "node", most=20, rank=5),
    Column("slot", "slot", most=12, rank=1),
    Column("restarts", "restarts", most=8, right=True, rank=2),
    Column("exit", "exit", most=5, right=True, rank=3),
    Column("age", "age", most=6, right=True, rank=1, is_age=True),
    Column("run", "run", most=24, rank=7),
    Column("owner", "owner", most=12, rank=8),
    Column("seed", "seed", most=6, right=True, rank=9),
    Column("pid", "pid", most=8, right=True, rank=10),
)


class PodTable(VirtualTable):
    """The pods of a run, or all pods."""

    def __init__(self, *, clock: Callable[[], float] = time.time, id: str | None = None) -> None:  # noqa: A002  (Textual's name)
        super().__init__(COLUMNS, empty="No pods.", clock=clock, id=id)


def slot_text(pod: PodView) -> str:
    """Devices and slots that a pod holds, without its node: ``3.2``, ``0.0-3``, ``2`` for an unnumbered share."""
    if not pod.claims:
        return NOTHING
    slots = sorted(
        {(claim.gpu, claim.slot) for claim in pod.claims if claim.gpu is not None and claim.slot is not None}
    )
    if not slots:
        return ",".join("?" if claim.gpu is None else str(claim.gpu) for claim in pod.claims)
    gpu, first = slots[0]
    if len(slots) > 1 and slots == [(gpu, first + number) for number in range(len(slots))]:
        return f"{gpu}.{first}-{first + len(slots) - 1}"
    return ",".join(f"{gpu}.{slot}" for gpu, slot in slots)


def pod_row(pod: PodView) -> Row:
    """One pod."""
    status = pod.status
    role = str(pod.role) if pod.role else NOTHING
    slot = slot_text(pod)
    cells = (
        Span(sanitize(pod.name), Tone.STRONG if status.level is Level.BAD else Tone.PLAIN),
        Span(status_text(sanitize(status.word), status.level), tone_of(status.level)),
        Span(sanitize(pod.set_name) or NOTHING, Tone.DIM),
        Span(role, Tone.DIM),
        Span(sanitize(pod.node) or NOTHING, Tone.DIM),
        Span(slot),
        Span(str(pod.restarts) if pod.restarts else NOTHING, Tone.WARN if pod.restarts else Tone.DIM),
        Span(NOTHING if pod.exit_code is None else str(pod.exit_code), Tone.WARN if pod.exit_code else Tone.DIM),
        Span("", Tone.DIM),
        Span(sanitize(pod.run) or NOTHING, Tone.DIM),
        Span(sanitize(pod.owner) or NOTHING, Tone.DIM),
        Span(str(pod.seed) if pod.run else NOTHING, Tone.DIM),
        Span(NOTHING if pod.pid is None else str(pod.pid), Tone.DIM),
    )
    sort = (
        pod.name,
        status.word,
        pod.set_name,
        role,
        pod.node,
        slot,
        pod.restarts,
        -1 if pod.exit_code is None else pod.exit_code,
        -pod.created,  # as ages go, but it stands still
        pod.run,
        pod.owner,
        pod.seed,
        pod.pid or 0,
    )
    return Row(pod.uid, cells, sort, is_fault=status.level in (Level.BAD, Level.WARN))
