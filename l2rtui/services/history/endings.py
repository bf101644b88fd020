"""End of a run, gathered before it is removed: figures and curve of its learner, last log lines, place of
checkpoints.

Data that cannot be read in time are left out with a sentence: a destroy does not wait for them.
"""

from __future__ import annotations

import asyncio
import math
import time
from array import array
from collections.abc import Awaitable, Sequence
from contextlib import aclosing
from typing import Final, TypeVar

from l2rtui.backends.base import Backend
from l2rtui.domain.curves.chart import RETURN, SeedCurve
from l2rtui.domain.curves.run_curve import Axis, RecordBatch, RunCurve
from l2rtui.domain.history import Ending, HistoryRecord, RunOutcome, spec_id
from l2rtui.domain.log import LogQuery
from l2rtui.domain.runstatus import lost_pod
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.secret import redact
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView, has_finished
from l2rtui.domain.status import Phase
from l2rtui.errors import L2RError
from l2rtui.services import artifacts
from l2rtui.services.curves import seed_curve

MAX_POINTS: Final = 256
"""Points of a curve in a record: no terminal draws more, and ten thousand runs stay within 500 MB."""
MAX_LINES: Final = 40
MAX_LINE_CHARS: Final = 400
MAX_PODS: Final = 32
"""Pods whose last lines are recorded; failed ones come first."""
GATHER_SECONDS: Final = 4.0
"""Longest wait of a destroy for the record: for a run on this machine it takes some milliseconds."""
_AT_ONCE: Final = 8
_T = TypeVar("_T")


def outcome_of(run: RunView, pods: Sequence[PodView]) -> RunOutcome | None:
    """Return the outcome of a run; None while it may still continue."""
    if has_finished(run, pods) or (pods and all(pod.phase is Phase.SUCCEEDED for pod in pods)):
        return RunOutcome.DONE
    return RunOutcome.FAILED if lost_pod(run, pods) is not None else None


async def gather_ending(backend: Backend, snapshot: ClusterSnapshot, run: RunView, outcome: RunOutcome) -> Ending:
    """Read the data of a run; never raises, and takes `GATHER_SECONDS` at most."""
    problems: list[str] = []
    curve, logs, checkpoints = await asyncio.gather(
        _in_time(seed_curve(backend, snapshot, run), "its curve", problems),
        _in_time(_last_lines(backend, snapshot.pods_of(run.name)), "its logs", problems),
        _in_time(artifacts.root_of(backend, run.name), "", problems),
    )
    of_run = curve.curve if curve is not None else RunCurve()
    return Ending(
        outcome,
        _end_of(outcome, snapshot.pods_of(run.name), of_run) or time.time(),
        *final_figures(of_run),
        curve_columns(of_run),
        logs or (),
        checkpoints or "",
        note="; ".join(problems),
    )


def _end_of(outcome: RunOutcome, pods: Sequence[PodView], curve: RunCurve) -> float:
    """Return when a run ended by itself, in seconds since the epoch; 0 if it did not, or nobody knows."""
    if outcome not in (RunOutcome.DONE, RunOutcome.FAILED):
        return 0.0
    phase = Phase.SUCCEEDED if outcome is RunOutcome.DONE else Phase.FAILED
    last = max((pod.ended or 0.0 for pod in pods if pod.phase is phase), default=0.0)
    return last or (curve.last.get(Axis.TIME, 0.0) if outcome is RunOutcome.DONE else 0.0)


async def _in_time(work: Awaitable[_T], what: str, problems: list[str]) -> _T | None:
    """Return the result of a read; None if it fails or takes too long, with a sentence in ``problems``."""
    try:
        async with asyncio.timeout(GATHER_SECONDS):
            return await work
    except TimeoutError:
        problems.append(f"{what or 'a part'} could not be read within {GATHER_SECONDS:g} s")
    except L2RError as error:
        if what:  # a run without a folder of checkpoints is not a problem
            problems.append(f"{what} could not be read: {error.message}")
    return None


# --- curve -----------------------------------------------------------------------------------------------------
def final_figures(curve: RunCurve) -> tuple[float | None, float | None, float | None]:
    """Return env steps, best return and final return of a curve; None for values without a record."""
    returns = [value for value in dict(curve_columns(curve)).get(RETURN, ()) if value is not None]
    return curve.last.get(Axis.ENV_STEPS), best_return(curve), returns[-1] if returns else None


def best_return(curve: RunCurve) -> float | None:
    """Return the greatest return of any record; None without one."""
    best = max(curve.buckets(RETURN).highs, default=-math.inf)
    return best if math.isfinite(best) else None


def curve_columns(curve: RunCurve) -> tuple[tuple[str, tuple[float | None, ...]], ...]:
    """Return a curve as columns of at most `MAX_POINTS` values: positions, and the mean of each figure.

    Neighbouring buckets are merged with the number of their records as weight, so each mean is exact.
    """
    steps, times = curve.positions(Axis.ENV_STEPS), curve.positions(Axis.TIME)
    if not steps:
        return ()
    size = -(-len(steps) // MAX_POINTS)
    starts = range(0, len(steps), size)
    lasts = [min(start + size, len(steps)) - 1 for start in starts]
    columns: list[tuple[str, tuple[float | None, ...]]] = [
        (Axis.ENV_STEPS, tuple(steps[last] for last in lasts)),
        (Axis.TIME, tuple(round(times[last], 3) for last in lasts)),
    ]
    for figure in curve.figures:
        buckets = curve.buckets(figure)
        means: list[float | None] = []
        for start in starts:
            count = sum(buckets.counts[start : start + size])
            # Six digits, as files of records have at most; a third of the bytes of a full float.
            mean = sum(buckets.sums[start : start + size]) / count if count else math.nan
            means.append(float(f"{mean:.6g}") if count else None)
        columns.append((figure, tuple(means)))
    return tuple(columns)


def recorded_curve(record: HistoryRecord, curve: RunCurve | None = None) -> SeedCurve:
    """Return a curve with the seed, experiment and place of a record; by default the recorded curve."""
    entry = record.entry
    if curve is None:
        curve = stored_curve(record.ending) if record.ending is not None else RunCurve()
    return SeedCurve(
        entry.run, curve, entry.seed, entry.experiment, entry.started, entry.place, spec_id(record.launch.spec)
    )


def stored_curve(ending: Ending) -> RunCurve:
    """Return the curve of a run from the columns of its record; updates are not recorded and read as 0."""
    columns = dict(ending.curve)
    steps, times = (_column(columns.pop(axis, ())) for axis in (Axis.ENV_STEPS, Axis.TIME))
    length = min(len(steps), len(times))
    curve = RunCurve()
    curve.add_all(
        RecordBatch(
            steps[:length],
            times[:length],
            array("d", [0.0]) * length,
            # A file changed by a newer version or by hand may have columns of other lengths.
            {name: values for name, column in columns.items() if len(values := _column(column)) == length},
        )
    )
    return curve


def _column(values: Sequence[float | None]) -> array[float]:
    return array("d", [math.nan if value is None else value for value in values])


# --- logs ------------------------------------------------------------------------------------------------------
async def _last_lines(backend: Backend, pods: Sequence[PodView]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    chosen = sorted(pods, key=lambda pod: not pod.is_failing)[:MAX_PODS]
    limit = asyncio.Semaphore(_AT_ONCE)

    async def read(pod: PodView) -> tuple[str, tuple[str, ...]]:
        async with limit:
            return pod.name, await _lines_of(backend, pod)

    logs = await asyncio.gather(*map(read, chosen))
    return tuple((name, lines) for name, lines in logs if lines)


async def _lines_of(backend: Backend, pod: PodView) -> tuple[str, ...]:
    try:
        async with aclosing(backend.logs(pod, LogQuery(tail=MAX_LINES))) as lines:
            texts = [redact(sanitize(line.text[:MAX_LINE_CHARS])) async for line in lines if not line.is_seam]
    except L2RError:  # a pod that never started, or was deleted, has no log
        return ()
    # Some containers write several logs, each with that many lines.
    return tuple(texts[-MAX_LINES:])
