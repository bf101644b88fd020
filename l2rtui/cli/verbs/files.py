"""schema, explain and completion: verbs that print what the program knows by itself and use no backend."""

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


def run_explain(args: Namespace) -> int:
    """Print the meaning of a field of a spec, and the fields below it."""
    from l2rtui.services.spec import reference

    fields, out = reference.explained(args.path), Output(args.output)
    if args.output != "table":
        out.dump([{"path": field.path, "kinds": list(field.kinds), **field.schema} for field in fields])
        return EXIT_DONE
    for number, field in enumerate(fields):
        if number:
            out.line("")
        for heading, text in reference.described(field):
            out.line(f"{heading:<10} {text}")
        width = max(map(len, field.fields), default=0)
        for name, below in field.fields.items():
            out.line(f"  {name:<{width}}  {reference.meaning(below)}")
    return EXIT_DONE


def run_completion(args: Namespace) -> int:
    """Print the completion script of a shell."""
    Output("table").line(SCRIPTS[args.shell])
    return EXIT_DONE
