"""Ownership: objects of other users are not changed, unless the user asks to act for them."""

from __future__ import annotations

from collections.abc import Sequence

from l2rtui.config import user_name
from l2rtui.domain.snapshot import PodView, RunView
from l2rtui.errors import RefusedError

_MAX_NAMES = 6


def is_mine(view: PodView | RunView, me: str = "") -> bool:
    """Return True if the user launched it; an unknown owner is not the user."""
    return view.owner == (me or user_name())


def refuse_others(verb: str, objects: Sequence[PodView | RunView], *, is_admin: bool, me: str = "") -> None:
    """Refuse to change objects of other users.

    Args:
        verb: The action, such as ``kill``.
        is_admin: The user acts for others on purpose.

    Raises:
        RefusedError: names the objects of others with their owners. Nothing was changed.
    """
    refuse_owners(verb, [(view.name, view.owner) for view in objects], is_admin=is_admin, me=me)


def refuse_owners(verb: str, objects: Sequence[tuple[str, str]], *, is_admin: bool, me: str = "") -> None:
    """Like ``refuse_others``, for pairs of name and owner."""
    others = [(name, owner) for name, owner in objects if owner != (me or user_name())]
    if is_admin or not others:
        return
    names = ", ".join(f"{name} ({owner or 'owner unknown'})" for name, owner in others[:_MAX_NAMES])
    more = f" and {len(others) - _MAX_NAMES} more" if len(others) > _MAX_NAMES else ""
    are = "does" if len(others) == 1 else "do"
    sentence = f"{names}{more} {are} not belong to you, so {verb} leaves everything as it is."
    raise RefusedError(sentence, "Ask the owner, or add --admin if you may act for them.")
