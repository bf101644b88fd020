"""Record of one run: what was launched, from which source and by whom, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Final

from l2rtui.domain.rows import row

ID_CHARS: Final = 8
"""Characters of an id in commands: enough to mean one run."""


class RunOutcome(StrEnum):
    """State of a run in the history."""

    RUNNING = "running"
    """It was launched, and nobody has seen its end yet."""
    DONE = "done"
    FAILED = "failed"
    DESTROYED = "destroyed"
    """It was removed while it ran."""
    TAKEN_BACK = "taken-back"
    """Its launch was not completed, and was rolled back."""
    LOST = "lost"
    """It is gone, and nobody saw how it ended."""


@row(frozen=True, slots=True)
class HistoryEntry:
    """One run as a row of a list.

    Attributes:
        run: Name. run_id: unique id of the launch, 32 hexadecimal digits.
        started, ended: Seconds since the epoch; ended is None until somebody has seen the end.
        env_steps, best_return, final_return: None where no record of the learner could be read.
        image: As in the spec; with its digest where that is known.
        revision: Commit of the source tree; empty outside of a git repository.
        is_dirty: The tree had changes beyond that commit; None where that is not known.
        backend, context, namespace: Place of the run, as far as the backend has such.
    """

    run: str
    run_id: str
    experiment: str = ""
    seed: int = 0
    state: RunOutcome = RunOutcome.RUNNING
    started: float = 0.0
    ended: float | None = None
    env_steps: float | None = None
    best_return: float | None = None
    final_return: float | None = None
    image: str = ""
    revision: str = ""
    is_dirty: bool | None = None
    owner: str = ""
    backend: str = ""
    context: str = ""
    namespace: str = ""

    @property
    def place(self) -> str:
        """Backend, context and namespace, as far as there are such."""
        return "/".join(filter(None, (self.backend, self.context, self.namespace)))


@dataclass(frozen=True, slots=True)
class SourceState:
    """Source tree from which a run was launched.

    Attributes:
        root: Folder of its git repository; empty outside of any.
        revision: Commit, 40 hexadecimal digits. branch: empty where the commit alone is checked out.
        diff: Changes beyond that commit as a unified diff, bounded and redacted.
        untracked: Files that git does not know; their contents are in no diff.
        problem: Sentence on what could not be read, or was cut off; empty for a complete record.
    """

    root: str = ""
    revision: str = ""
    branch: str = ""
    diff: str = ""
    untracked: tuple[str, ...] = ()
    problem: str = ""

    @property
    def is_dirty(self) -> bool | None:
        """True where the tree had changes beyond its commit; None where there is no commit to compare with."""
        return bool(self.diff or self.untracked) if self.revision else None


NO_SOURCE: Final = SourceState()


@dataclass(frozen=True, slots=True)
class LaunchFacts:
    """Facts of a launch.

    Attributes:
        spec: The RunSpec as JSON, complete and redacted.
        placement: Slots of each pod by its name.
        versions: Of l2rtui, Python, torch and the backend, as far as they are known.
        command: Command line, redacted; of the app the app's own.
    """

    spec: str = "{}"
    placement: tuple[tuple[str, tuple[str, ...]], ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    command: str = ""
    source: SourceState = NO_SOURCE


@dataclass(frozen=True, slots=True)
class Ending:
    """End of a run, or what was known when it was destroyed.

    Attributes:
        ended: Seconds since the epoch.
        curve: Columns of equal length by name (``env_steps``, ``time``, ``mean_return`` …), bounded.
        logs: Last lines of each pod by its name, bounded.
        checkpoints: Folder or bucket where checkpoints and metrics lie; empty where none is known.
        receipt: Sentence of the receipt of a destroy; empty without one.
        note: Sentence on what could not be read.
    """

    state: RunOutcome
    ended: float
    env_steps: float | None = None
    best_return: float | None = None
    final_return: float | None = None
    curve: tuple[tuple[str, tuple[float | None, ...]], ...] = ()
    logs: tuple[tuple[str, tuple[str, ...]], ...] = ()
    checkpoints: str = ""
    receipt: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class HistoryRecord:
    """Complete record of one run; the ending is None until somebody has seen it."""

    entry: HistoryEntry
    launch: LaunchFacts = field(default_factory=LaunchFacts)
    ending: Ending | None = None


def merged_ending(earlier: Ending | None, later: Ending) -> Ending:
    """Return the end of a run of which two were reported: the earlier outcome, and what only either knows."""
    if earlier is None:
        return later
    # That it was lost was a guess; whoever saw more is right.
    first = later if earlier.state is RunOutcome.LOST else earlier
    other = earlier if first is later else later
    empty = {
        item.name: getattr(other, item.name)
        for item in fields(Ending)
        if getattr(first, item.name) in (None, "", ())
    }
    # The destroy that is reported later may have moved them.
    return replace(first, **empty | {"checkpoints": later.checkpoints or earlier.checkpoints})
