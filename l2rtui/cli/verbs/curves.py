"""Curves of runs as a picture or a table: ``metrics --svg`` and ``metrics --csv``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from l2rtui.cli.session import Session
from l2rtui.domain.curves.chart import SMOOTHINGS, ChartSettings, SeedCurve, grouped
from l2rtui.domain.curves.export import csv_text, svg_text
from l2rtui.domain.curves.run_curve import Axis
from l2rtui.domain.quantity import counted
from l2rtui.domain.snapshot import ClusterSnapshot, RunView
from l2rtui.errors import EXIT_DONE, NotFoundError, UsageError
from l2rtui.services.curves import seed_curve
from l2rtui.services.metrics import has_learner
from runtime.base.atomic_files import write_atomic

_AT_ONCE = 4
"""Runs that are read back in parallel: each may have a log of many megabytes."""


async def export(session: Session, snapshot: ClusterSnapshot, runs: Sequence[RunView]) -> int:
    """Write the curves of runs over their full length, as far back as files or logs reach."""
    args, limit = session.args, asyncio.Semaphore(_AT_ONCE)
    learning = [run for run in runs if has_learner(snapshot, run.name)]
    if runs and not learning:
        raise NotFoundError(
            "None of these runs has a learner, so there are no curves.", "See `l2rtui metrics RUN`."
        )
    async with asyncio.TaskGroup() as group:

        async def read(run: RunView) -> SeedCurve:
            async with limit:
                return await seed_curve(session.backend, snapshot, run)

        tasks = [group.create_task(read(run)) for run in learning]
    seeds = [task.result() for task in tasks]
    for seed in seeds:
        if not seed.curve.num_records:
            session.talk.say(f"The learner of {seed.name} has printed no metric record yet.")
    settings = ChartSettings(Axis(args.over), SMOOTHINGS[1] if args.smooth else 0.0)
    if args.svg:
        write_text(session, args.svg, svg_text(grouped(seeds, by_experiment=args.mean), settings))
    if args.csv:
        write_text(session, args.csv, csv_text(seeds))
    records = sum(seed.curve.num_records for seed in seeds)
    session.talk.say(f"{counted(records, 'record')} of {counted(len(seeds), 'run')}.")
    return EXIT_DONE


def write_text(session: Session, path: str, text: str) -> None:
    """Write a text to a file, or to the standard output for ``-``.

    Raises:
        UsageError: the file cannot be written.
    """
    if path == "-":
        session.out.stream.write(text)
        return
    try:
        write_atomic(Path(path).expanduser(), text.encode())
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from error
    session.talk.say(f"Wrote {path}.")
