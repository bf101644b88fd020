"""Editing of a run's spec in the user's editor: the difference is shown, confirmed and applied.

If only replica counts differ, the sets are scaled and all processes continue. Any other change needs new processes,
so the run is launched again.
"""

from __future__ import annotations

import asyncio
import difflib
import os
import shlex
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from textual.app import SuspendNotSupported
from textual.screen import Screen

from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import ClusterSnapshot, RunView
from l2rtui.errors import L2RError, SpecError, UsageError
from l2rtui.ui.dialogs.confirm import ConfirmScreen, Question, lines_of
from l2rtui.ui.dialogs.questions import ask, is_acting_for, owned_by, where_line
from l2rtui.ui.dialogs.relaunch import ask_relaunch
from l2rtui.ui.keys import cli_equivalents
from l2rtui.ui.state.app_context import AppContext
from l2rtui.ui.text import Line, Span, TextStyle

if TYPE_CHECKING:
    from l2rtui.domain.workload import RunSpec

MOST_LINES: Final = 40
_TONES: Final = {"+": TextStyle.OK, "-": TextStyle.BAD, "@": TextStyle.DIM}


async def edit(screen: Screen[None], ctx: AppContext, run: RunView, newest: Callable[[], ClusterSnapshot]) -> None:
    """Open the spec of a run in the editor until it is valid, and ask for confirmation of the difference."""
    # `newest` is a function: the editor may be open for long, and the question needs the snapshot afterwards.
    before = await ctx.backend.spec(run.name)
    text = await asyncio.to_thread(as_yaml, before)
    draft = text
    # The draft survives an error: the editor opens again with the typed text, not with the old spec.
    while (changed := await _in_editor(screen, ctx, run.name, draft)) not in (None, text):
        draft = str(changed)
        try:
            after = await asyncio.to_thread(_read, draft, before.name)
        except L2RError as error:
            question = Question("Edit it again?", lines_of([sanitize(str(error))], TextStyle.BAD), yes="Edit")
            if not await screen.app.push_screen_wait(ConfirmScreen(question, ctx.keys)):
                return
        else:
            lines = difference(text, await asyncio.to_thread(as_yaml, after))
            if not lines:
                break
            if (replicas := scaled(before, after)) is not None:
                _ask_scale(screen, ctx, run, replicas, lines)
            else:
                ask_relaunch(screen, ctx, [run], newest(), changed={run.name: after}, lines=lines)
            return
    ctx.background.say(f"{run.name}: no changes.")


def difference(before: str, after: str) -> tuple[Line, ...]:
    """Return the lines of a unified diff, without its header."""
    diff = list(difflib.unified_diff(before.splitlines(), after.splitlines(), "now", "then", n=1, lineterm=""))[2:]
    lines = [(Span(sanitize(line), _TONES.get(line[:1], TextStyle.PLAIN)),) for line in diff[:MOST_LINES]]
    if len(diff) > MOST_LINES:
        lines.append((Span(f"and {len(diff) - MOST_LINES} more lines", TextStyle.DIM),))
    return tuple(lines)


def scaled(before: RunSpec, after: RunSpec) -> dict[str, int] | None:
    """Return the new replica counts by set if nothing else differs, otherwise None."""
    replicas: dict[str, int] = {}
    spec = before
    for old in before.sets:
        new = after.set_named(old.name)
        if new is not None and new.replicas != old.replicas:
            replicas[old.name] = new.replicas
            spec = spec.with_replicas(old.name, new.replicas)
    # The old spec with the new counts must equal the new spec: compared as YAML, where defaults are written out.
    return replicas if as_yaml(spec) == as_yaml(after) else None


def _ask_scale(
    screen: Screen[None], ctx: AppContext, run: RunView, new_replicas: dict[str, int], lines: tuple[Line, ...]
) -> None:
    is_admin = is_acting_for([run])
    targets = {f"{run.name}/{name}": replicas for name, replicas in new_replicas.items()}
    question = Question(
        f"Scale {sanitize(', '.join(targets))}?",
        (where_line(ctx, [run]), *lines, *owned_by([run])),
        yes="Scale",
        typed=ctx.protected or (run.name if is_admin else ""),
        is_grave=True,
        command=ctx.command_line(
            *(cli_equivalents.scale(target, to, is_admin=is_admin) for target, to in targets.items()), row=run
        ),
    )

    async def scale() -> None:
        from l2rtui.services import launcher

        with ctx.background.busy(f"scaling {run.name}"):
            for name, replicas in new_replicas.items():
                await launcher.scale(ctx.backend, run.name, name, replicas)
        ctx.background.say(f"{run.name} is being scaled.")

    def begin() -> None:
        ctx.background.start(scale(), group="scale", what=f"scaling {run.name}")

    ask(screen, ctx, question, f"scaling {run.name}", begin)


async def _in_editor(screen: Screen[None], ctx: AppContext, name: str, text: str) -> str | None:
    """Return the text after editing; None if this terminal cannot be used for an editor."""
    # VISUAL before EDITOR, and vi if neither is set, as in Unix programs.
    variable = next((name for name in ("VISUAL", "EDITOR") if os.environ.get(name, "").strip()), "")
    try:
        editor = shlex.split(os.environ[variable]) if variable else ["vi"]
    except ValueError as error:
        raise UsageError(f"{variable} is {os.environ[variable]!r}: {error}.", "Set it to an editor.") from error
    # mkstemp makes the file readable only by its owner: a spec may contain private variables.
    descriptor, path = tempfile.mkstemp(prefix=f"l2rtui-{name[:40]}-", suffix=".yaml")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        # Nothing is drawn while the editor uses the terminal; the watch continues.
        with screen.app.batch_update(), screen.app.suspend(), ctx.lent():
            process = await asyncio.create_subprocess_exec(*editor, path)
            code = await process.wait()
        if code:
            raise UsageError(f"{editor[0]} ended with {code}, so nothing was changed.")
        return await asyncio.to_thread(Path(path).read_text, "utf-8")
    except SuspendNotSupported:
        command = ctx.command_line(("scale", f"{name}/SET", "N"))
        ctx.background.say(f"This terminal cannot be lent. Use `{command}`.")
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it wrote no text"
        hint = f"Set {variable or 'EDITOR'} to an editor."
        raise UsageError(f"{editor[0]} cannot be used: {reason}.", hint) from error
    finally:
        os.unlink(path)  # noqa: PTH108  (as mkstemp has it)


def as_yaml(spec: RunSpec) -> str:
    """Return a spec as the text of a spec file."""
    import yaml

    from l2rtui.services.spec.encode import to_document

    return str(yaml.safe_dump(to_document(spec), sort_keys=False, allow_unicode=True))


def _read(text: str, name: str) -> RunSpec:
    """Decode the edited text.

    Raises:
        SpecError: the spec is not valid, or the name differs.
    """
    from l2rtui.services.spec import spec_file

    # load() reads files, since its messages name the file and the line.
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        spec = spec_file.load(file.name).spec
    # A new name would start a new run, and the old one would keep running.
    if spec.name != name:
        raise SpecError(f"The run is named {name}, and that stays.", "`:launch FILE` starts another.")
    return spec
