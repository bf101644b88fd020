"""Curves of runs: records as they arrive, and earlier ones, read back from the metrics file or the log.

On this machine a learner's folder has every record (``metrics.jsonl``, ``runtime.rl.roles.metrics_log``). Elsewhere
the log of its pod has as many as the container runtime stores.
"""

from __future__ import annotations

import asyncio
import math
import os
from array import array
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from l2rtui.backends.base import Backend
from l2rtui.domain.curves.chart import RETURN, SeedCurve
from l2rtui.domain.curves.run_curve import MAX_VALUE, CurveRecord, RecordBatch, RunCurve
from l2rtui.domain.log import LogQuery
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView
from l2rtui.domain.workload import Role
from l2rtui.errors import L2RError
from runtime.base import bounded_json
from runtime.base.metrics import number, parse_record

MAX_RUNS: Final = 64
"""Runs whose curves are stored; the least recently viewed are dropped first, and read back on demand."""
_FILES: Final = ("metrics.jsonl.1", "metrics.jsonl")
"""Files of records, the older one first: ``runtime.base.metrics.RecordFile`` thins what is old."""
_LEARNER: Final = b'{"l2r":"learner"'
_CHUNK_BYTES: Final = 256 * 1024
"""Bytes parsed at a time in a thread, some milliseconds: the end of the app must not wait for more."""
SAMPLES: Final = 1_024
"""Records of a long file that are read first, evenly spread: a picture immediately, complete a few seconds
later.
"""
_LINES_PER_TURN: Final = 100
_CLOCK_SLACK_SECONDS: Final = 60.0


class _LearnerRecord(msgspec.Struct):
    """Fields of a learner's record that are drawn; ``None`` if it lacks one."""

    time: float = 0.0
    env_steps: float = 0.0
    updates: float = 0.0
    mean_return: float | None = None
    eval_return: float | None = None
    env_steps_per_second: float | None = None
    updates_per_second: float | None = None
    policy_lag: list[float | None] | None = None
    idle_share: float | None = None
    entropy: float | None = None
    actor_loss: float | None = None
    critic_loss: float | None = None
    policy_loss: float | None = None
    value_loss: float | None = None


_decode: Final = bounded_json.decoder(_LearnerRecord)


def curve_record(record: Mapping[str, Any]) -> CurveRecord:
    """Return position and figures of a learner's record; figures of a wrong type are left out."""
    fields = _checked(record)
    figures = {name: read(fields) for name, read in _READERS.items()}
    return CurveRecord(
        fields.time,
        fields.env_steps,
        fields.updates,
        {name: value for name, value in figures.items() if value is not None},
    )


def _checked(record: Mapping[str, Any]) -> _LearnerRecord:
    """Return the fields of a record that have the expected types."""
    figures = {name: number(record.get(name)) for name in _LearnerRecord.__struct_fields__}
    lag = record.get("policy_lag")
    lags = [number(value) for value in lag] if isinstance(lag, list) and len(lag) == 3 else None
    positions = {name: figures.pop(name) or 0.0 for name in ("time", "env_steps", "updates")}
    return _LearnerRecord(**{**figures, **positions, "policy_lag": lags})  # type: ignore[arg-type]


def _return(record: _LearnerRecord) -> float | None:
    # Evaluation without exploration gives the better curve, if there is one.
    return record.mean_return if record.eval_return is None else record.eval_return


def _lag(record: _LearnerRecord) -> float | None:
    lag = record.policy_lag  # [min, mean, max] since the previous record
    return lag[1] if lag is not None and len(lag) == 3 else None


_READERS: Final[Mapping[str, Callable[[_LearnerRecord], float | None]]] = {
    RETURN: _return,
    **{name: attrgetter(name) for name in _LearnerRecord.__struct_fields__[5:]},
    "policy_lag": _lag,
}
"""Value of each figure that is drawn."""


def _batch(records: Sequence[_LearnerRecord]) -> RecordBatch:
    """Return records as columns, without the figures that all of them lack."""
    columns = {name: _column(map(read, records)) for name, read in _READERS.items()}
    return RecordBatch(
        array("d", [record.env_steps for record in records]),
        array("d", [record.time for record in records]),
        array("d", [record.updates for record in records]),
        {name: values for name, values in columns.items() if not all(map(math.isnan, values))},
    )


def _column(values: Iterable[float | None]) -> array[float]:
    nan = math.nan
    return array("d", [nan if value is None or not -MAX_VALUE < value < MAX_VALUE else value for value in values])


class CurveStore:
    """Curves of the runs of one backend, by uid of the run."""

    def __init__(self) -> None:
        self._curves: dict[str, RunCurve] = {}

    def add(self, uid: str, record: Mapping[str, Any]) -> None:
        """Add a record of a run's learner."""
        curve = self._curves.get(uid)
        if curve is None:
            if len(self._curves) >= MAX_RUNS:
                return  # curves that the user views have precedence over runs that only receive records
            curve = self._curves[uid] = RunCurve()
        curve.add(curve_record(record))

    def of(self, uid: str) -> RunCurve:
        """Return the curve of a run, an empty one at first; this counts as viewing it."""
        curve = self._curves.pop(uid, None) or RunCurve()
        self._curves[uid] = curve
        while len(self._curves) > MAX_RUNS:
            del self._curves[next(iter(self._curves))]
        return curve

    def put_before(self, uid: str, older: RunCurve) -> None:
        """Replace a curve by one that was read back, continued with the records that arrived in between."""
        older.continue_with(self.of(uid))
        self._curves[uid] = older


async def read_back(backend: Backend, run: RunView, learner: PodView | None) -> AsyncGenerator[RunCurve, None]:
    """Yield the curve of a run from its beginning: for a long metrics file first a sample, then all of it.

    Args:
        learner: Its pod, whose log is read without a metrics file; None if it was deleted.
    """
    # A volume may have records of earlier runs; clocks of a cluster may differ a little.
    since = run.created - _CLOCK_SLACK_SECONDS if run.created else 0.0
    folder = None
    if backend.results is not None:
        with suppress(L2RError):
            folder = await backend.results(run.name)
    paths = [folder / name for name in _FILES if (folder / name).is_file()] if folder is not None else []
    if paths:
        if (sample := await asyncio.to_thread(_sampled, paths, since)) is not None:
            yield sample
        yield await _read_files(paths, since)
    if learner is not None and not paths:
        yield await _read_log(backend, learner)


async def seed_curve(backend: Backend, snapshot: ClusterSnapshot, run: RunView) -> SeedCurve:
    """Return the complete curve of a run, for a command."""
    learner = next((pod for pod in snapshot.pods_of(run.name) if pod.role is Role.LEARNER), None)
    async with aclosing(read_back(backend, run, learner)) as curves:
        read = [curve async for curve in curves]
    curve = read[-1] if read else RunCurve()
    return SeedCurve(run.name, curve, run.seed, run.experiment, run.created, run.place, run.spec_id)


# --- files -----------------------------------------------------------------------------------------------------
async def _read_files(paths: list[Path], since: float) -> RunCurve:
    curve = RunCurve()
    for path in paths:
        # Rotation renames the file: an open one stays the same.
        with suppress(OSError), path.open("rb") as file:
            while await asyncio.to_thread(_add_chunk, file, curve, since):
                pass
    curve.is_complete = True
    return curve


def _add_chunk(file: BinaryIO, curve: RunCurve, since: float) -> bool:
    lines = file.readlines(_CHUNK_BYTES)
    curve.add_all(_batch(list(_records(lines, since))))
    return bool(lines)


def _sampled(paths: list[Path], since: float) -> RunCurve | None:
    """Return a curve of evenly spread records; None if the files are so short that all are read directly."""
    sizes = [(path, path.stat().st_size) for path in paths]
    total = sum(size for _, size in sizes)
    if total < 2 * SAMPLES * len(_LEARNER) * 16:  # a record has some 500 bytes
        return None
    curve = RunCurve()
    for path, size in sizes:
        with suppress(OSError), path.open("rb") as file:
            lines = _spread_lines(file, size, max(1, SAMPLES * size // total))
            curve.add_all(_batch(list(_records(lines, since))))
    return curve


def _spread_lines(file: BinaryIO, size: int, num: int) -> Iterator[bytes]:
    """Yield lines at equal distances in a file."""
    for place in range(num):
        # pread, not mmap: accessing memory after the end of a file that its writer truncates is a SIGBUS.
        piece = os.pread(file.fileno(), 4096, place * size // num)
        start = piece.find(b"\n") + 1
        end = piece.find(b"\n", start)
        if start and end > 0:
            yield piece[start:end]


def _records(lines: Iterable[bytes], since: float) -> Iterator[_LearnerRecord]:
    for line in lines:
        if not line.startswith(_LEARNER):
            continue
        try:
            record = _decode(line)
        except ValueError:  # a field of another type, or a truncated line
            fields = parse_record(line.decode("utf-8", "replace"))
            if fields is None:
                continue
            record = _checked(fields)
        if record.time >= since:
            yield record


# --- logs ------------------------------------------------------------------------------------------------------
async def _read_log(backend: Backend, learner: PodView) -> RunCurve:
    curve = RunCurve()
    queries = [LogQuery(previous=True)] if learner.restarts else []
    for query in (*queries, LogQuery()):
        # A deleted or forbidden log leaves a curve of the records that arrive from now on.
        with suppress(L2RError):
            async with aclosing(backend.logs(learner, query)) as lines:
                await _add_lines(lines, curve)
    curve.is_complete = True
    return curve


async def _add_lines(lines: AsyncGenerator[Any, None], curve: RunCurve) -> None:
    number_of_lines = 0
    async for line in lines:
        record = parse_record(line.text)
        if record is not None and record["l2r"] == Role.LEARNER:
            curve.add(curve_record(record))
        number_of_lines += 1
        if not number_of_lines % _LINES_PER_TURN:
            await asyncio.sleep(0)  # a backlog arrives in one piece; let keys be handled
