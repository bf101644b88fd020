"""Owners: the slots and GPUs of each user in each project, and the idle ones; opens into the pods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from l2rtui.domain.owners.holdings import Holding, holdings
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import ClusterSnapshot, RunView
from l2rtui.errors import L2RError
from l2rtui.ui.keys.table import KeyContext, bindings
from l2rtui.ui.overviews.overview import Look, Overview, count_cell, number_cell
from l2rtui.ui.state.app_context import AppContext
from l2rtui.ui.text import NOTHING, Span, TextStyle, decimal
from l2rtui.ui.widgets.table_model import Row, TableColumn, make_row

COLUMNS: Final = (
    TableColumn("owner", "owner", most=24),
    TableColumn("project", "project", most=24, rank=2),
    TableColumn("runs", "runs", most=6, right=True, rank=4),
    TableColumn("pods", "pods", most=6, right=True, rank=5),
    TableColumn("gpus", "GPUs", most=6, right=True),
    TableColumn("slots", "slots", most=6, right=True),
    TableColumn("cpu_slots", "CPU slots", most=9, right=True, rank=7),
    TableColumn("idle", "idle", most=6, right=True),
    TableColumn("unknown", "unknown", most=7, right=True, rank=6),
    TableColumn("hours", "GPU-hours", most=10, right=True, rank=3),
    TableColumn("which", "idle for", most=60, rank=8),
)


class OwnersScreen(Overview):
    """All owners.

    Args:
        look: Returns the newest data of the app.
    """

    KEY_CONTEXT = KeyContext.OWNER
    BINDINGS = bindings(KEY_CONTEXT)
    ROW_HINTS = ("enter pods", ". , sort")
    _subject = "the owners"

    def __init__(self, ctx: AppContext, look: Callable[[], Look], filter_text: str = "") -> None:
        super().__init__("Owners", ctx, COLUMNS, filter_text)
        self._look = look
        self._hours: Mapping[str, float] | None = None

    async def _load(self) -> None:
        snapshot, _, _, idle = self._look()
        now = self._ctx.clock()
        if self._hours is None:
            self._hours = await asyncio.to_thread(_gpu_hours, snapshot, self._ctx.backend.name, now)
        rows = [owner_row(row, self._hours.get(row.owner)) for row in holdings(snapshot, idle, now)]
        if self.is_open:
            self._show_rows(rows, empty="Nobody holds a slot.")

    @property
    def _snapshot(self) -> ClusterSnapshot:
        return self._look().snapshot

    def _runs_of(self, keys: set[str]) -> list[RunView]:
        snapshot = self._snapshot
        # By pods, as a run has no owner of its own on every backend.
        pairs = {(pod.owner, pod.run) for pod in snapshot.pods.values()}
        names = {name for owner, name in pairs if owner in {key.partition("/")[0] for key in keys}}
        return [run for run in snapshot.runs.values() if run.name in names]

    @property
    def _command_line(self) -> str:
        return self._ctx.command_line(("owners",))


def _gpu_hours(snapshot: ClusterSnapshot, backend: str, now: float) -> Mapping[str, float]:
    from l2rtui.services.owners.gpu_hours import gpu_hours

    try:
        return gpu_hours(snapshot, backend, now)
    except L2RError:  # a history that cannot be read: the column says that they are unknown
        return {}


def owner_row(holding: Holding, hours: float | None) -> Row:
    """Make the row of an owner in one project."""
    idle = holding.idle_gpus
    which = "  ".join(f"{gpu.node}/{gpu.gpu} {gpu.time.text}" for gpu in holding.idle)
    return make_row(
        f"{holding.owner}/{holding.project}",
        (Span(sanitize(holding.owner) or NOTHING, TextStyle.STRONG), holding.owner),
        (Span(sanitize(holding.project) or NOTHING, TextStyle.DIM), holding.project),
        count_cell(holding.runs),
        count_cell(holding.pods),
        count_cell(holding.gpus),
        count_cell(holding.slots),
        count_cell(holding.cpu_slots),
        number_cell(idle, str(idle), TextStyle.WARN if idle else TextStyle.DIM),
        count_cell(holding.unknown_gpus),
        number_cell(hours, decimal(hours)),
        (Span(sanitize(which), TextStyle.WARN), which),
        is_fault=bool(idle),
    )
