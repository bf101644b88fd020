"""Pods as rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import PodView
from l2rtui.domain.status import Level
from l2rtui.ui.text import NOTHING, Span, Tone, count, status_text, tone_of
from l2rtui.ui.values import PodRecord
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
)
_OF_RECORDS: Final = (
    ("sim", Column("sim", "simulator", most=18, rank=2)),
    ("sim", Column("fps", "fps", most=6, right=True, rank=3)),
    ("rank", Column("rank", "rank", most=9, right=True, rank=2)),
    ("round", Column("round", "round", most=6, right=True, rank=3)),
    ("step", Column("step", "step", most=14, rank=3)),
)
"""Columns for what pods say of themselves, there as soon as one of them says it, and what that is."""
_LAST: Final = (
    Column("run", "run", most=24, rank=7),
    Column("owner", "owner", most=12, rank=8),
    Column("seed", "seed", most=6, right=True, rank=9),
    Column("pid", "pid", most=8, right=True, rank=10),
)


_STATES: Final = {
    "ready": Level.OK,
    "starting": Level.WAIT,
    "stopped": Level.DONE,
    "lost": Level.WARN,
    "given up": Level.BAD,
}
Told = frozenset[str]
"""What pods say of themselves: of ``sim``, ``rank``, ``round`` and ``step``, those that some pod has."""


class PodTable(VirtualTable):
    """The pods of a run, or all pods."""

    def __init__(self, *, clock: Callable[[], float] = time.time, id: str | None = None) -> None:  # noqa: A002  (Textual's name)
        super().__init__(columns_for(frozenset()), empty="No pods.", clock=clock, id=id)


def told_of(records: Iterable[PodRecord]) -> Told:
    """What some of these records say."""
    found: set[str] = set()
    for one in records:
        if one.simulator:
            found.add("sim")
        if one.rank is not None:
            found.add("rank")
        if one.round is not None:
            found.add("round")
        if one.step:
            found.add("step")
    return frozenset(found)


def columns_for(told: Told) -> tuple[Column, ...]:
    """The columns of a table whose pods say this."""
    return (*COLUMNS, *(column for what, column in _OF_RECORDS if what in told), *_LAST)


def simulator_level(state: str) -> Level:
    """How bad the state of a simulator is."""
    return _STATES.get(state, Level.WARN)


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


def pod_row(pod: PodView, record: PodRecord | None = None, told: Told = frozenset()) -> Row:
    """One pod, and what it says of itself where the table has columns for it."""
    said, values = _said(record, told)
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
        *said,
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
        *values,
        pod.run,
        pod.owner,
        pod.seed,
        pod.pid or 0,
    )
    is_lost = record is not None and simulator_level(record.simulator or "ready") in (Level.BAD, Level.WARN)
    return Row(pod.uid, cells, sort, is_fault=is_lost or status.level in (Level.BAD, Level.WARN))


def _said(record: PodRecord | None, told: Told) -> tuple[list[Span], list[object]]:
    """Cells and sort values of what a pod says of itself."""
    spans: list[Span] = []
    values: list[object] = []
    if "sim" in told:
        state = record.simulator if record else ""
        level, again = simulator_level(state), record.simulator_restarts if record else 0
        text = f"{status_text(sanitize(state), level)}{f' x{again}' if again else ''}" if state else NOTHING
        fps = record.simulator_fps if record and state else -1.0
        spans += [
            Span(text, tone_of(level) if state else Tone.DIM),
            Span(NOTHING if fps < 0 else count(5 * round(fps / 5)), Tone.DIM),  # coarse: a screen at rest stays so
        ]
        values += [state, fps]
    if "rank" in told:
        rank, size = (record.rank, record.world_size) if record else (None, None)
        of = "" if size is None else f"/{size}"
        spans.append(Span(NOTHING if rank is None else f"{rank}{of}"))
        values.append(-1 if rank is None else rank)
    if "round" in told:
        turn = record.round if record else None
        spans.append(Span(NOTHING if turn is None else str(turn), Tone.DIM))
        values.append(-1 if turn is None else turn)
    if "step" in told:
        step = record.step if record else ""
        spans.append(Span(sanitize(step) or NOTHING, Tone.PLAIN if step else Tone.DIM))
        values.append(step)
    return spans, values
