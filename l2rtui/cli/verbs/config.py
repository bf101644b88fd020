"""config: all settings with their sources; a check of the file that reports every error together. No backend."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

from l2rtui.cli.output import Output
from l2rtui.cli.session import settings_of
from l2rtui.config import (
    FILE_ONLY,
    PREFIX,
    Settings,
    context_name,
    settings_of_file,
    settings_of_variables,
    settings_path,
)
from l2rtui.domain.preflight import Finding, Severity, refusals
from l2rtui.domain.quantity import counted
from l2rtui.errors import EXIT_DONE, EXIT_FAILED, ConfigError, nearest
from l2rtui.services import filters
from l2rtui.tables import operations
from l2rtui.tables.column import Column, View
from l2rtui.tables.documents import finding_document

_OWN_CONTEXTS = ("local", "demo", "docker")
"""Names of ``[context.NAME]`` that mean a backend, not a context of the kubeconfig."""


def run_config(args: Namespace) -> int:
    """Print all settings, or findings about those of file and environment: exit code 1 if one of them is wrong."""
    environ = dict(os.environ)
    if args.config:
        environ["L2RTUI_CONFIG"] = args.config
    if args.action == "show":
        Output(args.output).show_all(_SETTINGS, list(_settings(args, environ)))
        return EXIT_DONE
    findings = tuple(_findings(environ))
    Output(args.output).show_all(operations.FINDINGS, [finding_document(finding) for finding in findings])
    return EXIT_FAILED if refusals(findings) else EXIT_DONE


def _settings(args: Namespace, environ: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Yield each setting with its value and the place that decides it; the last of them wins in load_settings()."""
    settings, path = settings_of(args), settings_path(environ)
    (values, contexts), variables = settings_of_file(environ), settings_of_variables(environ)
    chosen = {"backend": settings.backend, "context": settings.context}
    context = context_name(chosen, environ)
    layers = ((values, f"{path}"), (contexts.get(context, {}), f"{path} [context.{context}]"))
    for setting in fields(Settings):
        name, value = setting.name, getattr(settings, setting.name)
        variable, before, source = f"{PREFIX}{name.upper()}", setting.default, "default"
        for layer, place in (*layers, (variables, variable)):
            if name in layer:
                before, source = layer[name], place
        yield {
            "name": name,
            "value": list(value) if isinstance(value, tuple) else value,
            "source": source if value == before else "flag",
            "default": list(setting.default) if isinstance(setting.default, tuple) else setting.default,
            "variable": None if name in FILE_ONLY else variable,
        }


def _text(name: str) -> Callable[[Any], str]:
    """Return the cell of a setting's value as the settings file writes it; empty for nothing."""

    def cell(document: Any) -> str:
        value = document[name]
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, list):
            return ",".join(" = ".join(item) if isinstance(item, tuple) else str(item) for item in value)
        return "" if value is None else str(value)

    return cell


_SETTINGS = View(
    "name",
    (
        Column("SETTING", "name"),
        Column("VALUE", _text("value")),
        Column("SOURCE", "source"),
        Column("DEFAULT", _text("default")),
        Column("VARIABLE", "variable"),
    ),
)


def _findings(environ: dict[str, str]) -> Iterator[Finding]:
    mistakes: list[ConfigError] = []
    path = settings_path(environ)
    try:
        values, contexts = settings_of_file(environ, mistakes.append)
    except ConfigError as error:  # none of its settings can be read
        yield _refusal("settings", error)
        return
    variables = settings_of_variables(environ, mistakes.append)
    findings = [_refusal("settings", mistake) for mistake in mistakes]
    # Limits, keys and filters have their own formats, which are checked when they are used.
    for name, part in (("settings", values), *((f"[context.{name}]", part) for name, part in contexts.items())):
        findings += [_refusal(name, mistake) for mistake in _mistakes_of_tables(part)]
    findings += _unknown_themes({"theme": "", **values, **variables}["theme"])
    findings += _unknown_contexts(environ, contexts)
    yield from findings
    if not path.exists():
        yield Finding(Severity.OK, "settings", f"there is no file {path}: every setting has its default")
    elif not findings:
        tables = f", and tables of {counted(len(contexts), 'context')}" if contexts else ""
        yield Finding(Severity.OK, "settings", f"{path}: {counted(len(values), 'setting')}{tables}")
    for name in sorted(variables):
        yield Finding(Severity.OK, f"L2RTUI_{name.upper()}", f"sets {name} over the file")


def _mistakes_of_tables(part: dict[str, Any]) -> Iterator[ConfigError]:
    from l2rtui.ui.keys.keymap import key_table

    checks: tuple[tuple[str, Callable[[Any], object]], ...] = (
        ("limits", lambda value: Settings(limits=value)),
        ("history_to", lambda value: Settings(history_to=value or "")),
        ("filters", filters.checked),
        ("keys", key_table),
    )
    for name, check in checks:
        try:
            check(part.get(name, ()))
        except ConfigError as error:
            yield error


def _unknown_themes(theme: str) -> Iterator[Finding]:
    from l2rtui.ui.theme import theme_names

    names = theme_names()
    if theme and theme not in names:
        hint = nearest(theme, names) or f"There are: {', '.join(names)}."
        yield Finding(Severity.WARNING, "settings", f"there is no theme {theme!r}", hint)


def _unknown_contexts(environ: dict[str, str], contexts: dict[str, dict[str, Any]]) -> Iterator[Finding]:
    """Yield a warning for each table of a context that is in no kubeconfig: its protection would have no effect."""
    names = [name for name in contexts if name not in _OWN_CONTEXTS]
    if not names:
        return
    from l2rtui.backends.kubernetes.api.kubeconfig import context_names

    try:
        available = context_names(environ=environ)[0]
    except ConfigError as error:
        yield Finding(Severity.WARNING, "kubeconfig", error.message.rstrip("."), error.hint)
        return
    for name in names:
        if name not in available:
            hint = nearest(name, available) or f"There are: {', '.join(available) or 'none'}."
            yield Finding(Severity.WARNING, f"[context.{name}]", "the kubeconfig has no such context", hint)


def _refusal(subject: str, error: ConfigError) -> Finding:
    return Finding(Severity.REFUSAL, subject, error.message.rstrip("."), error.hint)
