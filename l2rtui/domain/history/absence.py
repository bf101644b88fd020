"""Absence of the user: outcomes of runs and evictions of pods since the app was last open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from l2rtui.domain.event import KubeEvent
from l2rtui.domain.history.record import HistoryEntry, RunOutcome
from l2rtui.domain.quantity import age
from l2rtui.domain.snapshot import PodView
from l2rtui.domain.status import EVICTIONS, Level

_EVICTED: Final = "evicted"
_STARTED: Final = "started"
_LEVELS: Final[Mapping[str, Level]] = MappingProxyType({
    RunOutcome.FAILED: Level.BAD,
    _EVICTED: Level.BAD,
    RunOutcome.LOST: Level.WARN,
    RunOutcome.TAKEN_BACK: Level.WARN,
    RunOutcome.DONE: Level.DONE,
    RunOutcome.DESTROYED: Level.OK,
    _STARTED: Level.OK,
})  # fmt: skip
"""Names of the possible happenings with their levels, the most urgent first."""
_ORDER: Final = {word: number for number, word in enumerate(_LEVELS)}


@dataclass(frozen=True, slots=True)
class Departure:
    """Last time at which the app was open in a context.

    Attributes:
        left: Seconds since the epoch.
        evicted: Uids of pods that had been evicted by then: evicted pods stay in the cluster for days.
    """

    left: float
    evicted: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Happening:
    """One event during the absence.

    Attributes:
        word: ``failed``, ``evicted``, ``lost``, ``taken-back``, ``done``, ``destroyed`` or ``started``.
        name: Name of the run or pod. time: Seconds since the epoch; None if unknown.
    """

    word: str
    name: str
    time: float | None
    sentence: str = ""

    @property
    def level(self) -> Level:
        """Severity of the event."""
        return _LEVELS[self.word]


def happenings(
    departure: Departure,
    entries: Iterable[HistoryEntry],
    pods: Iterable[PodView] = (),
    events: Iterable[KubeEvent] = (),
) -> tuple[Happening, ...]:
    """Return the events since a departure: the most urgent first, and the newest of each kind first.

    Args:
        entries: The user's runs in the history. pods: The user's pods in their current state.
        events: Events of the cluster, which keeps them for about an hour; events of other users' pods are skipped.
    """
    runs = list(entries)
    result = [item for entry in runs if (item := _of_entry(departure, entry)) is not None]
    out = [pod for pod in pods if is_evicted(pod)]
    result += [Happening(_EVICTED, pod.name, None, pod.message) for pod in out if pod.uid not in departure.evicted]
    result += _of_events(departure, events, {entry.run for entry in runs}, {pod.name for pod in out})
    return tuple(sorted(result, key=lambda item: (_ORDER[item.word], -(item.time or 0.0), item.name)))


def is_evicted(pod: PodView) -> bool:
    """Return True for a pod that was evicted or preempted."""
    return pod.reason in EVICTIONS


def _of_entry(departure: Departure, entry: HistoryEntry) -> Happening | None:
    if entry.ended is not None and entry.ended > departure.left and entry.state is not RunOutcome.RUNNING:
        return Happening(entry.state, entry.run, entry.ended, _figures(entry, entry.ended))
    if entry.ended is None and entry.started > departure.left:
        return Happening(_STARTED, entry.run, entry.started)
    return None


def _figures(entry: HistoryEntry, ended: float) -> str:
    final = "" if entry.final_return is None else f"return {entry.final_return:.4g}"
    steps = "" if entry.env_steps is None else f"{entry.env_steps:,.0f} env steps"
    return ", ".join(filter(None, (final, steps, f"after {age(ended - entry.started)}")))


def _of_events(
    departure: Departure, events: Iterable[KubeEvent], runs: Collection[str], listed: Collection[str]
) -> Sequence[Happening]:
    newest: dict[str, KubeEvent] = {}
    for event in sorted(events, key=lambda event: event.time):
        kind, _, name = event.object.partition(" ")
        is_ours = kind == "Pod" and name not in listed and any(name.startswith(f"{run}-") for run in runs)
        if is_ours and event.reason in EVICTIONS and event.time > departure.left:
            newest[name] = event
    return [Happening(_EVICTED, name, event.time, event.message) for name, event in newest.items()]


def summary(items: Iterable[Happening]) -> str:
    """Return the number of events of each kind, the most urgent first: ``2 failed, 3 done``; empty without any."""
    numbers = Counter(item.word for item in items)
    return ", ".join(f"{numbers[word]} {word}" for word in _LEVELS if numbers[word])
