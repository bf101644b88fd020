"""What single pods say of themselves in metric records: simulators, rates, ranks, steps.

Records come from inside the run and are not trusted.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final

from l2rtui.backends.base import Backend, LogQuery
from l2rtui.domain.snapshot import PodView
from l2rtui.services.metrics import parse_record

BACKLOG_LINES: Final = 60
"""Of these, the newest record tells how a pod stands when one first looks."""
SILENT_LINES: Final = 2_000
"""A pod that writes so much without a record has none to write."""
_MOST_TEXT: Final = 400


@dataclass(frozen=True, slots=True)
class PodNews:
    """The newest record of one pod.

    Attributes:
        kind: Of the record: ``worker``, ``evaluator``, ``elastic``, ``ps``, ``step``, ``fetch``, or another.
        rate: Environment steps a second; None where it says nothing of that.
        simulator: State of its worst simulator; empty where it drives none.
        simulator_restarts, simulator_fps, simulator_error: Of all its simulators.
        rank, world_size: Place among the processes that work together now; None where that means nothing.
        gpu_percent: How busy its GPU is; None where it does not say. gpu_memory_bytes: in use of that GPU.
        step: What it is at: the state of a job's step, or what an elastic process does; empty when it says nothing.
        round: How often the processes of an elastic job have met anew; None where that means nothing.
    """

    kind: str
    time: float = 0.0
    rate: float | None = None
    simulator: str = ""
    simulator_restarts: int = 0
    simulator_fps: float = 0.0
    simulator_error: str = ""
    rank: int | None = None
    world_size: int | None = None
    step: str = ""
    gpu_percent: float | None = None
    gpu_memory_bytes: float | None = None
    round: int | None = None

    @property
    def is_telling(self) -> bool:
        """Whether more of it is worth a stream."""
        return bool(self.simulator or self.step) or self.rank is not None or self.gpu_percent is not None


def read(line: str) -> PodNews | None:
    """Read one line of a log; None when it is no record, or a learner's."""
    record = parse_record(line)
    if record is None or record["l2r"] == "learner":
        return None
    rank, world_size, turn = (_number(record.get(key)) for key in ("rank", "world_size", "round"))
    return PodNews(
        record["l2r"],
        _number(record.get("time")) or 0.0,
        _number(record.get("env_steps_per_second")),
        _text(record.get("simulator_state")),
        int(_number(record.get("simulator_restarts")) or 0),
        _number(record.get("simulator_fps")) or 0.0,
        _text(record.get("simulator_error")),
        None if rank is None else int(rank),
        None if world_size is None else int(world_size),
        _at(record),
        _number(record.get("gpu_percent")),
        _number(record.get("gpu_memory_bytes")),
        round=None if turn is None else int(turn),
    )


def after(before: PodNews | None, news: PodNews) -> PodNews:
    """The news beside what was known: of several processes in a pod, its first rank stands for all of them."""
    if before is None or before.kind != news.kind or before.rank is None or news.rank is None:
        return news
    return replace(news, rank=min(before.rank, news.rank) if before.world_size == news.world_size else news.rank)


def _at(record: Mapping[str, Any]) -> str:
    """What a process is at, in a few words: by the kind of its record, as ``runtime.contract`` has them."""
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
    number = _number(value)
    return "" if number is None else f"{word} {number:,.0f}"


async def follow(backend: Backend, pod: PodView) -> AsyncGenerator[PodNews, None]:
    """Give the news of a pod, the newest first, until it is gone or turns out to have none."""
    silent = 0
    query = LogQuery(follow=True, tail=BACKLOG_LINES, seam=True)
    newest: PodNews | None = None
    is_live = False
    async with aclosing(backend.logs(pod, query)) as lines:
        async for line in lines:
            if line.is_seam:
                is_live = True
                if newest is not None:
                    yield newest
            elif (news := read(line.text)) is not None:
                newest, silent = after(newest, news), 0
                if is_live:
                    yield newest
                if not news.is_telling:
                    return
            else:
                silent += 1
                if silent > SILENT_LINES:
                    return
    if newest is not None and not is_live:  # it was over before we looked
        yield newest


def _text(value: Any) -> str:
    return value[:_MOST_TEXT] if isinstance(value, str) else ""


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 1e15 else None
