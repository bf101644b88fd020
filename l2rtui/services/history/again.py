"""Exact relaunch of a recorded run: its spec, and findings about inputs that are no longer available."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from l2rtui.backends.base import Backend
from l2rtui.backends.common import workdirs
from l2rtui.domain.history import ID_CHARS, HistoryRecord, SourceState
from l2rtui.domain.preflight import Finding, Severity
from l2rtui.domain.quantity import counted
from l2rtui.domain.workload import RunSpec, name_problem
from l2rtui.errors import RefusedError, UsageError
from l2rtui.services.history.launch_facts import hidden_fields, spec_of, versions_of
from l2rtui.services.history.source_state import source_state
from l2rtui.services.spec import spec_file

_WITH_IMAGES = ("kubernetes", "docker")


class ExactLaunch(Struct, frozen=True):
    """Spec of a recorded run, and the differences that a launch of it would have."""

    spec: RunSpec
    notes: tuple[Finding, ...]


def exact_launch(
    backend: Backend,
    record: HistoryRecord,
    *,
    is_inexact: bool = False,
    name: str = "",
    changes: Sequence[str] = (),
) -> ExactLaunch:
    """Return a launch with the spec, seed and settings of a record; call it in a thread, since it runs git.

    Args:
        is_inexact: Inputs that are no longer available are warnings, not refusals.
        name: Name of the new run; empty for the record's.
        changes: Settings that replace the record's, as ``gamma=0.9``.

    Raises:
        RefusedError: the record has no spec that this version can launch. UsageError: the name is not valid.
    """
    spec = spec_of(record.launch.spec) if record.launch.spec != "{}" else None
    run = record.entry.run
    if spec is None:
        sentence = f"The record of {run} holds no spec that this version reads."
        raise RefusedError(sentence, f"See `l2rtui history show {record.entry.run_id[:ID_CHARS]}`.")
    fields = ", ".join(hidden_fields(record.launch.spec))
    if fields:
        sentence = f"The record of {run} does not hold {fields}, which looked like a secret."
        raise RefusedError(sentence, "Put it into a secret, and launch from the spec file.")
    if name and (problem := name_problem(name)):
        raise UsageError(f"--name: {problem}.")
    severity = Severity.WARNING if is_inexact else Severity.REFUSAL
    notes = tuple(_notes(backend, record, severity))
    if changes:
        spec = spec_file.with_changes(spec, changes)
    return ExactLaunch(replace(spec, name=name or spec.name), notes)


def _notes(backend: Backend, record: HistoryRecord, severity: Severity) -> Iterator[Finding]:
    entry = record.entry
    hint = f"`l2rtui launch --like {entry.run_id[:ID_CHARS]} --inexact` launches it all the same."
    if backend.name != entry.backend:
        yield Finding(Severity.WARNING, entry.run, f"it ran on {entry.backend}, and this is {backend.name}")
    spec = spec_of(record.launch.spec)
    workdir = spec.workdir if spec is not None else None
    if workdir is not None:
        # The archived code is launched; preflight refuses if the archive was removed.
        yield Finding(Severity.OK, workdirs.SUBJECT, f"its own code is that of then: {workdir.size}")
    if backend.name in _WITH_IMAGES:
        # The code is in the image: the current source tree has no effect there.
        yield _image_note(entry.image, severity, hint)
        return
    root = Path(record.launch.source.root or "/nowhere")
    now = source_state(root) if root.is_dir() else SourceState()
    differences = list(_tree_differences(record.launch.source, now)) if workdir is None else []
    for is_grave, sentence in differences:
        yield Finding(severity if is_grave else Severity.WARNING, entry.run, sentence, hint if is_grave else "")
    versions = dict(versions_of(backend))
    for package, version in record.launch.versions:
        if version != versions.get(package):
            sentence = f"it ran with {package} {version}, here is {versions.get(package, 'none')}"
            yield Finding(Severity.WARNING, entry.run, sentence)
    if workdir is None and not differences:
        yield Finding(Severity.OK, entry.run, f"the source tree is that of then, {entry.revision[:12]}")


def _image_note(image: str, severity: Severity, hint: str) -> Finding:
    if "@sha256:" in image:
        return Finding(Severity.OK, "image", f"it is {image}, by its digest")
    name = f"{image} was named by a tag" if image else "none is named"
    sentence = f"the digest of its image is not recorded: {name}, which may now mean another image"
    return Finding(severity, "image", sentence, hint)


def _tree_differences(then: SourceState, now: SourceState) -> Iterator[tuple[bool, str]]:
    """Yield pairs: True if the code certainly differs, and a sentence."""
    if not then.revision:
        # Our own programs need no source tree: the versions include theirs.
        yield False, "no source tree is recorded: it was launched outside of a git repository"
    elif not now.revision:
        yield True, f"its source tree {then.root} no longer exists"
    elif now.revision != then.revision:
        there = f"is at {now.revision[:12]}: `git checkout {then.revision[:12]}`"
        yield True, f"its source tree was at {then.revision[:12]} and {there}"
    elif now.diff != then.diff:
        yield True, "its source tree had other changes than now: `l2rtui history show` prints them"
    elif then.problem:
        yield False, f"its source tree is not recorded completely: {then.problem}"
    elif then.untracked:
        yield False, f"{counted(len(then.untracked), 'file')} of its source tree were in no commit, and are unknown"
