"""metrics: training progress of one run or of several, once or record by record."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from l2rtui.cli.listings import RUNS
from l2rtui.cli.selection import RowSelection, filtered
from l2rtui.cli.session import Session
from l2rtui.cli.watching import RepaintedTable
from l2rtui.domain.metrics import RunMetrics
from l2rtui.domain.quantity import counted
from l2rtui.domain.selection.filter_language import is_pattern
from l2rtui.domain.snapshot import ClusterSnapshot, RunView
from l2rtui.errors import EXIT_DONE, L2RError, NotFoundError
from l2rtui.services import job_status, metrics
from l2rtui.tables import operations
from l2rtui.tables.column import Column, Document, View
from l2rtui.tables.documents import metrics_document, progress_document

_AT_ONCE = 8
"""Logs that are read in parallel: hundreds would exhaust an API server's queue for all users."""
_REPAINT_SECONDS = 1.0
_TENSORBOARD = View("folder", (Column("RUN", "run"), Column("FOLDER", "folder")))


async def run_metrics(session: Session) -> int:
    """Print the metrics of runs, once or for each record."""
    filtered(session.args.filter, operations.METRICS, ())
    snapshot = await session.backend.snapshot()
    names = session.args.names
    if session.args.tensorboard:
        return await _tensorboard(session, snapshot, names)
    # One run named exactly is one object, as in earlier versions.
    is_one = len(names) == 1 and snapshot.run_named(names[0]) is not None
    runs = _chosen(session, snapshot)
    if session.args.svg or session.args.csv:
        from l2rtui.cli.verbs.curves import export  # the other forms do not need its storage and scales

        return await export(session, snapshot, runs)
    if session.args.watch:
        return await _follow(session, snapshot, runs, is_one=is_one)
    if is_one and runs:
        return await _print_one(session, snapshot, runs[0])
    return await _print_all(session, snapshot, runs)


async def _tensorboard(session: Session, snapshot: ClusterSnapshot, names: Sequence[str]) -> int:
    """Print the folders of TensorBoard files; the commands that show them go to stderr."""
    from l2rtui.services import artifacts  # whose decoders the other forms do not need

    # A name without a run may be that of a destroyed one, whose results remain.
    gone = [name for name in names if not is_pattern(name) and not snapshot.runs_matching(name)]
    past = {name: await artifacts.tensorboard_folder(session.backend, name) for name in gone}
    gone = [name for name in gone if past[name]]
    session.args.names = [name for name in names if name not in gone]
    runs = [run.name for run in _chosen(session, snapshot)] if session.args.names or not gone else []
    folders = {run: await artifacts.tensorboard_folder(session.backend, run) for run in runs} | {
        name: past[name] for name in gone
    }
    here = {run: folder for run, folder in folders.items() if folder}
    in_pods = not here and session.backend.results is None
    place = f"{artifacts.DATA_DIR}/tensorboard"
    documents = [
        {"run": run, "folder": folder or (place if in_pods else None), "in_pod": in_pods}
        for run, folder in folders.items()
    ]
    session.out.show_all(_TENSORBOARD, documents)
    if len(here) == 1:
        session.talk.say(f"tensorboard --logdir {shlex.quote(next(iter(here.values())))}")
    elif here:
        spec = ",".join(f"{run}:{folder}" for run, folder in here.items())
        session.talk.say(f"tensorboard --logdir_spec {shlex.quote(spec)}")
    elif in_pods and runs:
        pod = f"{runs[0]}/learner/0"
        session.talk.say(
            f"They are in the learner's pod: `l2rtui exec {pod} -- tensorboard --logdir {place} --port 6006`, and "
            f"`l2rtui port-forward {pod} 6006:6006`."
        )
    elif runs:
        session.talk.say("The learner writes them with its first record, if tensorboardX is installed.")
    return EXIT_DONE


def _chosen(session: Session, snapshot: ClusterSnapshot) -> list[RunView]:
    selection = RowSelection(session.args, RUNS)
    every = RUNS.documents(snapshot)
    selection.require_names(snapshot, every)
    documents = selection.choose(snapshot, every)
    if not documents:
        session.talk.say(selection.why_empty(snapshot, every) or "There are no runs.")
    return [snapshot.runs[document["uid"]] for document in documents]


async def _print_one(session: Session, snapshot: ClusterSnapshot, run: RunView) -> int:
    if not metrics.has_learner(snapshot, run.name):
        _print_progress(session, await job_status.standing(session.backend, run.name))
        return EXIT_DONE
    learner = metrics.learner_of(snapshot, run.name)
    newest = await metrics.newest(session.backend, run.name, learner)
    if newest is None:
        sentence = f"The learner of {run.name} has printed no metric record yet."
        raise NotFoundError(sentence, f"See `l2rtui logs {run.name}/learner`.")
    document = metrics_document(newest, time.time(), is_learning=learner.ready)
    session.out.show_one(operations.METRICS, document)
    return EXIT_DONE


async def _print_all(session: Session, snapshot: ClusterSnapshot, runs: Sequence[RunView]) -> int:
    """Print one row for each run with a learner, then the progress of each run without."""
    out, limit = session.out, asyncio.Semaphore(_AT_ONCE)

    async def read(run: RunView) -> Document | job_status.RunProgress | None:
        async with limit:
            try:
                if not metrics.has_learner(snapshot, run.name):
                    return await job_status.standing(session.backend, run.name)
                return await _read(session, snapshot, run)
            except L2RError as error:  # one run that is just ending must not cost the others their rows
                session.talk.say(str(error))
                return None

    answers = await asyncio.gather(*map(read, runs))
    rows = [answer for answer in answers if isinstance(answer, Mapping)]
    progress = [answer for answer in answers if isinstance(answer, job_status.RunProgress)]
    rows = filtered(session.args.filter, operations.METRICS, rows)
    if session.args.filter:
        progress = []  # it has other columns
    if out.form in ("json", "yaml"):
        out.dump([*rows, *map(progress_document, progress)])
        return EXIT_DONE
    if rows or not progress:
        out.show_all(operations.METRICS, rows)
    for item in progress:
        if out.form == "name":
            out.text(item.run)
            continue
        out.text(f"\n{item.run} ({item.kind})")
        _print_progress(session, item)
    return EXIT_DONE


async def _read(session: Session, snapshot: ClusterSnapshot, run: RunView) -> Document | None:
    learner = next((pod for pod in snapshot.pods_of(run.name) if pod.role == "learner"), None)
    newest = await metrics.newest(session.backend, run.name, learner) if learner is not None else None
    if learner is None or newest is None:
        session.talk.say(f"The learner of {run.name} has printed no metric record yet.")
        return None
    return metrics_document(newest, time.time(), is_learning=learner.ready)


def _print_progress(session: Session, progress: job_status.RunProgress) -> None:
    """Print the progress of a run without a learner: one table for each part, or one document."""
    document = progress_document(progress)
    if session.out.form in ("json", "yaml"):
        session.out.dump(document)
        return
    parts: list[tuple[View, list[dict[str, Any]]]] = [
        (operations.STEPS, document["steps"]),
        (operations.ELASTIC, document["nodes"]),
        (operations.PEERS, document["peers"]),
    ]
    if (evaluation := document["evaluation"]) is not None:
        rows = [{"class": "all", "accuracy": evaluation["accuracy"]}]
        rows += [{"class": name, "accuracy": value} for name, value in evaluation["classes"].items()]
        parts.append((operations.ACCURACY, rows))
    filled = [part for part in parts if part[1]]
    for number, (view, rows) in enumerate(filled):
        if number and session.out.form != "name":
            session.out.line("")
        session.out.show_all(view, rows)
    if not filled:
        session.talk.say(f"The pods of {progress.run} have printed no record yet.")


# --- record by record ------------------------------------------------------------------------------------------
async def _follow(session: Session, snapshot: ClusterSnapshot, runs: Sequence[RunView], *, is_one: bool) -> int:
    learning = [run for run in runs if metrics.has_learner(snapshot, run.name)]
    if is_one and not learning:
        metrics.learner_of(snapshot, runs[0].name)  # raises its sentence
    if len(learning) < len(runs):
        others = counted(len(runs) - len(learning), "run")
        session.talk.say(f"{others} without a learner: see `l2rtui metrics RUN`.")
    if session.out.is_screen and session.out.form in ("table", "wide") and not is_one:
        return await _follow_on_screen(session, snapshot, learning)
    async with aclosing(_records(session, snapshot, learning)) as records:
        async for record in records:
            document = metrics_document(record, time.time())
            if filtered(session.args.filter, operations.METRICS, [document]):
                session.out.stream_one(operations.METRICS, document)
    return EXIT_DONE


async def _follow_on_screen(session: Session, snapshot: ClusterSnapshot, runs: Sequence[RunView]) -> int:
    """Paint one row for each run; return when the last of them has ended."""
    newest: dict[str, RunMetrics] = {}

    async def read() -> None:
        async with aclosing(_records(session, snapshot, runs)) as records:
            async for record in records:
                newest[record.run] = record

    table, reader = RepaintedTable(session.out, operations.METRICS), asyncio.ensure_future(read())
    try:
        while True:
            # In the order of the runs, regardless of who writes first; ages advance without a record.
            rows = [newest[run.name] for run in runs if run.name in newest]
            documents = [metrics_document(record, time.time()) for record in rows]
            table.show(filtered(session.args.filter, operations.METRICS, documents), "")
            if reader.done():
                reader.result()
                return EXIT_DONE
            await asyncio.wait([reader], timeout=_REPAINT_SECONDS)
    finally:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)


async def _records(
    session: Session, snapshot: ClusterSnapshot, runs: Sequence[RunView]
) -> AsyncGenerator[RunMetrics, None]:
    """Yield the newest record of each run, then each new one, until all learners have ended."""
    queue: asyncio.Queue[RunMetrics | L2RError | None] = asyncio.Queue()

    async def read(run: RunView) -> None:
        try:
            learner = metrics.learner_of(snapshot, run.name)
            # The stream reads the backlog again; only its newest record is passed on.
            before = await metrics.newest(session.backend, run.name, learner)
            async with aclosing(metrics.follow(session.backend, run, learner)) as stream:
                async for record in stream:
                    if before is None or record.time >= before.time:
                        queue.put_nowait(record)
        except L2RError as error:
            queue.put_nowait(error)
        finally:
            queue.put_nowait(None)

    readers = [asyncio.ensure_future(read(run)) for run in runs]
    try:
        left = len(readers)
        while left:
            match await queue.get():
                case None:
                    left -= 1
                case RunMetrics() as record:
                    yield record
                case error if len(readers) == 1:
                    raise error
                case error:  # the others continue
                    session.talk.say(str(error))
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
