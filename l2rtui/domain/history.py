"""History of runs, which outlives them: records, their differences, and events while the user was absent. Pure.

Runs that differ in name, spec (without name and seed) or place are not averaged: a mean over two specs or two
clusters is meaningless.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

from l2rtui.domain.quantity import age
from l2rtui.domain.snapshot import PodView
from l2rtui.domain.status import EVICTIONS, KubeEvent, Level

if TYPE_CHECKING:
    from l2rtui.domain.workload import RunSpec

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


class HistoryEntry(Struct, frozen=True):
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


class SourceState(Struct, frozen=True):
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


class LaunchFacts(Struct, frozen=True):
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


class Ending(Struct, frozen=True):
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


class HistoryRecord(Struct, frozen=True):
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
        name: getattr(other, name) for name in Ending.__struct_fields__ if getattr(first, name) in (None, "", ())
    }
    # The destroy, which is reported later, may have moved them.
    return replace(first, **empty | {"checkpoints": later.checkpoints or earlier.checkpoints})


Key = tuple[str, str, str]
"""Name, place and id of the spec of an experiment."""
T = TypeVar("T")
_NOT_OF_SPEC: Final = frozenset(("name", "experiment", "seed", "trial"))
_NOT_OF_SET: Final = frozenset(("binding", "may_use_cpu"))
"""How a replica gets its device. It may differ between seeds of one launch, depending on which slots are free."""


@lru_cache(maxsize=4096)
def spec_id(spec: RunSpec | str) -> str:
    """Return an id of a spec without its name and seed: runs with the same id are seeds of one experiment.

    Args:
        spec: The spec, or its stored JSON. Empty and absent fields are equal, as later versions add fields.

    Returns:
        8 hexadecimal digits; empty for invalid JSON.
    """
    try:
        document = json.loads(spec) if isinstance(spec, str) else to_builtins(spec)
        fields_of = {name: value for name, value in document.items() if name not in _NOT_OF_SPEC}
        text = json.dumps(_filled(fields_of), sort_keys=True)
    except (ValueError, TypeError, AttributeError):
        return ""
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest() if fields_of else ""


def _filled(value: object) -> object:
    if isinstance(value, dict):
        items = ((name, _filled(item)) for name, item in value.items() if name not in _NOT_OF_SET)
        return {name: item for name, item in items if item not in (None, "", [], {}, 0)}
    return [_filled(item) for item in value] if isinstance(value, list | tuple) else value


def variants_of(keys: Iterable[Key]) -> dict[Key, str]:
    """Return what distinguishes each experiment from others of its name: ``spec 3f2a91c0, on lab``; empty if
    unique.
    """
    every = list(keys)
    variants: dict[Key, str] = {}
    for key in every:
        name, place, spec = key
        others = [other for other in every if other[0] == name]
        differing = (
            f"spec {spec or 'unknown'}" if len({other[2] for other in others}) > 1 else "",
            f"on {place or 'this machine'}" if len({other[1] for other in others}) > 1 else "",
        )
        variants[key] = ", ".join(filter(None, differing))
    return variants


def newest_by_seed(
    runs: Iterable[T], seed_of: Callable[[T], int], age_of: Callable[[T], Any]
) -> tuple[list[T], tuple[int, ...]]:
    """Return the newest run of each seed, and the seeds that several runs have."""
    newest: dict[int, T] = {}
    repeated: set[int] = set()
    for run in runs:
        seed = seed_of(run)
        if seed in newest:
            repeated.add(seed)
        if seed not in newest or age_of(run) > age_of(newest[seed]):
            newest[seed] = run
    return [newest[seed] for seed in sorted(newest)], tuple(sorted(repeated))


MAX_COMPARED_LINES: Final = 4_000
"""Lines of a patch that are compared one by one. For longer patches difflib would take seconds."""
_OUTCOME: Final = ("state", "env_steps", "best_return", "final_return")


class Difference(Struct, frozen=True):
    """One field that differs.

    Attributes:
        part: ``spec``, ``code``, ``versions`` or ``outcome``.
        field: Path of the field, such as ``train.gamma``.
        first, second: JSON values; None if a record lacks the field.
    """

    part: str
    field: str
    first: Any
    second: Any


def differences(
    first: HistoryRecord, second: HistoryRecord, first_spec: Mapping[str, Any], second_spec: Mapping[str, Any]
) -> tuple[Difference, ...]:
    """Return the fields in which two records differ, part by part; ids, times and places are ignored.

    Args:
        first_spec, second_spec: Their specs as documents.
    """
    return tuple(
        Difference(part, field, before.get(field), after.get(field))
        for part, before, after in (
            ("spec", dict(flat_fields(first_spec)), dict(flat_fields(second_spec))),
            ("code", _code(first), _code(second)),
            ("versions", dict(first.launch.versions), dict(second.launch.versions)),
            ("outcome", _outcome(first), _outcome(second)),
        )
        for field in dict.fromkeys((*before, *after))
        if before.get(field) != after.get(field)
    )


def _code(record: HistoryRecord) -> dict[str, Any]:
    tree = record.launch.source
    changes = f"{tree.diff.count(chr(10))} changed lines" if tree.diff else "none"
    fields = {"revision": tree.revision or None, "branch": tree.branch or None, "changes": changes}
    return {"image": record.entry.image or None, **fields, "untracked": ", ".join(tree.untracked) or None}


def _outcome(record: HistoryRecord) -> dict[str, Any]:
    entry = record.entry
    seconds = None if entry.ended is None else round(entry.ended - entry.started)
    return {**{name: getattr(entry, name) for name in _OUTCOME}, "seconds": seconds}


def flat_fields(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a document with their paths; list items are addressed by name if they have one."""
    if isinstance(value, Mapping):
        items: Iterable[tuple[str, Any]] = ((str(key), item) for key, item in value.items())
    elif isinstance(value, list) and value and all(isinstance(item, Mapping) and "name" in item for item in value):
        items = ((str(item["name"]), item) for item in value)
    else:
        yield path, value
        return
    for name, item in items:
        yield from flat_fields(item, f"{path}.{name}" if path else name)


def patch_difference(first: HistoryRecord, second: HistoryRecord) -> tuple[str, ...]:
    """Return a unified diff of the uncommitted changes of both source trees; empty if they are equal."""
    before, after = first.launch.source.diff.splitlines(), second.launch.source.diff.splitlines()
    if before == after:
        return ()
    if max(len(before), len(after)) > MAX_COMPARED_LINES:
        return (f"The changes are too long to compare here: {len(before):,} and {len(after):,} lines.",)
    return tuple(difflib.unified_diff(before, after, first.entry.run, second.entry.run, lineterm=""))


def _number(value: object) -> object:
    """Write a number with thousands separators and at most six significant digits; other values stay."""
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() and abs(value) >= 1000 else f"{value:,.6g}"
    return f"{value:,}" if isinstance(value, int) else value


def unified(rows: Iterable[Difference], patch: Iterable[str], first: str, second: str) -> Iterator[str]:
    """Yield differences as a unified diff for display: each part under its name, ``-`` the first, ``+`` the second.

    Args:
        first, second: Titles of the records.
    """
    yield f"--- {first}"
    yield f"+++ {second}"
    part = ""
    for difference in rows:
        if difference.part != part:
            part = difference.part
            yield f"@@ {part} @@"
        # A field of a spec keeps its name, so that it can be found in the file; an outcome is for people.
        name = difference.field.replace("_", " ") if part == "outcome" else difference.field
        for sign, value in (("-", difference.first), ("+", difference.second)):
            if value is not None:
                yield f"{sign}{name}: {_number(value) if part == 'outcome' else value}"
    lines = list(patch)
    if lines:
        yield "@@ changes of the source tree @@"
        yield from lines


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


class Departure(Struct, frozen=True):
    """Last time at which the app was open in a context.

    Attributes:
        left: Seconds since the epoch.
        evicted: Uids of pods that had been evicted by then: evicted pods stay in the cluster for days.
    """

    left: float
    evicted: frozenset[str] = frozenset()


class Happening(Struct, frozen=True):
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
