"""Contexts that a command names: one, several with commas between, or all of the kubeconfig."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Final

from l2rtui.backends.base import Backend
from l2rtui.backends.registry import make_backend
from l2rtui.config import Settings, nearest
from l2rtui.errors import ConfigError, UsageError

LISTS: Final = ("nodes", "slots", "pods", "runs")
"""Verbs that show several contexts at once; every other acts in one, which its questions and answers name."""


def contexts_of(args: Namespace) -> tuple[str, ...]:
    """Return the contexts where several are named, each once; empty where it is one, or none.

    Raises:
        ConfigError: the kubeconfig has no such context. UsageError: the verb acts in one context.
    """
    named = args.context or ""
    if not (args.all_contexts or "," in named):
        return ()
    from l2rtui.backends.kubernetes.api.kubeconfig import context_names

    available = context_names()[0]
    if not args.all_contexts and named in available:
        return ()  # a single context whose name has a comma
    contexts = tuple(dict.fromkeys(part.strip() for part in named.split(",") if part.strip()))
    contexts = contexts or available
    for context in contexts:
        if context not in available:
            hint = nearest(context, available) or f"There are: {', '.join(available) or 'none'}."
            raise ConfigError(f"The kubeconfig has no context {context!r}.", hint)
    _refuse_elsewhere(args)
    return contexts


def _refuse_elsewhere(args: Namespace) -> None:
    verb = getattr(args, "verb", "")
    if args.all_contexts and args.context:
        raise UsageError("--context and --all-contexts exclude each other.", "Leave one of them out.")
    if verb not in LISTS:
        what = f"{verb} acts" if verb else "The app acts"
        hint = f"Name it with --context NAME; {', '.join(LISTS)} show several." + (
            "" if verb else " `:ctx` changes it."
        )
        raise UsageError(f"{what} in one context.", hint)


def composed_backend(contexts: tuple[str, ...], settings_for: Callable[[str], Settings]) -> Backend:
    """Return the backend that shows these contexts, each with the settings of its own table.

    Raises:
        UsageError: the settings name a backend that has none.
    """
    from l2rtui.backends.composed.backend import ComposedBackend

    members = {}
    for context in contexts:
        settings = settings_for(context)
        if settings.backend not in ("", "kubernetes"):
            raise UsageError(f"The {settings.backend} backend has no contexts: they mean nothing there.")
        members[context] = make_backend("kubernetes", settings)
    return ComposedBackend(members)
