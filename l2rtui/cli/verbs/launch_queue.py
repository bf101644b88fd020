"""launch and relaunch with --queue: whole runs that fit are started, the others are queued."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from l2rtui.backends.common.refusals import SlotTakenError
from l2rtui.cli import json_output, table_output
from l2rtui.cli.session import Session
from l2rtui.cli.targets import listed
from l2rtui.domain.preflight import Severity
from l2rtui.errors import EXIT_DONE, EXIT_FAILED, EXIT_LEFT_BEHIND, UsageError
from l2rtui.services.launcher import CheckedPlan
from l2rtui.services.queue.submission import divide, other_refusals, submit

_TRIES: Final = 5
_RACE_SECONDS: Final = 0.5
"""Pause after another launch was faster: on a cluster its pods appear some time after its claim."""
Start = Callable[[CheckedPlan], Awaitable[list[dict[str, Any]] | None]]


def is_queueing(session: Session, prepared: CheckedPlan) -> bool:
    """Return True if the runs of a plan may wait for room, according to the command line or their specs.

    Raises:
        UsageError: ``--queue`` contradicts another option, or has no meaning on this backend.
    """
    args = session.args
    has_queue = session.backend.queue is not None
    if args.queue and not has_queue:
        raise UsageError(f"The {session.backend.name} backend has no queue: --queue means nothing there.")
    if args.queue and args.overcommit:
        sentence = "--queue waits for free slots, and --overcommit shares those of others."
        raise UsageError(sentence, "Leave out one of the two.")
    is_allowed = args.queue or (any(run.spec.may_wait for run in prepared.plan.runs) and not args.overcommit)
    return bool(has_queue and is_allowed and not other_refusals(prepared))


async def launch_or_queue(
    session: Session, prepared: CheckedPlan, start: Start, *, is_one: bool, tries: int = _TRIES
) -> int:
    """Start the runs that fit and queue the others.

    Args:
        start: Executes a plan and returns the documents of its runs; None if objects were left behind.
        tries: Number of divisions of the runs, while other launches take the slots of those that would start.
    """
    with session.interruption("nothing was created or queued."):
        submissions = await divide(session.backend, prepared)
    _say_warnings(session, submissions.start or prepared)
    if not session.confirm(lambda: f"{submissions.sentence} {session.backend.acts_on()}. Go ahead?"):
        return EXIT_FAILED
    launched: list[dict[str, Any]] = []
    if submissions.start is not None:
        try:
            documents = await start(submissions.start)
        except SlotTakenError:
            if not (session.args.yes and tries > 1):
                raise
            await asyncio.sleep(_RACE_SECONDS)
            return await launch_or_queue(session, prepared, start, is_one=is_one, tries=tries - 1)
        if documents is None:
            return EXIT_LEFT_BEHIND
        launched = documents
    if submissions.waiting:
        # Last: a launch that fails is undone as a whole, and then nothing must be queued.
        await submit(session.backend, submissions)
        session.talk.say(f"queued {listed(ticket.spec.name for ticket in submissions.waiting)}")
    session.talk.say(f"{submissions.sentence}.")
    launched += [json_output.queued_document(ticket) for ticket in submissions.waiting]
    if is_one:
        session.out.show_one(table_output.LAUNCHED, launched[0])
    else:
        session.out.show_all(table_output.LAUNCHED, launched)
    return EXIT_DONE


def _say_warnings(session: Session, prepared: CheckedPlan) -> None:
    for finding in prepared.findings:
        if finding.severity is Severity.WARNING:
            session.talk.say(f"warning: {finding.subject}: {finding.sentence}. {finding.hint}".rstrip())
