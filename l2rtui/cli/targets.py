"""Resolution of target names to runs and pods; a name that matches nothing is an error."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from l2rtui.domain.quantity import counted
from l2rtui.domain.selection.filter_language import EXPERIMENT_WORDS, is_pattern
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView
from l2rtui.domain.status import QUEUED
from l2rtui.errors import L2RError, NotFoundError, RefusedError, UsageError, nearest

if TYPE_CHECKING:
    from l2rtui.cli.session import Session

_MOST_NAMES = 12


def pods_named(snapshot: ClusterSnapshot, targets: Sequence[str]) -> tuple[PodView, ...]:
    """Return the pods of all targets, each once, in the order of the targets.

    Raises:
        NotFoundError: a target matches nothing.
    """
    matches: dict[str, PodView] = {}
    for target in targets:
        pods = snapshot.select(target)
        if not pods:
            raise _nothing(target, snapshot)
        matches.update((pod.uid, pod) for pod in pods)
    return tuple(matches.values())


def one_pod(snapshot: ClusterSnapshot, target: str) -> PodView:
    """Return the only pod of a target.

    Raises:
        NotFoundError: it matches nothing. UsageError: it matches several.
    """
    pods = pods_named(snapshot, [target])
    if len(pods) != 1:
        names = listed(pod.name for pod in pods)
        raise UsageError(f"{target} names {counted(len(pods), 'pod')}: {names}.", "Name one of them.")
    return pods[0]


def runs_named(snapshot: ClusterSnapshot, targets: Sequence[str]) -> tuple[RunView, ...]:
    """Return the runs of all targets, each once.

    Raises:
        NotFoundError: a target matches nothing.
    """
    matches: dict[str, RunView] = {}
    for target in targets:
        runs = snapshot.runs_matching(target)
        if not runs:
            raise _no_run(target, snapshot)
        matches.update((run.uid, run) for run in runs)
    return tuple(matches.values())


def queued_targets(snapshot: ClusterSnapshot, targets: Sequence[str]) -> list[str]:
    """Return the targets of which all runs wait in a queue."""
    runs = {target: snapshot.runs_matching(target) for target in targets}
    return [target for target in targets if runs[target] and all(run.reason == QUEUED for run in runs[target])]


def require_only_named(session: Session, verb: str, named: Mapping[str, Collection[str]]) -> None:
    """Refuse to change more runs than were named if ``--yes`` prevents a look at the list.

    Args:
        named: Names of the runs that each target selects.

    Raises:
        RefusedError: ``--yes`` was given without ``--all-matching``.
    """
    for target, runs in named.items():
        if len(runs) > 1 and session.args.yes and not session.args.all_matching:
            raise RefusedError(
                f"{target} names {counted(len(runs), 'run')}: {listed(runs)}.",
                f"Add --all-matching to {verb} all of them, or name one.",
            )


def runs_meant(snapshot: ClusterSnapshot, targets: Iterable[str]) -> dict[str, list[str]]:
    """Return the names of the runs that each target selects; empty for the name of a pod."""
    return {target: [run.name for run in snapshot.runs_in(target)[0]] for target in targets}


def _nothing(target: str, snapshot: ClusterSnapshot) -> NotFoundError:
    runs, parts = snapshot.runs_in(target)
    if not runs:
        return _no_run(target, snapshot)
    if not parts:
        return NotFoundError(f"{target} has no pods.", "See `l2rtui runs`.")
    head, rest = target.removesuffix(f"/{'/'.join(parts)}"), "/".join(parts)
    sets = dict.fromkeys(set_view.name for run in runs for set_view in run.sets)
    return NotFoundError(f"{head} has no pod {rest}: its sets are {listed(sets)}.", "See `l2rtui pods`.")


def _no_run(target: str, snapshot: ClusterSnapshot) -> NotFoundError:
    orphans = [pod for pod in snapshot.pods.values() if pod.run == target.partition("/")[0]]
    if orphans:
        left = f"{counted(len(orphans), 'pod')} of it {'is' if len(orphans) == 1 else 'are'} left"
        return NotFoundError(
            f"The run {orphans[0].run} is gone, and {left}.", "Remove what is left: `l2rtui leaks --clean`."
        )
    runs = sorted(run.name for run in snapshot.runs.values())
    pods = [pod.name for pod in snapshot.pods.values()]
    there = f"the runs are {listed(runs)}" if runs else "there are no runs"
    hint = past_run(target) or nearest(target, [*runs, *pods], most=2)
    if is_pattern(target):
        # Verbs that change something take full names: the matches of a pattern must be checked before they are
        # destroyed.
        hint = f"Patterns are for lists: `l2rtui runs '{target}' -o name` prints the names."
    return NotFoundError(f"Nothing is named {target!r}: {there}.", hint)


def past_run(target: str) -> str:
    """Return where to read about a target that names a run of the history; empty if it names none."""
    from l2rtui.services.history.store import HistoryFilter, HistoryStore  # 10 ms, needed only for errors

    head, _, rest = target.partition("/")
    name = rest if head in EXPERIMENT_WORDS else head
    with contextlib.suppress(L2RError), HistoryStore() as store:
        runs = list(dict.fromkeys(entry.run for entry in store.entries(HistoryFilter(names=(name,)))))
        if name in runs or len(runs) == 1:
            run = name if name in runs else runs[0]
            return f"{run} is in the history, with its last log lines: `l2rtui history show {run}`."
        if runs:
            return f"{counted(len(runs), 'run')} of {name} are in the history: `l2rtui history {name}`."
    return ""


def listed(names: Iterable[str]) -> str:
    """Join names with commas; a long list ends with the number of the others."""
    every = list(names)
    more = len(every) - _MOST_NAMES
    return ", ".join(every[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
