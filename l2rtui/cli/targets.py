"""From the names that a person wrote to the objects that are meant; a name for nothing is an error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from l2rtui.cli.parser import nearest
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView
from l2rtui.errors import NotFoundError

_MOST_NAMES = 12


def pods_named(snapshot: ClusterSnapshot, targets: Sequence[str]) -> tuple[PodView, ...]:
    """Pods of all targets, each once, in the order of the targets.

    Raises:
        NotFoundError: a target names none.
    """
    found: dict[str, PodView] = {}
    for target in targets:
        pods = snapshot.select(target)
        if not pods:
            raise _nothing(target, snapshot)
        found.update((pod.uid, pod) for pod in pods)
    return tuple(found.values())


def runs_named(snapshot: ClusterSnapshot, targets: Sequence[str]) -> tuple[RunView, ...]:
    """Runs of all targets, each once.

    Raises:
        NotFoundError: a target names none.
    """
    found: dict[str, RunView] = {}
    for target in targets:
        runs = snapshot.runs_matching(target)
        if not runs:
            raise _no_run(target, snapshot)
        found.update((run.uid, run) for run in runs)
    return tuple(found.values())


def _nothing(target: str, snapshot: ClusterSnapshot) -> NotFoundError:
    head, _, rest = target.partition("/")
    if not snapshot.runs_matching(head):
        return _no_run(target, snapshot)
    if not rest:
        return NotFoundError(f"{target} has no pods.", "See `l2rtui runs`.")
    sets = dict.fromkeys(one.name for run in snapshot.runs_matching(head) for one in run.sets)
    return NotFoundError(f"{head} has no pod {rest}: its sets are {listed(sets)}.", "See `l2rtui pods`.")


def _no_run(target: str, snapshot: ClusterSnapshot) -> NotFoundError:
    runs = sorted(run.name for run in snapshot.runs.values())
    pods = [pod.name for pod in snapshot.pods.values()]
    there = f"the runs are {listed(runs)}" if runs else "there are no runs"
    return NotFoundError(f"Nothing is named {target!r}: {there}.", nearest(target, [*runs, *pods]))


def counted(number: int, noun: str) -> str:
    """Write ``1 pod`` and ``2 pods``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def listed(names: Iterable[str]) -> str:
    """Names with commas, and how many more there are when they are many."""
    every = list(names)
    more = len(every) - _MOST_NAMES
    return ", ".join(every[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
