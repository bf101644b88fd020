"""Refusals that every backend raises with the same text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from l2rtui.domain.node import SlotId
from l2rtui.errors import RefusedError


class SlotTakenError(RefusedError):
    """Slots of a plan were taken by another launch after the plan was made; nothing was created.

    Attributes:
        slots: The slots that are known to be taken.
    """

    def __init__(self, message: str, slots: Iterable[SlotId]) -> None:
        super().__init__(message, "Plan again.")
        self.slots = tuple(slots)


def run_exists(run: str) -> RefusedError:
    """Return the refusal of a launch whose name is taken."""
    return RefusedError(f"A run named {run} exists.", f"Choose another name, or `l2rtui destroy {run}` first.")


def pod_exists(run: str, set_name: str, pod: str) -> RefusedError:
    """Return the refusal of a scale that would start a replica twice, because the set was scaled meanwhile."""
    return RefusedError(f"{run}/{set_name} has {pod} already.", "Plan again.")


def refuse_conflicts(conflicts: Sequence[str]) -> None:
    """Refuse a plan with replicas that could not be placed.

    Raises:
        RefusedError: The message names each of them.
    """
    if conflicts:
        raise RefusedError(f"{'; '.join(conflicts)}.", "Plan again.")


def has_no_input(pod: str) -> RefusedError:
    """Return the refusal to attach to a process without a standard input."""
    return RefusedError(
        f"The process of {pod} has no standard input.",
        f"`l2rtui logs -f {pod}` follows its output, `l2rtui exec {pod} -- sh` opens another shell in it.",
    )


def is_not_running(pod: str) -> RefusedError:
    """Return the refusal to attach to a pod whose process is not running."""
    return RefusedError(f"{pod} does not run.", f"See `l2rtui describe {pod}`.")
