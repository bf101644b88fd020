"""alerts: a test message to each target of a run's alerts."""

from __future__ import annotations

import os

from l2rtui.cli.session import Session
from l2rtui.cli.targets import runs_named
from l2rtui.errors import EXIT_DONE, EXIT_FAILED, UsageError
from l2rtui.services import alerts
from l2rtui.services.spec import spec_file


async def run_alerts(session: Session) -> int:
    """Send a test: from the learner of a run, or from this machine for a spec file."""
    session.require_writable("alerts test")
    target = session.args.target
    if target.endswith((".yaml", ".yml", ".json")) or os.sep in target:
        return await _test_file(session, target)
    snapshot = await session.backend.snapshot()
    runs = runs_named(snapshot, [target])
    if len(runs) != 1:
        raise UsageError(f"{target} names {len(runs)} runs.", "Name one of them.")
    code, text = await alerts.from_run(session.backend, snapshot, runs[0].name)
    for line in text.splitlines():
        session.out.line(line)
    return EXIT_FAILED if code else EXIT_DONE


async def _test_file(session: Session, path: str) -> int:
    spec = spec_file.load(path).spec
    if not spec.alerts:
        raise UsageError(f"{path} has no alerts.", "Write them as docs/limits-and-alerts.md shows.")
    deliveries = await alerts.from_here(spec, os.environ)
    for delivery in deliveries:
        problem = f"not delivered to {delivery.target}: {delivery.problem}"
        session.out.line(problem if delivery.problem else f"sent to {delivery.target}")
    return EXIT_FAILED if any(delivery.problem for delivery in deliveries) else EXIT_DONE
