"""Groups of curves for the charts: the runs that they show, and records from before the app was opened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Final

from msgspec.structs import replace

from l2rtui.domain.curves.chart import CurveGroup, SeedCurve, grouped
from l2rtui.domain.curves.run_curve import RunCurve
from l2rtui.domain.quantity import counted
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView
from l2rtui.domain.workload import Role
from l2rtui.services.curves import MAX_RUNS, read_back
from l2rtui.ui.state.app_context import AppContext
from l2rtui.ui.widgets.charts import ChartView

_AT_ONCE: Final = 3
"""Runs whose records are read back in parallel: each takes a thread, and a log is a request to its node."""

_MOMENT_SECONDS: Final = 0.05


class ChartContent:
    """Curves of the charts.

    Args:
        pods_of: Returns the pods of a run by its name.
    """

    def __init__(self, charts: ChartView, ctx: AppContext, pods_of: Callable[[str], Sequence[PodView]]) -> None:
        self._charts = charts
        self._ctx = ctx
        self._pods_of = pods_of
        self._shown: tuple[Sequence[RunView], Mapping[str, str]] = (), {}
        self._reading: set[str] = set()
        self._tried: set[tuple[str, str]] = set()
        self._pending: asyncio.TimerHandle | None = None
        self._limit = asyncio.Semaphore(_AT_ONCE)

    def show(
        self, marked: Sequence[RunView], selected: RunView | None, snapshot: ClusterSnapshot, old: Mapping[str, str]
    ) -> None:
        """Show the marked runs, or the selected one; with grouping by seeds, the experiment of the selected one.

        Args:
            old: Ages of outdated records, by uid of the run.
        """
        runs = list(marked) or ([selected] if selected is not None else [])
        if self._charts.is_grouped and not marked and selected is not None:
            runs = [run for run in snapshot.runs.values() if run.experiment == selected.experiment]
        runs = runs[:MAX_RUNS]
        self._shown = runs, old
        for run in runs:
            self._read_back(run)
        self._draw()

    def close(self) -> None:
        """Cancel the pending drawing."""
        if self._pending is not None:
            self._pending.cancel()

    def _draw_soon(self) -> None:
        """Draw once for all curves that arrive within a moment: a dozen samples of files arrive together."""
        if self._pending is None:
            self._pending = asyncio.get_running_loop().call_later(_MOMENT_SECONDS, self._draw)

    def _draw(self) -> None:
        if self._pending is not None:
            self._pending.cancel()
            self._pending = None
        runs, old = self._shown
        seeds = {run.uid: self._seed(run) for run in runs}
        groups = grouped(seeds.values(), by_experiment=self._charts.is_grouped)
        ages = {run.name: old[run.uid] for run in runs if run.uid in old}
        if self._charts.is_attached:  # the app may have ended in the meantime
            self._charts.show([replace(group, old=_old_of(group, ages)) for group in groups])

    def _seed(self, run: RunView) -> SeedCurve:
        return SeedCurve(
            run.name, self._ctx.curves.of(run.uid), run.seed, run.experiment, run.created, run.place, run.spec_id
        )

    def _read_back(self, run: RunView) -> None:
        learner = next((pod for pod in self._pods_of(run.name) if pod.role is Role.LEARNER), None)
        # Tried again with a new learner: earlier the run may have had none.
        attempt = run.uid, learner.uid if learner is not None else ""
        if attempt in self._tried or self._ctx.curves.of(run.uid).is_complete:
            return
        self._tried.add(attempt)
        work = self._read(run, learner)
        self._ctx.background.start(work, group="curves", what=f"the curves of {run.name}")

    async def _read(self, run: RunView, learner: PodView | None) -> None:
        store = self._ctx.curves
        self._reading.add(run.uid)
        self._say_progress()
        try:
            async with aclosing(read_back(self._ctx.backend, run, learner)) as curves:
                # In turns: all runs have a sample before any of them is read to its end.
                while (curve := await self._next(curves)) is not None:
                    store.put_before(run.uid, curve)
                    self._draw_soon()
        finally:
            self._reading.discard(run.uid)
            self._say_progress()

    async def _next(self, curves: AsyncGenerator[RunCurve, None]) -> RunCurve | None:
        async with self._limit:
            return await anext(curves, None)

    def _say_progress(self) -> None:
        number = len(self._reading)
        self._charts.note = f"reading {counted(number, 'run')} back" if number else ""
        if self._charts.is_attached:  # the app may be ending
            self._charts.post_message(ChartView.ContentChanged())


def _old_of(group: CurveGroup, ages: Mapping[str, str]) -> str:
    """Return the age of a run's newest record if it is old; for several runs, the number of old ones."""
    own = [ages[seed.name] for seed in group.seeds if seed.name in ages]
    if len(group.seeds) == 1 or not own:
        return f"{own[0]} old" if own else ""
    return f"{len(own)} of {len(group.seeds)} old"
