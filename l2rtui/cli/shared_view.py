"""Shared view on the command line: ``--view`` with a link, or with a file that contains one."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from pathlib import Path

from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.selection.shared_view import MAX_CHARS, SCHEME, SharedView, parse_view


def read_view(text: str) -> SharedView:
    """Return the view of a link, or of a file with a link in its first line.

    Raises:
        ArgumentTypeError: it is neither; argparse prints the sentence after the name of the option.
    """
    try:
        return parse_view(text if text.startswith(SCHEME.partition(":")[0] + ":") else _line_of(Path(text)))
    except ValueError as error:
        raise ArgumentTypeError(sanitize(str(error))) from None


def _line_of(path: Path) -> str:
    path = path.expanduser()
    try:
        # A pipe or a device would never end.
        if not path.is_file():
            raise ValueError(f"{path} is neither a file nor a link of a view, which begins with {SCHEME}")
        with path.open("rb") as file:
            return file.read(MAX_CHARS + 2).decode().partition("\n")[0]
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError:
        raise ValueError(f"{path} holds no link of a view.") from None


def take_place(args: Namespace) -> None:
    """Open the app on the view's context; options of the command line have precedence."""
    view: SharedView | None = args.view
    if view is None:
        return
    if not (args.backend or args.context or args.all_contexts):
        args.backend, args.context = view.backend or None, view.context or None
        args.namespace = args.namespace or ",".join(view.namespaces) or None
