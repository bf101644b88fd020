"""Metric records of single pods: simulators, rates, ranks, steps.

Records come from inside the run and are not trusted.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from enum import Enum
from typing import Any, Final

from msgspec.structs import replace

from l2rtui.backends.base import Backend
from l2rtui.domain.log import LogQuery
from l2rtui.domain.metrics import PodMetrics
from l2rtui.domain.snapshot import PodView
from l2rtui.domain.workload import Role
from l2rtui.services.logs import ReadingTurns
from runtime.base.contract import GPU_RECORD, WORKERS_RECORD
from runtime.base.metrics import MAX_COUNT, number, parse_record, text

BACKLOG_LINES: Final = 60
"""Lines of backlog in which the newest record is searched."""
SILENT_LINES: Final = 2_000
"""Lines without a record after which a pod counts as writing none."""
_NOT_OF_ONE: Final = (Role.LEARNER, GPU_RECORD, WORKERS_RECORD)
"""Kinds of records that other modules read."""
_MAX_TEXT: Final = 400
_FADING: Final = 0.8
"""Part of a long interval that still counts one record later."""


def read(line: str) -> PodMetrics | None:
    """Read one line of a log; None if it is not a record, or a learner's."""
    record = parse_record(line)
    if record is None or record["l2r"] in _NOT_OF_ONE:
        return None
    rank, world_size, turn = (_number(record.get(key)) for key in ("rank", "world_size", "round"))
    return PodMetrics(
        record["l2r"],
        _number(record.get("time")) or 0.0,
        _number(record.get("env_steps_per_second")),
        _text(record.get("simulator_state")),
        int(_number(record.get("simulator_restarts")) or 0),
        _number(record.get("simulator_fps")) or 0.0,
        _text(record.get("simulator_error")),
        rank=None if rank is None else int(rank),
        world_size=None if world_size is None else int(world_size),
        step=_activity(record),
        gpu_percent=_number(record.get("gpu_percent")),
        gpu_memory_bytes=_number(record.get("gpu_memory_bytes")),
        round=None if turn is None else int(turn),
        has_steps=any(_number(record.get(name)) is not None for name in ("step", "epoch", "global_step")),
        step_seconds=_number(record.get("step_seconds")) or 0.0,
        longest_step_seconds=_number(record.get("longest_step_seconds")) or 0.0,
        stepping_seconds=_number(record.get("stepping_seconds")) or 0.0,
        environment_share=_number(record.get("environment_share")),
        waiting_share=_number(record.get("waiting_share")),
    )


def after(before: PodMetrics | None, news: PodMetrics) -> PodMetrics:
    """Merge a record into the previous one: its interval, and the lowest rank for all processes of a pod."""
    if before is None or before.kind != news.kind:
        return news
    has_restarted = news.simulator_restarts > before.simulator_restarts
    news = replace(news, simulator_restarted=news.time if has_restarted else before.simulator_restarted)
    gap = news.time - before.time if before.time and news.time else 0.0
    # The longest of the latest intervals: a pause counts for some records, and is then forgotten.
    interval = max(gap, _FADING * before.interval_seconds)
    if before.rank is None or news.rank is None or before.world_size != news.world_size:
        # The world size changes between rounds; then ranks of the old one no longer count.
        return replace(news, interval_seconds=interval)
    return replace(news, rank=min(before.rank, news.rank), interval_seconds=interval)


def _activity(record: Mapping[str, Any]) -> str:
    """Return the activity of a process in a few words, by the kind of its record (``runtime.base.contract``)."""
    state = _text(record.get("state"))
    match record["l2r"]:
        case "step":
            return " ".join(filter(None, (_text(record.get("name")), state)))
        case "elastic" if not state:
            return _counted("epoch", record.get("epoch")) or _counted("step", record.get("step"))
        case "ps":
            return _counted("step", record.get("global_step"))
        case "fetch":
            done, total = _number(record.get("bytes")), _number(record.get("total_bytes"))
            share = f" {100 * done / total:.0f}%" if done is not None and total and state == "running" else ""
            return f"fetch {state}{share}".rstrip()
        case _:
            return state


def _counted(word: str, value: Any) -> str:
    count = _number(value)
    return "" if count is None else f"{word} {count:,.0f}"


class LogPosition(Enum):
    """Position in a log that ``follow`` reports between the records."""

    READ = "read"
    """The lines so far were read, and contain no record."""
    ENDED = "ended"
    """The log has ended: its pod was deleted, or the connection was lost."""


async def follow(
    backend: Backend, pod: PodView, turns: ReadingTurns, *, is_watched: bool = False
) -> AsyncGenerator[PodMetrics | LogPosition, None]:
    """Yield the newest record of a pod, then each new one, until the pod is deleted or is known to write none.

    Args:
        turns: Shared with the other streams of the program.
        is_watched: Continue even if screens display none of its values, since its silence must be noticed.
    """
    silent = 0
    query = LogQuery(follow=True, tail=BACKLOG_LINES, seam=True)
    newest: PodMetrics | None = None
    is_live = False
    async with aclosing(turns.paced(backend.logs(pod, query))) as lines:
        async for line in lines:
            if line.is_seam:
                is_live = True
                yield LogPosition.READ if newest is None else newest
            elif (news := read(line.text)) is not None:
                newest, silent = after(newest, news), 0
                if is_live:
                    yield newest
                # A log stream is a connection: pods without live values are read once and closed.
                if not (is_watched or news.is_worth_following):
                    return
            else:
                silent += 1
                if silent > SILENT_LINES:
                    return
    if newest is not None and not is_live:  # the log ended before it could be followed
        yield newest
    yield LogPosition.ENDED


def _number(value: Any) -> float | None:
    """Return a number that is short enough for a column."""
    return number(value, MAX_COUNT)


def _text(value: Any) -> str:
    return text(value, _MAX_TEXT)
