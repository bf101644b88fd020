"""serve: the app in a browser. Each tab has its own process of the app, started from this program."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from functools import partial

from l2rtui.cli.contexts import contexts_of
from l2rtui.cli.output import Output, StderrReporter
from l2rtui.cli.session import refuse_unusable, settings_for, settings_of
from l2rtui.errors import EXIT_DONE, UsageError

SERVED = "__served"
"""Internal verb of the processes behind the tabs; users do not type it."""


def run_serve(args: Namespace) -> int:
    """Serve until Ctrl-C.

    Raises:
        UsageError: textual-serve is not installed, or the port is taken.
    """
    settings = settings_of(args)
    if not contexts_of(args):
        refuse_unusable(settings)  # report errors in them here, not in a browser
    try:
        from l2rtui.serve.server import serve
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in ("textual_serve", "aiohttp_jinja2", "jinja2"):
            raise
        from runtime.base.installation import install_hint

        sentence = "serve needs textual-serve, which is not installed here."
        raise UsageError(sentence, install_hint("serve")) from missing
    out, talk = Output("table"), StderrReporter()

    def announce(address: str) -> None:
        out.line(address)
        out.stream.flush()  # a program that reads it from a pipe waits for it
        talk.say("Open this address; it opens one browser, once. Ctrl-C ends it and the app. Runs go on.")

    return serve([*_myself(), SERVED, *options_passed_on(args)], args.port, announce)


def run_served(words: list[str]) -> int:
    """Run the app behind one tab, as started by textual-serve.

    Raises:
        UsageError: it was started by another program.
    """
    from l2rtui.cli.parser import app_parser

    args = app_parser().read(words)
    if not os.environ.get("TEXTUAL_DRIVER", "").endswith(":WebDriver"):
        raise UsageError(f"{SERVED} is what `l2rtui serve` starts.", "Run `l2rtui serve`.")
    from l2rtui.ui.terminal_guard import end_with

    end_with(os.getppid())
    settings = settings_of(args)
    from l2rtui import log
    from l2rtui.ui.bootstrap import run

    log.configure(is_debug=args.debug, is_app=True)

    return int(run(settings, partial(settings_for, args), contexts=contexts_of(args)) or EXIT_DONE)


def _myself() -> list[str]:
    return [sys.executable, "-I" if sys.flags.isolated else "-P", "-m", "l2rtui"]


def options_passed_on(args: Namespace) -> list[str]:
    """Return the options that the app has too."""
    words = []
    for flag, value in (
        ("--backend", args.backend),
        ("--kubeconfig", args.kubeconfig),
        ("--context", args.context),
        ("--as", args.impersonate_user),
        *(("--as-group", group) for group in args.impersonate_groups or ()),
        ("--namespace", args.namespace),
        ("--config", args.config),
    ):
        if value:
            words += [flag, value]
    flags = (("--readonly", args.readonly), ("--debug", args.debug), ("--all-contexts", args.all_contexts))
    for flag, is_set in flags:
        words += [flag] if is_set else []
    return words
