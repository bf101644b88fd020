"""Table of pods, with columns for metric records if some pod has any."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from l2rtui.domain.metrics import PodMetrics
from l2rtui.domain.node import GpuShare, device_name
from l2rtui.domain.quantity import format_bytes
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import ClusterSnapshot, PodView
from l2rtui.domain.status import Level
from l2rtui.tables.cluster import POD_COLUMN_FIELDS, PODS
from l2rtui.tables.column import TableColumn
from l2rtui.tables.resources import simulator_level
from l2rtui.ui.state.learning_states import NOT_READ
from l2rtui.ui.text import NOTHING, Span, TextStyle, count, status_text, style_of_level
from l2rtui.ui.widgets.table_model import Row, columns_of, make_row
from l2rtui.ui.widgets.virtual_table import VirtualTable

_MOST_FOLDED: Final = 500
"""Rows from which on nothing is folded: all are read at each change, and some column differs among so many."""
_RANKS_OF_ALL: Final = {"owner": 1, "run": 2, "restarts": 2, "exit": 3, "rate": 3, "sim": 4, "age": 1, "role": 3}
"""Ranks of columns while the table holds the pods of all runs."""


RecordFields = frozenset[str]
"""Fields that some pod has, of ``rate``, ``sim``, ``rank``, ``round`` and ``step``; ``share`` and ``mismatch``."""


class PodTable(VirtualTable):
    """Pods of a run, or all pods."""

    COLUMNS = tuple(column for column in columns_of(PODS) if column.key not in POD_COLUMN_FIELDS)
    EMPTY = "No pods."
    SAME = ("restarts", "exit", "run", "owner", "seed", "pid")

    def is_column_empty(self, number: int, column: TableColumn, rows: Sequence[Row]) -> bool:
        """True also for the sets or the roles, whichever say less: the pods of a set have the same role."""
        if len(rows) > _MOST_FOLDED:
            return False
        if column.key not in ("set", "role"):
            return super().is_column_empty(number, column, rows)
        place = number if column.key == "set" else number - 1
        sets, roles = ({row.cells[place + step].text for row in rows} for step in (0, 1))
        return (len(sets) > len(roles)) is (column.key == "role")


def record_fields(records: Iterable[PodMetrics]) -> RecordFields:
    """Return the fields that at least one of these records has."""
    fields: set[str] = set()
    for record in records:
        rate, rank, number = (value is not None for value in (record.rate, record.rank, record.round))
        present = {"rate": rate, "sim": record.simulator, "rank": rank, "round": number, "step": record.step}
        fields.update(field for field, value in present.items() if value)
    return frozenset(fields)


def columns_for(fields: RecordFields, *, is_all: bool = False) -> tuple[TableColumn, ...]:
    """Return the columns of a table whose pods report these fields; ``is_all`` if it lists the pods of all runs."""
    columns = tuple(column for column in columns_of(PODS) if POD_COLUMN_FIELDS.get(column.key, "") in ("", *fields))
    if not is_all:
        return columns
    # For the pods of all users, place and owner matter more than the state of a simulator.
    return tuple(replace(column, rank=_RANKS_OF_ALL.get(column.key, column.rank)) for column in columns)


def slot_text(pod: PodView) -> str:
    """Devices and slots of a pod, without its node: ``3.2``, ``cpu.0-3``, ``2`` for an unnumbered share."""
    if not pod.devices:
        return NOTHING
    slots = sorted(
        {(usage.gpu, usage.slot) for usage in pod.devices if usage.gpu is not None and usage.slot is not None}
    )
    if not slots:
        return ",".join("?" if usage.gpu is None else device_name(usage.gpu) for usage in pod.devices)
    gpu, first = slots[0]
    if len(slots) > 1 and slots == [(gpu, first + number) for number in range(len(slots))]:
        return f"{device_name(gpu)}.{first}-{first + len(slots) - 1}"
    return ",".join(f"{device_name(gpu)}.{slot}" for gpu, slot in slots)


def pod_row(
    pod: PodView,
    record: PodMetrics | None = None,
    fields: RecordFields = frozenset(),
    old: str = "",
    mismatches: Sequence[str] = (),
    share: GpuShare | None = None,
) -> Row:
    """Make the row of a pod, with cells for these fields of its metric record.

    Args:
        old: Age of the record if it is old, or NOT_READ; otherwise empty.
        mismatches: Sentences on what does not fit between it and its place.
        share: Its part of the GPUs that it uses, over all of them; None where it is unknown.
    """
    # The row already names the pod.
    status, mismatch = pod.status, "; ".join(sentence.removeprefix(f"{pod.name} ") for sentence in mismatches)
    role = str(pod.role) if pod.role else NOTHING
    slot = slot_text(pod)
    exit_code, exit_order = (NOTHING, -1) if pod.exit_code is None else (str(pod.exit_code), pod.exit_code)
    # A pod without simulators must not count as a fault, so an empty state is treated as "ready".
    level = simulator_level(record.simulator or "ready") if record is not None and not pod.is_down else Level.OK
    is_lost = level in (Level.BAD, Level.WARN)
    return make_row(
        pod.uid,
        (Span(sanitize(pod.name), TextStyle.STRONG if status.level is Level.BAD else TextStyle.PLAIN), pod.name),
        (Span(status_text(sanitize(status.word), status.level), style_of_level(status.level)), status.word),
        *(((Span(sanitize(mismatch) or NOTHING, TextStyle.WARN), mismatch),) if "mismatch" in fields else ()),
        (Span(sanitize(pod.set_name) or NOTHING, TextStyle.DIM), pod.set_name),
        (Span(role, TextStyle.DIM), role),
        (Span(sanitize(pod.node) or NOTHING, TextStyle.DIM), pod.node),
        (Span(slot), slot),
        (Span(str(pod.restarts or NOTHING), TextStyle.WARN if pod.restarts else TextStyle.DIM), pod.restarts),
        (Span(exit_code, TextStyle.WARN if pod.exit_code else TextStyle.DIM), exit_order),
        (Span("", TextStyle.DIM), -pod.created),  # sorts like the age, but does not change with time
        *_record_cells(record, fields, old, is_up=not pod.is_down),
        *(_share_cells(share) if "share" in fields else ()),
        (Span(sanitize(pod.run) or NOTHING, TextStyle.DIM), pod.run),
        (Span(sanitize(pod.owner) or NOTHING, TextStyle.DIM), pod.owner),
        (Span(str(pod.seed) if pod.run else NOTHING, TextStyle.DIM), pod.seed),
        (Span(NOTHING if pod.pid is None else str(pod.pid), TextStyle.DIM), pod.pid or 0),
        is_fault=is_lost or bool(mismatch) or status.level in (Level.BAD, Level.WARN),
    )


def total_shares(snapshot: ClusterSnapshot, pods: Iterable[PodView]) -> Mapping[str, GpuShare]:
    """Return the parts of pods over all GPUs that each uses, by uid; pods with an unknown part are left out."""
    # Scan all pods only if a source reports any share.
    if not any(use.shares for node in snapshot.nodes.values() for use in node.gpu_use):
        return {}
    totals = ((pod.uid, _total_share(snapshot.gpu_shares(pod))) for pod in pods)
    return {uid: share for uid, share in totals if share is not None}


def _total_share(shares: Mapping[int, GpuShare | None]) -> GpuShare | None:
    parts = [share for share in shares.values() if share is not None]
    if not parts or len(parts) < len(shares):
        return None
    if len(parts) == 1:
        return parts[0]  # the same object as long as nothing changes
    percents, sizes = [part.percent for part in parts], [part.memory_bytes for part in parts]
    return GpuShare(
        parts[0].pod_uid,
        None if None in percents else sum(filter(None, percents)),
        None if None in sizes else sum(filter(None, sizes)),
    )


def _share_cells(share: GpuShare | None) -> Iterator[tuple[Span, object]]:
    busy, memory = (share.percent, share.memory_bytes) if share is not None else (None, None)
    yield Span(NOTHING if busy is None else f"{busy:.0f}%", TextStyle.DIM), -1.0 if busy is None else busy
    yield Span(NOTHING if memory is None else format_bytes(memory), TextStyle.DIM), -1 if memory is None else memory


def _record_cells(
    record: PodMetrics | None, fields: RecordFields, old: str, *, is_up: bool
) -> Iterator[tuple[Span, object]]:
    """Yield cells and sort values for these fields of a metric record."""
    if "rate" in fields:
        yield _rate(record.rate if record and is_up else None, old)
    if "sim" in fields:
        # A pod that is down has no running simulator, whatever its last record says.
        state = record.simulator if record and is_up else ""
        level, restarts = simulator_level(state), record.simulator_restarts if record else 0
        text = f"{status_text(sanitize(state), level)}{f' x{restarts}' if restarts else ''}" if state else NOTHING
        yield Span(text, style_of_level(level) if state else TextStyle.DIM), state
        # Rounded to 5, so that an idle screen stays idle. If there is a rate, it shows that all are silent.
        fps = 5.0 * round(record.simulator_fps / 5) if record and state else None
        is_said = old not in ("", NOT_READ) and "rate" in fields
        yield _rate(None if is_said else fps, old, TextStyle.DIM)
    if "rank" in fields:
        rank, size = (record.rank, record.world_size) if record else (None, None)
        of = "" if size is None else f"/{size}"
        yield Span(NOTHING if rank is None else f"{rank}{of}"), -1 if rank is None else rank
    if "round" in fields:
        number = record.round if record else None
        yield Span(NOTHING if number is None else str(number), TextStyle.DIM), -1 if number is None else number
    if "step" in fields:
        step = record.step if record else ""
        yield Span(sanitize(step) or NOTHING, TextStyle.PLAIN if step else TextStyle.DIM), step


def _rate(rate: float | None, old: str, style: TextStyle = TextStyle.PLAIN) -> tuple[Span, float]:
    """Cell of a rate, or of how long its pod has been silent; a last rate is marked while its log is not read."""
    if rate is None:
        return Span(NOTHING, TextStyle.DIM), -1.0
    if old == NOT_READ:
        return Span(f"{count(round(rate))}{NOT_READ}", TextStyle.DIM), rate
    return (Span(f"silent {old}", TextStyle.WARN), -1.0) if old else (Span(count(round(rate)), style), rate)
