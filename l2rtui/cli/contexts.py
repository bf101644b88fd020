"""Contexts named by a command: one, several separated by commas, or all of the kubeconfig."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from l2rtui.backends.registry import compose, named_contexts
from l2rtui.config import Settings
from l2rtui.errors import UsageError

if TYPE_CHECKING:
    from l2rtui.backends.base import Backend

LISTS: Final = ("nodes", "slots", "pods", "runs", "history", "diff")
"""Verbs that can read several contexts; a verb that changes objects acts in one, which its question names."""
_APP: Final = ("", "serve")
"""The app, which can also show several contexts; without a verb, or in a browser."""


def contexts_of(args: Namespace) -> tuple[str, ...]:
    """Return the contexts if several are named, each once; empty for one context or none.

    Raises:
        ConfigError: the kubeconfig has no such context. UsageError: the verb acts in one context.
    """
    contexts = named_contexts(args.context or "", is_all=args.all_contexts)
    if not contexts:
        return ()
    if args.all_contexts and args.context:
        raise UsageError("--context and --all-contexts exclude each other.", "Leave one of them out.")
    verb = getattr(args, "verb", "")
    if verb not in (*LISTS, *_APP):
        hint = f"Name it with --context NAME; the app and {', '.join(LISTS)} show several."
        raise UsageError(f"{verb} acts in one context.", hint)
    return contexts


def composed_backend(contexts: tuple[str, ...], settings_for: Callable[[str], Settings]) -> Backend:
    """Return the backend that shows these contexts, each with the settings of its table.

    Raises:
        UsageError: the settings name a backend without contexts.
    """
    return compose({context: settings_for(context) for context in contexts})
