"""schema and completion: verbs that print a file and use no backend."""

from __future__ import annotations

from argparse import Namespace

from l2rtui.cli.completion import SCRIPTS
from l2rtui.cli.output import Output
from l2rtui.errors import EXIT_DONE


def run_schema(args: Namespace) -> int:
    """Print the JSON Schema of spec files."""
    from l2rtui.services.spec.spec_file import schema

    Output(args.output).dump(schema())
    return EXIT_DONE


def run_completion(args: Namespace) -> int:
    """Print the completion script of a shell."""
    Output("table").line(SCRIPTS[args.shell])
    return EXIT_DONE
