"""Command lines that l2rtui shows: "same as" of dialogs, copied lines, hints.

A line may be pasted into another shell, or into a script, and must act there on the objects that the dialog showed.
So only `write` composes them, with every option that differs from a start without options: context, namespace,
backend, user and files.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from l2rtui.config import PREFIX, Settings, load_settings
from l2rtui.domain.redact import redact_long
from l2rtui.errors import ConfigError

Words = Sequence[str]
"""A verb and its arguments."""

PLACELESS: Final = frozenset({"image", "template", "config", "schema", "completion", "cluster", "serve"})
"""Verbs whose hints name no run and no cluster: options for a place would be useless there."""
_HINT: Final = re.compile(r"`l2rtui ([a-z][a-z-]*)((?: [^`]*)?)`")
_PLACEHOLDER: Final = re.compile(r"(?:^|[ /:=.\[])[A-Z][A-Z]+(?:$|[ /:=.,…\]])|(?:^| )N$")
"""Placeholder, as in ``scale RUN/SET N``: such a line shows a form, and is not pasted."""


def write(commands: Iterable[Words], flags: Words = (), prefix: str = "") -> str:
    """Return the line of one or several commands, quoted for a shell; possible secrets are hidden.

    Args:
        flags: Options placed before each verb, as returned by `flags_of`.
        prefix: Name of a context before the names of its rows, if several are shown.
    """
    return " && ".join(shlex.join(["l2rtui", *flags, *_own_words(words, prefix)]) for words in commands)


def _own_words(words: Words, prefix: str) -> Iterable[str]:
    is_of_program = False
    for word in words:
        is_of_program = is_of_program or word == "--"  # the program's own command follows it
        yield redact_long(word if is_of_program else word.removeprefix(prefix))


def flags_of(
    settings: Settings, files: Mapping[str, str] | None = None, environ: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Return the options that distinguish a start with these settings from one without options.

    Args:
        files: Files named at the start, by option: ``--kubeconfig``, ``--config``.
        environ: Environment of the start without options; None for another shell's, which lacks our variables.
    """
    files = {option: path for option, path in (files or {}).items() if path}
    if environ is None:
        # The other shell lacks the variables of this one, except the choice of the settings file: like KUBECONFIG,
        # it is usually set at login.
        own = f"{PREFIX}CONFIG"
        environ = {name: value for name, value in os.environ.items() if name == own or not name.startswith(PREFIX)}
    if config := files.get("--config", ""):
        environ = {**environ, f"{PREFIX}CONFIG": config}
    flags = [part for option, path in files.items() for part in (option, path)]
    bare = _settings({}, environ)
    # A context or a namespace implies a cluster: then no backend needs to be named.
    is_implied = settings.backend == "kubernetes" and not bare.backend and (settings.context or settings.namespaces)
    if settings.backend != bare.backend and not is_implied:
        flags += ["--backend", settings.backend or "kubernetes"]
    if settings.context and settings.context != bare.context:
        flags += ["--context", settings.context]
    # With the table of the context in the settings file.
    bare = _settings({"backend": settings.backend, "context": settings.context}, environ)
    if settings.namespaces and settings.namespaces != bare.namespaces:
        flags += ["-n", ",".join(settings.namespaces)]
    if settings.impersonate_user and settings.impersonate_user != bare.impersonate_user:
        flags += ["--as", settings.impersonate_user]
    if settings.impersonate_groups != bare.impersonate_groups:
        flags += [part for group in settings.impersonate_groups for part in ("--as-group", group)]
    if settings.readonly and not bare.readonly:
        flags.append("--readonly")
    return tuple(flags)


def _settings(flags: Mapping[str, object], environ: Mapping[str, str]) -> Settings:
    try:
        return load_settings(flags, environ)
    except ConfigError:  # the file is being edited: then every option is written out
        return Settings()


def with_flags(text: str, flags: Words) -> str:
    """Return a sentence whose command lines in backquotes act on the context of this process; forms stay
    unchanged.
    """
    if not flags or "`l2rtui " not in text:
        return text
    options = shlex.join(flags)

    def completed(match: re.Match[str]) -> str:
        verb, rest = match.groups()
        is_form = verb in PLACELESS or _PLACEHOLDER.search(rest) is not None
        return match[0] if is_form else f"`l2rtui {options} {verb}{rest}`"

    return _HINT.sub(completed, text)
