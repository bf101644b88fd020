"""Whose it is: what other people have launched is left alone, unless somebody asks to act for them."""

from __future__ import annotations

from collections.abc import Sequence

from l2rtui.config import user_name
from l2rtui.domain.snapshot import PodView, RunView
from l2rtui.errors import RefusedError

_MOST_NAMES = 6


def is_mine(one: PodView | RunView, me: str = "") -> bool:
    """Whether I launched it; what nobody is known to own is not mine."""
    return one.owner == (me or user_name())


def refuse_others(verb: str, objects: Sequence[PodView | RunView], *, is_admin: bool, me: str = "") -> None:
    """Refuse to change what belongs to other people.

    Args:
        verb: What is asked for, as in ``kill``.
        is_admin: The person has said that it is meant.

    Raises:
        RefusedError: names what is not mine, and its owners. Nothing was changed.
    """
    others = [one for one in objects if not is_mine(one, me)]
    if is_admin or not others:
        return
    names = ", ".join(f"{one.name} ({one.owner or 'owner unknown'})" for one in others[:_MOST_NAMES])
    more = f" and {len(others) - _MOST_NAMES} more" if len(others) > _MOST_NAMES else ""
    are = "does" if len(others) == 1 else "do"
    raise RefusedError(
        f"{names}{more} {are} not belong to you, so {verb} leaves everything as it is.",
        "Ask the owner, or add --admin if you may act for them.",
    )
