"""recover: continue runs of this machine after a reboot, or after the end of their supervisors."""

from __future__ import annotations

from l2rtui.cli.session import Session
from l2rtui.domain.quantity import counted
from l2rtui.errors import EXIT_DONE, EXIT_FAILED
from l2rtui.tables.column import Column, View

_VIEW = View("run", (Column("RUN", "run"), Column("SUPERVISED", "supervised"), Column("ERROR", "error")))


async def run_recover(session: Session) -> int:
    """Start missing supervisors and keepers of queues; exit code 1 if a supervisor did not start.

    Every command does this beside its work; this one has no other, for scripts and services.
    """
    session.require_writable("recover")
    outcomes = await session.recovered()
    documents = [
        {"run": run, "supervised": not error, "error": error or None} for run, error in sorted(outcomes.items())
    ]
    session.out.show_all(_VIEW, documents)
    failed = sum(bool(error) for error in outcomes.values())
    if not outcomes:
        session.talk.say("No run has lost its supervisor.")
    elif failed:
        session.talk.say(f"{counted(failed, 'run')} not supervised: see the errors above.")
    return EXIT_FAILED if failed else EXIT_DONE
