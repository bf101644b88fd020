"""Limits of a run: its duration, idleness, lack of progress and GPU-hours; and their current usage.

A launcher provides them in ``contract.ENV_LIMITS``; the learner enforces them on itself, and its supervisor has the
deadline that follows from them. Pure: no clock, no I/O.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, Final, Self

from msgspec import Struct, structs

from runtime.base import bounded_json
from runtime.base.durations import MAX_SECONDS, duration_text, parse_duration

NEAR_SHARE: Final = 0.9
"""Share of a limit from which it is near."""


class Limits(Struct, frozen=True):
    """Limits of a run; None means no limit.

    Attributes:
        wall: Seconds from the start of its learner, across restarts; without a learner, of its first process.
        idle: Seconds without data from its workers.
        no_progress: Seconds without a new best return.
        gpu_hours: Hours times the number of GPUs that its processes were placed on.
    """

    wall: float | None = None
    idle: float | None = None
    no_progress: float | None = None
    gpu_hours: float | None = None

    @property
    def of_learner(self) -> tuple[str, ...]:
        """Names of the limits that only a learner can enforce."""
        return tuple(name for name in ("idle", "no_progress") if getattr(self, name) is not None)

    def over(self, defaults: Limits) -> Limits:
        """Return these limits, with missing ones taken from `defaults`."""
        names = self.__struct_fields__
        return Limits(**{name: _first(getattr(self, name), getattr(defaults, name)) for name in names})

    def deadline_seconds(self, gpus: int) -> float | None:
        """Return the seconds after which a run must end; None for a run without such a limit."""
        bounds = [] if self.wall is None else [self.wall]
        if self.gpu_hours is not None and gpus:
            bounds.append(self.gpu_hours * 3600 / gpus)
        return min(bounds, default=None)

    def text(self, gpus: int) -> str:
        """Return the value of the variable; empty without a limit."""
        present = {name: value for name, value in structs.asdict(self).items() if value is not None}
        return json.dumps({**present, "gpus": gpus}, separators=(",", ":")) if present else ""

    @classmethod
    def parse(cls, text: str) -> tuple[Self, int]:
        """Parse the variable into the limits and the number of GPUs. Raises ValueError."""
        try:
            values: dict[str, Any] = bounded_json.loads(text or "{}")
            gpus = int(values.pop("gpus", 0))
            limits = cls(**{name: float(value) for name, value in values.items()})
        except (TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{text[:100]!r} are no limits") from error
        return limits, gpus


def _first(value: float | None, default: float | None) -> float | None:
    return default if value is None else value


def limits_of(texts: dict[str, str | float]) -> Limits:
    """Parse limits from user input, by name. Raises ValueError, which names the invalid one."""
    values: dict[str, float] = {}
    names = Limits.__struct_fields__
    for name, value in texts.items():
        if name not in names:
            raise ValueError(f"unknown limit {name}; the limits are {', '.join(names)}")
        try:
            values[name] = _hours(value) if name == "gpu_hours" else parse_duration(value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return Limits(**values)


def _hours(value: str | float) -> float:
    try:
        hours = math.nan if isinstance(value, bool) else float(value)
    except ValueError:
        hours = math.nan
    if not 0 < hours <= MAX_SECONDS / 3600 * 10_000:
        raise ValueError(f"{value!r} is not a number of hours: write one above 0, such as 50")
    return hours


class Usage(Struct, frozen=True):
    """Use of each limit, in its unit."""

    wall: float = 0.0
    idle: float = 0.0
    no_progress: float = 0.0
    gpu_hours: float = 0.0

    def after(self, seconds: float, gpus: int) -> Usage:
        """Return the usage after further seconds without data and without a better return."""
        return Usage(
            self.wall + seconds,
            self.idle + seconds,
            self.no_progress + seconds,
            self.gpu_hours + seconds * gpus / 3600,
        )


class LimitNotice(Struct, frozen=True):
    """A limit that is near or reached.

    Attributes:
        name: Name of the limit. value: The limit. share: Used part of it; 1 or more when it is reached.
    """

    name: str
    value: float
    share: float

    @property
    def is_reached(self) -> bool:
        """True if the limit is reached."""
        return self.share >= 1

    @property
    def label(self) -> str:
        """Name and value: ``limit wall 12 h``."""
        return limit_label(self.name, self.value)

    @property
    def sentence(self) -> str:
        """Sentence for display: ``ended by limit wall 12 h``, ``limit near: 93 % of limit wall 12 h``."""
        if self.is_reached:
            return f"{ENDED_BY} {self.label}"
        return f"limit near: {int(100 * self.share)} % of {self.label}"


ENDED_BY: Final = "ended by"
"""Beginning of the reason of a run that a limit has ended."""


def limit_label(name: str, value: float) -> str:
    """Return the name and the value of a limit."""
    amount = f"{value:g} GPU-hours" if name == "gpu_hours" else f"{name} {duration_text(value)}"
    return f"limit {amount}"


def notices(limits: Limits, usage: Usage) -> Iterator[LimitNotice]:
    """Yield the limits that are near or reached."""
    for name, value in structs.asdict(limits).items():
        if value is not None and (share := getattr(usage, name) / value) >= NEAR_SHARE:
            yield LimitNotice(name, value, share)


def worst_notice(limits: Limits, usage: Usage) -> LimitNotice | None:
    """Return the limit with the largest used share, if it is near or reached."""
    return max(notices(limits, usage), key=lambda notice: notice.share, default=None)


def deadline_label(limits: Limits, gpus: int) -> str:
    """Return the label of the limit that determines ``deadline_seconds``; empty without one."""
    deadline = limits.deadline_seconds(gpus)
    if deadline is None:
        return ""
    if deadline == limits.wall:
        return limit_label("wall", deadline)
    return limit_label("gpu_hours", limits.gpu_hours or 0.0)
