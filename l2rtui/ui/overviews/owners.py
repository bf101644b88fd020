"""Owners: the slots and GPUs of each user in each project, and the idle ones; opens into the pods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from l2rtui.domain.owners import holdings
from l2rtui.domain.snapshot import ClusterSnapshot, RunView
from l2rtui.errors import L2RError
from l2rtui.tables.summaries import OWNERS, OwnerRow
from l2rtui.ui.keys.table import KeyContext, bindings
from l2rtui.ui.overviews.overview import Look, Overview
from l2rtui.ui.state.app_context import AppContext
from l2rtui.ui.widgets.table_model import Row, columns_of, row_of


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
        super().__init__("Owners", ctx, columns_of(OWNERS), filter_text)
        self._look = look
        self._hours: Mapping[str, float] | None = None

    async def _load(self) -> None:
        snapshot, _, _, idle = self._look()
        now = self._ctx.clock()
        if self._hours is None:
            self._hours = await asyncio.to_thread(_gpu_hours, snapshot, self._ctx.backend.name, now)
        rows = [owner_row(OwnerRow(row, self._hours.get(row.owner))) for row in holdings(snapshot, idle, now)]
        if self.is_open:
            self._show_rows(rows, empty="No slot is held.")

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
    from l2rtui.services.owners import gpu_hours

    try:
        return gpu_hours(snapshot, backend, now)
    except L2RError:  # a history that cannot be read: the column says that they are unknown
        return {}


def owner_row(row: OwnerRow) -> Row:
    """Make the row of an owner in one project."""
    holding = row.holding
    return row_of(OWNERS, f"{holding.owner}/{holding.project}", row, is_fault=bool(holding.idle_gpus))
