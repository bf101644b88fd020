"""Facts of a launch: its spec, placement, versions, command line and source tree; secrets only by name."""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from l2rtui import __version__
from l2rtui.backends.common import run_specs
from l2rtui.domain.history import HistoryEntry, HistoryRecord, LaunchFacts, SourceState
from l2rtui.domain.secret import HIDDEN_TEXT, SECRET_FORMS, redact, redact_long
from l2rtui.domain.workload import RunSpec
from l2rtui.services.history.contexts import context_of
from l2rtui.services.history.source_state import source_state
from runtime.base import bounded_json

if TYPE_CHECKING:
    from l2rtui.backends.base import Backend
    from l2rtui.domain.plan import LaunchPlan, RunPlan
    from l2rtui.domain.snapshot import RunView

_PACKAGES: Final = ("torch", "numpy", "gymnasium")
"""Packages whose versions affect the results, if processes of this machine are launched."""


def launch_records(backend: Backend, plan: LaunchPlan, source: str) -> list[HistoryRecord]:
    """Return the records of all runs of a plan; call it in a thread, since it runs git.

    Args:
        source: Spec file, whose repository is described; empty for the repository of the current folder.
    """
    tree = tree_of(source)
    command, versions, context = redact(shlex.join(sys.argv)), versions_of(backend), context_of(backend)
    namespace = backend.contexts.namespace if backend.contexts is not None else ""
    return [
        HistoryRecord(
            HistoryEntry(
                run.spec.name,
                run.uid,
                run.spec.experiment,
                run.spec.seed,
                started=time.time(),
                image=run.spec.image,
                revision=tree.revision,
                is_dirty=tree.is_dirty,
                owner=run.owner,
                backend=backend.name,
                context=context,
                namespace=namespace,
            ),
            LaunchFacts(spec_text(run.spec), _placement(run), versions, command, tree),
        )
        for run in plan.runs
    ]


def entry_of(backend: Backend, run: RunView) -> HistoryEntry:
    """Return the row of a run whose launch was not recorded here: by another user, or by an older version."""
    return HistoryEntry(
        run.name,
        run.uid,
        run.experiment,
        run.seed,
        started=run.created,
        owner=run.owner,
        backend=backend.name,
        context=run.context or context_of(backend),
        namespace=run.namespace,
    )


def tree_of(source: str) -> SourceState:
    """Return the state of the repository around a spec file, otherwise of the one around the current folder."""
    folder = Path(source).expanduser().parent if source not in ("", "-") else Path.cwd()
    tree = source_state(folder) if folder.is_dir() else SourceState()
    # A spec shipped with the program is in no repository; the user's current folder may be in one.
    return tree if tree.revision or folder == Path.cwd() else source_state(Path.cwd())


def versions_of(backend: Backend) -> tuple[tuple[str, str], ...]:
    """Return the versions of l2rtui, Python and, for processes of this machine, of the packages they compute
    with.
    """
    import platform  # only for a launch

    versions = [("l2rtui", __version__), ("python", platform.python_version())]
    if backend.name == "local":  # elsewhere the image has its own versions, identified by its digest
        versions += ((name, version) for name in _PACKAGES if (version := _installed(name)))
    return tuple(versions)


def _installed(package: str) -> str:
    from importlib import metadata  # only for a launch

    # Only from the metadata: importing torch takes seconds.
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _placement(run: RunPlan) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple((pod.name, tuple(map(str, pod.seat.slots))) for pod in run.pods)


def spec_text(spec: RunSpec) -> str:
    """Encode a spec as JSON without values that look like a secret."""
    document = msgspec.to_builtins(spec)
    return msgspec.json.encode(_redacted(document)).decode()


def spec_of(text: str) -> RunSpec | None:
    """Decode a spec; None if this version cannot read it."""
    try:
        return run_specs.decode(text)
    except ValueError:
        return None


def hidden_fields(text: str) -> Iterable[str]:
    """Return the fields of a spec that were hidden, because they looked like secrets."""
    return sorted({path for path, value in _texts(bounded_json.decode(text), "") if HIDDEN_TEXT in value})


def _texts(value: object, path: str) -> Iterable[tuple[str, str]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _texts(item, f"{path}.{name}".lstrip("."))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _texts(item, f"{path}.{number}")
    elif isinstance(value, str):
        yield path, value


def _redacted(value: object) -> object:
    """Return a document with its texts redacted; in a pair ``(name, value)`` the name can mark a secret, too."""
    if isinstance(value, dict):
        return {name: _redacted(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        if len(value) == 2 and all(isinstance(item, str) for item in value):
            name, text = map(redact_long, value)
            return [name, redact_long(f"{name}={text}").removeprefix(f"{name}=")]
        return [_redacted(item) for item in value]
    return _redacted_text(value) if isinstance(value, str) else value


def _redacted_text(text: str) -> str:
    if "\n" not in text:
        return redact_long(text)
    # A program: `token = tokenizer(line)` is not a secret, and a program with gaps could never be launched again.
    for pattern, _ in SECRET_FORMS:
        text = re.sub(pattern, HIDDEN_TEXT, text)
    return text
