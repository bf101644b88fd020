"""A run's spec in the user's own editor: what was changed is shown, then asked, then done.

Where numbers of replicas alone differ, these are scaled and everything else goes on. Any other change needs new
processes, so the run is launched again.
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
from l2rtui.ui import twins
from l2rtui.ui.link import Link
from l2rtui.ui.screens.again import ask_relaunch
from l2rtui.ui.screens.asking import ask, is_acting_for, owned_by, typed
from l2rtui.ui.screens.confirm import ConfirmScreen, Question, lines_of
from l2rtui.ui.text import Line, Span, Tone

if TYPE_CHECKING:
    from l2rtui.domain.workload import RunSpec

MOST_LINES: Final = 40
_TONES: Final = {"+": Tone.OK, "-": Tone.BAD, "@": Tone.DIM}


async def edit(screen: Screen[None], link: Link, run: RunView, newest: Callable[[], ClusterSnapshot]) -> None:
    """Let the user edit the spec of a run, as often as it cannot be read, and ask about what differs.

    Args:
        newest: Gives the snapshot after the editor has ended.
    """
    before = await link.backend.spec(run.name)
    text = await asyncio.to_thread(_as_yaml, before)
    draft = text
    while (changed := await _in_editor(screen, link, run.name, draft)) not in (None, text):
        draft = str(changed)
        try:
            after = await asyncio.to_thread(_read, draft, before.name)
        except L2RError as error:
            question = Question("Edit it again?", lines_of([sanitize(str(error))], Tone.BAD), yes="Edit")
            if not await screen.app.push_screen_wait(ConfirmScreen(question)):
                return
        else:
            lines = difference(text, await asyncio.to_thread(_as_yaml, after))
            _ask(screen, link, run, newest(), before, after, lines)
            return
    link.background.say(f"{run.name} stays as it is.")


def difference(before: str, after: str) -> tuple[Line, ...]:
    """Lines of a unified diff."""
    found = list(difflib.unified_diff(before.splitlines(), after.splitlines(), "now", "then", n=1, lineterm=""))[2:]
    shown = [(Span(sanitize(line), _TONES.get(line[:1], Tone.PLAIN)),) for line in found[:MOST_LINES]]
    if len(found) > MOST_LINES:
        shown.append((Span(f"and {len(found) - MOST_LINES} more lines", Tone.DIM),))
    return tuple(shown)


def scaled(before: RunSpec, after: RunSpec) -> dict[str, int] | None:
    """New numbers of replicas by set where nothing else differs; None where something does."""
    found: dict[str, int] = {}
    spec = before
    for one in before.sets:
        wanted = after.set_named(one.name)
        if wanted is not None and wanted.replicas != one.replicas:
            found[one.name] = wanted.replicas
            spec = spec.with_replicas(one.name, wanted.replicas)
    return found if _as_yaml(spec) == _as_yaml(after) else None


def _ask(
    screen: Screen[None],
    link: Link,
    run: RunView,
    snapshot: ClusterSnapshot,
    before: RunSpec,
    after: RunSpec,
    lines: tuple[Line, ...],
) -> None:
    wanted = scaled(before, after)
    if not lines:
        link.background.say(f"{run.name} stays as it is.")
        return
    if wanted is None:
        ask_relaunch(screen, link, [run], snapshot, changed={run.name: after}, lines=lines)
        return
    is_admin = is_acting_for([run])
    targets = {f"{run.name}/{name}": replicas for name, replicas in wanted.items()}
    question = Question(
        f"Scale {sanitize(', '.join(targets))}?",
        (*lines, *owned_by([run])),
        yes="Scale",
        typed=typed(link, run.name if is_admin else ""),
        is_grave=True,
        command=" && ".join(twins.scale(target, to, is_admin=is_admin) for target, to in targets.items()),
    )

    async def scale() -> None:
        from l2rtui.services import launcher

        with link.background.busy(f"scaling {run.name}"):
            for name, replicas in wanted.items():
                await launcher.scale(link.backend, run.name, name, replicas)
        link.background.say(f"{run.name} is being scaled.")

    def begin() -> None:
        link.background.start(scale(), group="scale", what=f"scaling {run.name}")

    ask(screen, link, question, f"scaling {run.name}", begin)


async def _in_editor(screen: Screen[None], link: Link, name: str, text: str) -> str | None:
    """What the editor makes of a text; None where it cannot be had."""
    editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    descriptor, path = tempfile.mkstemp(prefix=f"l2rtui-{name[:40]}-", suffix=".yaml")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        # Nothing is painted while the terminal is lent; the watch goes on.
        with screen.app.batch_update(), screen.app.suspend(), link.lent():
            process = await asyncio.create_subprocess_exec(*editor, path)
            code = await process.wait()
        if code:
            raise UsageError(f"{editor[0]} ended with {code}, so nothing was changed.")
        return await asyncio.to_thread(Path(path).read_text, "utf-8")
    except SuspendNotSupported:
        link.background.say(f"This terminal cannot be lent. Use `l2rtui scale {name}/SET N`.")
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it wrote no text"
        raise UsageError(f"{editor[0]} cannot be used: {reason}.", "Set EDITOR to an editor.") from error
    finally:
        os.unlink(path)  # noqa: PTH108  (as mkstemp has it)


def _as_yaml(spec: RunSpec) -> str:
    import yaml

    from l2rtui.services.specdump import to_document

    return str(yaml.safe_dump(to_document(spec), sort_keys=False, allow_unicode=True))


def _read(text: str, name: str) -> RunSpec:
    """Read what was edited.

    Raises:
        SpecError: it is wrong, or of another name.
    """
    from l2rtui.services import specfile

    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        spec = specfile.load(file.name).spec
    if spec.name != name:
        raise SpecError(f"The run is named {name}, and that stays.", "`:launch FILE` starts another.")
    return spec
