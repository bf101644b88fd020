"""logs: lines of pods, merged by time."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import aclosing, suppress
from datetime import UTC, datetime

from l2rtui.cli.output import to_json
from l2rtui.cli.session import Session
from l2rtui.cli.targets import pods_named
from l2rtui.domain.log import LogLine, LogQuery
from l2rtui.domain.quantity import rfc3339
from l2rtui.domain.sanitize import sanitize
from l2rtui.errors import EXIT_DONE, UsageError
from l2rtui.services import logs
from l2rtui.tables.column import Column, View
from l2rtui.tables.documents import line_document
from runtime.base.durations import parse_duration

_PREFIX_COLOURS = ("36", "33", "35", "32", "34", "31")
_LINE = View("pod", (Column("TEXT", "text"),))


def since(text: str, now: float) -> float:
    """Read ``--since``: a duration before now (``10m``) or an RFC 3339 time; seconds since the epoch.

    Raises:
        UsageError: it is neither.
    """
    if not text.isdigit():  # 20250615 is a date
        with suppress(ValueError):
            return now - parse_duration(text, allows_zero=True)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        hint = "Write a duration such as 90s, 10m, 1h30m, or a time such as 2025-06-15T15:06:40Z."
        raise UsageError(f"--since {text!r} is no time.", hint) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


async def run_logs(session: Session) -> int:
    """Print the lines of pods, merged by time."""
    args = session.args
    query = LogQuery(
        follow=args.follow,
        tail=args.tail,
        since=since(args.since, time.time()) if args.since else None,
        previous=args.previous,
        container=args.container,
    )
    if args.container and session.backend.name != "kubernetes":
        sentence = f"Pods of the {session.backend.name} backend have one container each."
        raise UsageError(sentence, "Leave out --container.")
    for text, option in ((args.grep, "--grep"), (args.exclude, "--exclude")):
        # Checked before the backend is asked, so that a typo does not require a login.
        logs.pattern(text, option)
    snapshot = await session.backend.snapshot()
    pods = pods_named(snapshot, args.targets)
    runs = [target for target in args.targets if snapshot.runs_in(target)[0]]
    if session.out.form == "name":
        session.out.show_all(_LINE, [{"pod": pod.name} for pod in pods])
        return EXIT_DONE
    write = _writer(session, [pod.name for pod in pods], has_more=args.follow and bool(runs))
    lines = logs.merged(session.backend, pods, query, include=args.grep, exclude=args.exclude, targets=runs)
    has_lines = False
    async with aclosing(lines) as stream:
        async for line in stream:
            write(line)
            has_lines = True
            if args.follow:
                session.out.stream.flush()
    if args.container and not has_lines:
        session.talk.say(f"No line of a container {args.container!r}: `l2rtui describe POD` lists its containers.")
    return EXIT_DONE


def _writer(session: Session, names: list[str], *, has_more: bool) -> Callable[[LogLine], None]:
    """Return the line writer; lines carry the pod's name if there are several pods, or more may come."""
    out = session.out
    if out.form == "json":
        return lambda line: out.line(to_json(line_document(line), indent=None))
    if out.form == "yaml":
        return lambda line: out.stream_one(_LINE, line_document(line))
    width = max(map(len, names))
    colours = {name: _PREFIX_COLOURS[number % len(_PREFIX_COLOURS)] for number, name in enumerate(names)}
    has_times = session.args.timestamps or out.form == "wide"
    last: tuple[str, str, bool] = ("", "", False)

    def write(line: LogLine) -> None:
        nonlocal last
        # On a terminal a newer state of a progress bar replaces the older one, if it fits in a row.
        if line.replaces and last == (line.pod, line.container, True):
            out.stream.write("\x1b[1A\x1b[2K")
        fits = len(line.text) + width + 32 < shutil.get_terminal_size().columns
        last = (line.pod, line.container, out.has_colours and fits)
        parts = [f"{rfc3339(line.time)} "] if has_times else []
        # A pod that joined later gets the next colour.
        if line.pod not in colours:
            colours[line.pod] = _PREFIX_COLOURS[len(colours) % len(_PREFIX_COLOURS)]
        who = f"{line.pod}/{line.container}" if line.container else line.pod
        if len(names) > 1 or has_more or (line.container and not session.args.container):
            prefix, colour = f"{sanitize(who):<{width}} | ", colours[line.pod]
            parts.append(f"\x1b[{colour}m{prefix}\x1b[0m" if out.has_colours else prefix)
        # The program's colours may stay on a terminal; every other escape sequence of a log is removed.
        text = sanitize(line.text, keep_sgr=out.has_colours)
        parts.append(f"──── {text} ────" if line.is_mark else text)
        # A line that sets a colour and never resets it must not colour the next one.
        if out.has_colours and "\x1b" in text:
            parts.append("\x1b[0m")
        out.line("".join(parts))

    return write
