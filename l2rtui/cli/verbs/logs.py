"""logs and metrics."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, datetime

from l2rtui.cli import json_output, table_output
from l2rtui.cli.output import Column, View, to_json
from l2rtui.cli.session import Session
from l2rtui.cli.targets import pods_named, runs_named
from l2rtui.domain.log import LogLine, LogQuery
from l2rtui.domain.sanitize import sanitize
from l2rtui.errors import EXIT_DONE, NotFoundError, UsageError
from l2rtui.services import job_status, logs, metrics

_SPAN = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd])")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PREFIX_COLOURS = ("36", "33", "35", "32", "34", "31")
_LINE = View("pod", (Column("TEXT", "text"),))


def since(text: str, now: float) -> float:
    """Read ``--since``: a span before now (``10m``) or an RFC 3339 time; seconds since the epoch.

    Raises:
        UsageError: it is neither.
    """
    if match := _SPAN.fullmatch(text):
        return now - float(match[1]) * _UNITS[match[2]]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        hint = "Write a span such as 90s, 10m, 2h, or a time such as 2025-06-15T15:06:40Z."
        raise UsageError(f"--since {text!r} is no time.", hint) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


async def run_logs(session: Session) -> int:
    """Print the lines of pods, merged in the order of time."""
    args = session.args
    query = LogQuery(
        follow=args.follow,
        tail=args.tail,
        since=since(args.since, time.time()) if args.since else None,
        previous=args.previous,
    )
    for text, option in ((args.grep, "--grep"), (args.exclude, "--exclude")):
        # Checked before the backend is asked, so that a typo costs no login.
        logs.pattern(text, option)
    snapshot = await session.backend.snapshot()
    pods = pods_named(snapshot, args.targets)
    runs = [target for target in args.targets if snapshot.runs_matching(target.partition("/")[0])]
    if session.out.form == "name":
        session.out.show_all(_LINE, [{"pod": pod.name} for pod in pods])
        return EXIT_DONE
    write = _writer(session, [pod.name for pod in pods], has_more=args.follow and bool(runs))
    lines = logs.merged(session.backend, pods, query, include=args.grep, exclude=args.exclude, targets=runs)
    async with aclosing(lines) as stream:
        async for line in stream:
            write(line)
            if args.follow:
                session.out.stream.flush()
    return EXIT_DONE


def _writer(session: Session, names: list[str], *, has_more: bool) -> Callable[[LogLine], None]:
    """Return the line writer; lines carry the pod's name where there are several pods, or more may come."""
    out = session.out
    if out.form == "json":
        return lambda line: out.line(to_json(json_output.line_document(line), indent=None))
    if out.form == "yaml":
        return lambda line: out.stream_one(_LINE, json_output.line_document(line))
    width = max(map(len, names))
    colours = {name: _PREFIX_COLOURS[number % len(_PREFIX_COLOURS)] for number, name in enumerate(names)}
    has_times = session.args.timestamps or out.form == "wide"

    def write(line: LogLine) -> None:
        parts = [f"{json_output.when(line.time)} "] if has_times else []
        # A pod that joined later gets the next colour.
        if line.pod not in colours:
            colours[line.pod] = _PREFIX_COLOURS[len(colours) % len(_PREFIX_COLOURS)]
        who = f"{line.pod}/{line.container}" if line.container else line.pod
        if len(names) > 1 or has_more or line.container:
            prefix, colour = f"{sanitize(who):<{width}} | ", colours[line.pod]
            parts.append(f"\x1b[{colour}m{prefix}\x1b[0m" if out.has_colours else prefix)
        # Colours of the program may stay on a terminal; every other escape sequence of a log goes.
        text = sanitize(line.text, keep_sgr=out.has_colours)
        parts.append(f"──── {text} ────" if line.is_mark else text)
        # A line that sets a colour and never resets it must not colour the next one.
        if out.has_colours and "\x1b" in text:
            parts.append("\x1b[0m")
        out.line("".join(parts))

    return write


async def _progress(session: Session) -> int:
    """Print the progress of a run without a learner: one table for each part, or one document."""
    document = json_output.progress_document(await job_status.standing(session.backend, session.args.run))
    if session.out.form in ("json", "yaml"):
        session.out.dump(document)
        return EXIT_DONE
    parts = [
        (table_output.STEPS, document["steps"]),
        (table_output.ELASTIC, document["nodes"]),
        (table_output.PEERS, document["peers"]),
    ]
    if (evaluation := document["evaluation"]) is not None:
        rows = [{"class": "all", "accuracy": evaluation["accuracy"]}]
        rows += [{"class": name, "accuracy": value} for name, value in evaluation["classes"].items()]
        parts.append((table_output.ACCURACY, rows))
    filled = [part for part in parts if part[1]]
    for number, (view, rows) in enumerate(filled):
        if number and session.out.form != "name":
            session.out.line("")
        session.out.show_all(view, rows)
    if not filled:
        session.talk.say(f"The pods of {session.args.run} have printed no record yet.")
    return EXIT_DONE


async def run_metrics(session: Session) -> int:
    """Print the metrics of a run, once or for each record."""
    snapshot = await session.backend.snapshot()
    if not session.args.watch:
        if not metrics.has_learner(snapshot, session.args.run):
            return await _progress(session)
        run_metrics = await metrics.latest(session.backend, session.args.run)
        is_learning = metrics.learner_of(snapshot, session.args.run).ready
        document = json_output.metrics_document(run_metrics, time.time(), is_learning=is_learning)
        session.out.show_one(table_output.METRICS, document)
        return EXIT_DONE
    (run, *_) = runs_named(snapshot, [session.args.run])
    learner = metrics.learner_of(snapshot, run.name)
    try:
        # The backlog is read again by the stream; only the newest record of it is printed.
        newest = (await metrics.latest(session.backend, run.name)).time
    except NotFoundError:
        newest = 0.0
    async with aclosing(metrics.follow(session.backend, run, learner)) as stream:
        async for run_metrics in stream:
            if run_metrics.time >= newest:  # records of the backlog that are older than the newest are skipped
                document = json_output.metrics_document(run_metrics, time.time())
                session.out.stream_one(table_output.METRICS, document)
    return EXIT_DONE
