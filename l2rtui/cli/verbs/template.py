"""template and new: spec files with a name, and a new one to begin with; uses no backend."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from l2rtui.cli.output import Output, StderrReporter
from l2rtui.domain.sanitize import sanitize
from l2rtui.errors import EXIT_DONE, UsageError
from l2rtui.services.spec import templates
from l2rtui.tables import operations


def run_template(args: Namespace) -> int:
    """List, print, save or delete templates."""
    out, talk = Output(args.output), StderrReporter()
    if args.action == "ls":
        documents = [_document(template) for template in templates.templates()]
        out.show_all(operations.TEMPLATES, documents)
        if not documents:
            names = ", ".join(sorted(templates.examples()))
            talk.say(f"No templates. `l2rtui template save NAME -f SPEC` makes one. Examples for -t: {names}.")
        return EXIT_DONE
    if not args.name:
        raise UsageError(f"template {args.action} needs a name.", "`l2rtui template ls` lists them.")
    if args.action == "save":
        if not args.file:
            hint = f"Write `l2rtui template save {args.name} -f SPEC`."
            raise UsageError("template save needs a spec file.", hint)
        path = templates.save(args.name, args.file, replaces=args.replace)
        talk.say(f"saved {path}: launch it by `l2rtui launch -t {args.name}`")
    elif args.action == "delete":
        talk.say(f"deleted {templates.delete(args.name)}")
    else:
        text = templates.template_path(args.name).read_text("utf-8", errors="replace")
        for line in text.splitlines():
            out.line(sanitize(line))
    return EXIT_DONE


def run_new(args: Namespace) -> int:
    """Write a commented spec file to begin with."""
    path = Path(args.to or f"{args.name}.yaml")
    templates.write_new(path, templates.starter(args.name, args.env, args.algorithm), replaces=args.replace)
    StderrReporter().say(f"wrote {path}: `l2rtui plan -f {path}` checks it, `l2rtui launch -f {path}` starts it")
    return EXIT_DONE


def _document(template: templates.Template) -> dict[str, str]:
    return {"name": template.name, "path": str(template.path), "about": template.about}
