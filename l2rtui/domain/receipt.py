"""Results of a destroy: progress, receipt, and leftover or leaked objects."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from l2rtui.domain.snapshot import RunView

_MAX_LISTED = 5
"""Number of objects of unknown owner in a sentence; all are in the receipt."""


class Leftover(Struct, frozen=True):
    """Object of a destroyed run that still exists, and the reason."""

    kind: str
    name: str
    reason: str


class DestroyProgress(Struct, frozen=True):
    """Number of objects of each kind that still exist: ``(("Pod", 3), ("Run", 1))``.

    Attributes:
        refusal: An object whose deletion was refused and is tried again, with the reason; empty for none.
    """

    left: tuple[tuple[str, int], ...]
    refusal: str = ""


class Receipt(Struct, frozen=True):
    """Final result of a destroy. The backend counts on the server itself, not in cached state.

    Attributes:
        objects: Number of objects that the run had. left: Objects that still exist; empty proves the destroy.
        results_location: Location of results that are kept (checkpoints, metrics); empty without any.
        was_queued: The run waited in a queue and was never launched; its only object was its ticket.
        counted: Numbers of the objects by kind: ``(("run", 1), ("pod", 3))``; empty if only their sum is known.
        possible: Objects that exist and may or may not have been the run's: nothing shows whose they are.
        not_seen: Objects that a run may have and this count cannot see, as a clause; empty if there are none.
    """

    run: str
    objects: int
    left: tuple[Leftover, ...]
    seconds: float
    results_location: str = ""
    was_queued: bool = False
    counted: tuple[tuple[str, int], ...] = ()
    possible: tuple[Leftover, ...] = ()
    not_seen: str = ""

    @property
    def sentence(self) -> str:
        """Summary for display, in one line."""
        possible = f"; perhaps of {self.run}: {_listed(self.possible)}" if self.possible else ""
        if self.left:
            return f"{len(self.left)} left of {self.run}: {_listed(self.left, len(self.left))}{possible}"
        if self.was_queued:
            return f"{self.run} was queued: it is out of the queue, and was never launched"
        return f"nothing left of {self.run} ({self.objects} objects, 0 leaks, {self.seconds:.1f} s){possible}"


def _listed(leftovers: Sequence[Leftover], limit: int = _MAX_LISTED) -> str:
    names = [f"{leftover.kind} {leftover.name} ({leftover.reason})" for leftover in leftovers[:limit]]
    more = [f"{len(leftovers) - limit} more"] if len(leftovers) > limit else []
    return ", ".join(names + more)


class Leak(Struct, frozen=True):
    """Object whose run no longer exists, or that no controller manages.

    Attributes:
        of: The deleted run as ``destroy`` takes it; None if the run exists, or the object cannot be destroyed so.
    """

    run: str
    kind: str
    name: str
    reason: str
    of: RunView | None = None


class LeakReport(Struct, frozen=True):
    """Leaks of a backend.

    Attributes:
        not_seen: Kinds that the user may not list: leaks among them are unknown. Otherwise empty.
    """

    leaks: tuple[Leak, ...] = ()
    not_seen: str = ""
