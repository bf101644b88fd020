"""Context names of a backend, as used in records; a view of several contexts uses the records of each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from l2rtui.backends.base import Backend
    from l2rtui.domain.snapshot import RunView


def context_of(backend: Backend) -> str:
    """Return the name of the backend's context; empty if it has none."""
    return backend.contexts.current if backend.contexts is not None else ""


def parts_of(backend: Backend) -> tuple[Backend, ...]:
    """Return the backends of the contexts that are shown together, or the backend itself if there is one
    context.
    """
    members = backend.contexts.members if backend.contexts is not None else ()
    return tuple(member.backend for member in members) or (backend,)


def owner_of(backend: Backend, run: RunView) -> tuple[Backend, RunView]:
    """Return the backend of a run's own context, and the run with the names of that context."""
    member = backend.contexts.member(run) if backend.contexts is not None else None
    return (backend, run) if member is None else (member.backend, member.original(run))
