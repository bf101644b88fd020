"""Record of one run: its spec, its source, who launched it, and its outcome."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Final

from l2rtui.domain.rows import row

ID_CHARS: Final = 8
"""Characters of an id in commands: enough to identify one run."""


class RunOutcome(StrEnum):
    """State of a run in the history."""

    RUNNING = "running"
    """The run was launched, and its end has not been observed."""
    DONE = "done"
    FAILED = "failed"
    DESTROYED = "destroyed"
    """The run was removed before it ended."""
    TAKEN_BACK = "taken-back"
    """The launch failed and was rolled back."""
    LOST = "lost"
    """The run no longer exists, and its end was not observed."""


@row(frozen=True, slots=True)
class HistoryEntry:
    """One run as a row of a list.

    Attributes:
        run: Name. run_id: Unique id of the launch, 32 hexadecimal digits.
        started, ended: Seconds since the epoch; ended is None until the end was observed.
        env_steps, best_return, final_return: None if no record of the learner could be read.
        image: As in the spec, with its digest if that is known.
        revision: Commit of the source tree; empty outside of a git repository.
        is_dirty: The tree had uncommitted changes; None if that is unknown.
        backend, context, namespace: Place of the run; empty where the backend has no such thing.
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
        """Backend, context and namespace, as far as they are known."""
        return "/".join(filter(None, (self.backend, self.context, self.namespace)))


@dataclass(frozen=True, slots=True)
class SourceState:
    """Source tree from which a run was launched.

    Attributes:
        root: Folder of its git repository; empty outside of a repository.
        revision: Commit, 40 hexadecimal digits. branch: Empty for a detached HEAD.
        diff: Uncommitted changes as a unified diff, bounded and redacted.
        untracked: Untracked files; the diff does not contain them.
        problem: Sentence on the parts that could not be read or were truncated; empty for a complete record.
    """

    root: str = ""
    revision: str = ""
    branch: str = ""
    diff: str = ""
    untracked: tuple[str, ...] = ()
    problem: str = ""

    @property
    def is_dirty(self) -> bool | None:
        """True if the tree had uncommitted changes; None if there is no commit to compare with."""
        return bool(self.diff or self.untracked) if self.revision else None


NO_SOURCE: Final = SourceState()


@dataclass(frozen=True, slots=True)
class LaunchFacts:
    """Facts of a launch.

    Attributes:
        spec: The RunSpec as JSON, complete and redacted.
        placement: Slots of each pod, by pod name.
        versions: Versions of l2rtui, Python, torch and the backend, as far as they are known.
        command: Command line, redacted; for a launch from the app, the command line of the app.
    """

    spec: str = "{}"
    placement: tuple[tuple[str, tuple[str, ...]], ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    command: str = ""
    source: SourceState = NO_SOURCE


@dataclass(frozen=True, slots=True)
class Ending:
    """End of a run, or its state when it was destroyed.

    Attributes:
        ended: Seconds since the epoch.
        curve: Columns of equal length by name (``env_steps``, ``time``, ``mean_return`` …), bounded.
        logs: Last lines of each pod by pod name, bounded.
        checkpoints: Folder or bucket with checkpoints and metrics; empty if unknown.
        receipt: Sentence of the receipt of a destroy; empty without a destroy.
        note: Sentence on the parts that could not be read.
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
    """Complete record of one run; the ending is None until the end was observed."""

    entry: HistoryEntry
    launch: LaunchFacts = field(default_factory=LaunchFacts)
    ending: Ending | None = None


def merged_ending(earlier: Ending | None, later: Ending) -> Ending:
    """Merge two reports of the end of a run: the earlier outcome, and the facts that only one of them has."""
    if earlier is None:
        return later
    # LOST was a guess, so the other report is right.
    first = later if earlier.state is RunOutcome.LOST else earlier
    other = earlier if first is later else later
    empty = {
        item.name: getattr(other, item.name)
        for item in fields(Ending)
        if getattr(first, item.name) in (None, "", ())
    }
    # The destroy, which is reported later, may have moved them.
    return replace(first, **empty | {"checkpoints": later.checkpoints or earlier.checkpoints})
