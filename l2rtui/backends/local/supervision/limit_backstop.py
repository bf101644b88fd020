"""Deadline of a run in its supervisor: ends hung learners, and runs of kinds without a learner."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from l2rtui.backends.common.run_variables import backstop_seconds
from l2rtui.backends.local.state_files import RunRecord, RunStatus
from l2rtui.domain.plan import gpu_count
from runtime.base.contract import END_FILE
from runtime.base.limits import ENDED_BY, Limits, deadline_label
from runtime.base.metrics import parse_record, text


class Backstop(Struct, frozen=True):
    """Deadline by ``time.monotonic()``, and its text.

    Attributes:
        label: ``ended by limit wall 12 h``.
    """

    at: float
    label: str


def backstop_of(record: RunRecord, before: RunStatus | None, now: float) -> Backstop | None:
    """Return the deadline of a run; None without a limit that has a deadline.

    Args:
        before: Status of an earlier supervisor, whose deadline is kept.
        now: Seconds of ``time.monotonic()``, which all processes of one boot share.
    """
    pods = [pod.plan for pod in record.pods]
    seconds = backstop_seconds(record.spec, pods)
    if seconds is None:
        return None
    at = now + seconds
    # After a boot that clock restarts, and the old time may be far in the future.
    if before is not None and before.limit_at is not None:
        at = min(at, before.limit_at)
    return Backstop(at, f"{ENDED_BY} {deadline_label(record.spec.limits or Limits(), gpu_count(pods))}")


def end_reason(folder: Path, run_id: str) -> str:
    """Return the limit by which the learner of this launch has ended it; empty without one.

    Args:
        folder: Its ``L2R_DIR``, where an earlier launch may have left its own record.
    """
    try:
        record = parse_record((folder / END_FILE).read_text("utf-8").strip())
    except (OSError, ValueError):
        return ""
    if record is None or record.get("run_id") != run_id or record.get("limit") is not True:
        return ""
    return text(record.get("reason"))
