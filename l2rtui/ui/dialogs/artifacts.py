"""Dialog of the checkpoints in a bucket or a folder: list, compare, download, resume training.

The root is the place of the selected run, or a typed one. A marked checkpoint is compared with the one under the
cursor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from textual import on
from textual.widgets import Input

from l2rtui.cloud.artifacts import Artifact, Artifacts
from l2rtui.domain.quantity import age, format_bytes
from l2rtui.domain.sanitize import sanitize
from l2rtui.errors import L2RError
from l2rtui.services import artifacts
from l2rtui.services.volumes import Counter
from l2rtui.tables.artifacts import ARTIFACTS
from l2rtui.ui.dialogs.list_dialog import ListDialog
from l2rtui.ui.dialogs.volumes import local_path
from l2rtui.ui.keys import cli_equivalents
from l2rtui.ui.keys.table import KeyContext, bindings
from l2rtui.ui.state.app_context import AppContext
from l2rtui.ui.text import NOTHING, Line, Span, TextStyle, count
from l2rtui.ui.widgets.prompt_input import PromptInput
from l2rtui.ui.widgets.table_model import Row, columns_of, row_of

_PLACE: Final = "Look in which place: s3://BUCKET/PREFIX, a folder, or a run?   enter look   esc back"
_DOWNLOAD: Final = "Download to which folder of this machine?   enter begin   esc back"
_RESUME: Final = "Train on from it as a run of which name?   enter plan   esc back"
_DIFFERENCES: Final = 8
"""Maximum number of differences shown; the command line shows all."""


class ArtifactsScreen(ListDialog[tuple[str, ...] | None]):
    """Returns the names of the runs launched from a checkpoint; an empty root asks for one."""

    KEY_CONTEXT = KeyContext.ARTIFACT
    BINDINGS = bindings(KEY_CONTEXT)
    ROW_HINTS = ("space compare with",)
    ROW_ACTIONS = frozenset(("download", "resume"))
    PANELS = ("differences", "progress")

    def __init__(self, ctx: AppContext, root: str = "") -> None:
        super().__init__("artifacts", ctx, columns_of(ARTIFACTS), PromptInput("field"))
        self._root = root
        self._artifacts: Mapping[str, Artifact] = {}
        self._store: Artifacts | None = None

    def _begin(self) -> None:
        """List the given root, or ask for one."""
        if self._root:
            self.action_again()
        else:
            self._table.empty_text = "Name a place: a bucket, a folder, or a run that copies its checkpoints."
            self.action_elsewhere()

    # --- what there is -----------------------------------------------------------------------------------------
    @property
    def _title(self) -> Line:
        root = self._store.root if self._store is not None else self._root
        return (Span("Checkpoints", TextStyle.STRONG), Span(f"   {sanitize(root)}", TextStyle.DIM))

    @property
    def _subject(self) -> str:
        return f"the checkpoints of {self._root}"

    def action_again(self) -> None:
        """List the root again, if there is one."""
        if self._root:
            super().action_again()

    async def _load(self) -> None:
        try:
            root = await artifacts.root_of(self._ctx.backend, self._root)
            store = Artifacts(root)
            listed = await store.list()
        except L2RError as error:
            self._table.set_rows([])
            self._show_error(error)
            return
        if self.is_open:
            self._store = store
            self._artifacts = {f"{artifact.location}/{artifact.name}": artifact for artifact in listed}
            rows = [_row(key, artifact, self._ctx.clock()) for key, artifact in self._artifacts.items()]
            self._show_rows(rows, empty=f"No checkpoint lies in {sanitize(root)}.")
            self._update_texts()

    @property
    def _chosen(self) -> Artifact | None:
        return self._artifacts.get(self._table.cursor_key or "")

    @property
    def _other(self) -> str:
        """Key of the only other marked checkpoint; empty if none or several are marked."""
        marked = self._table.marked - {self._table.cursor_key}
        return next(iter(marked)) if len(marked) == 1 else ""

    def _update_texts(self) -> None:
        super()._update_texts()
        first, second = self._artifacts.get(self._other), self._chosen
        if second is not None and second.problem:
            self.show("differences", [(Span(sanitize(second.problem), TextStyle.BAD),)])
        else:
            self.show("differences", _compared(first, second) if first is not None and second is not None else [])

    @property
    def _command_line(self) -> str:
        # While the field is open, the command follows its text, so that it can be copied before anything starts.
        key, typed = self._table.cursor_key, self._field.value.strip()
        if self._prompt == _PLACE or key is None:
            return self._ctx.command_line(("artifacts", "ls", typed or self._root or "PLACE"))
        if self._prompt == _RESUME:
            place = self._artifacts[key].location if key in self._artifacts else "PLACE"
            return self._ctx.command_line(cli_equivalents.launch_from(place, typed or "NAME"))
        if self._prompt == _DOWNLOAD:
            return self._ctx.command_line(("artifacts", "get", key, "--to", typed or "FOLDER"))
        what = ("compare", self._other) if self._other else ("get",)
        return self._ctx.command_line(("artifacts", *what, key))

    # --- actions ---------------------------------------------------------------------------------
    def action_elsewhere(self) -> None:
        """Ask for another root."""
        self._ask(_PLACE)

    def action_download(self) -> None:
        """Ask for the folder to download to."""
        if self._chosen is not None:
            self._ask(_DOWNLOAD, ".")

    def action_resume(self) -> None:
        """Ask for the name of the run that resumes from the checkpoint."""
        if self._chosen is not None:
            self._ask(_RESUME, f"{self._chosen.facts.get('run') or 'run'}-on")

    @on(Input.Submitted)
    def _typed(self, event: Input.Submitted) -> None:
        typed, prompt, artifact, store = event.value.strip(), self._prompt, self._chosen, self._store
        self._close_field()
        if not typed:
            return
        if prompt == _PLACE:
            # Rows of the old root must not take actions while the new one is being listed.
            self._root, self._store, self._artifacts = typed, None, {}
            self._table.empty_text = "Loading…"
            self._table.set_rows([])
            self.action_again()
        elif artifact is not None and prompt == _DOWNLOAD and store is not None:
            work = self._fetch(store, artifact, local_path(typed))
            self._ctx.background.start(work, group="transfer", what=f"fetching {artifact.name}")
        elif artifact is not None and prompt == _RESUME:
            what = f"the plan of {typed}"
            self._ctx.background.start(self._plan(artifact, typed), group="launch", what=what, is_exclusive=True)
        self._update_texts()

    async def _fetch(self, store: Artifacts, artifact: Artifact, folder: Path) -> None:
        # Downloads run in threads, and widgets belong to the event loop's thread.
        loop = asyncio.get_running_loop()

        def report(text: str, *, is_step: bool) -> None:  # noqa: ARG001  (a screen shows each; any thread)
            loop.call_soon_threadsafe(self._show_progress, text)

        self._show_progress(f"fetching {artifact.name}: {format_bytes(artifact.bytes)}")
        try:
            with self._ctx.background.busy(f"fetching {artifact.name}"):
                data = await store.fetch(artifact, folder, Counter(report, artifact.bytes).add)
        finally:
            # Scheduled after the reports of threads; otherwise the last report would stay on the screen.
            loop.call_soon(self._show_progress, "")
        self._ctx.background.say(f"{data} is whole; `--set train.resume_from={folder}` begins from it.")

    async def _plan(self, artifact: Artifact, name: str) -> None:
        # Imported here: the launcher and the review screen cost start-up time that most sessions never need.
        from l2rtui.services import launcher
        from l2rtui.services.spec.spec_file import LaunchRequest
        from l2rtui.ui.dialogs.review import show_plan

        spec = await artifacts.resumed(self._ctx.backend, artifact, name)
        prepared = await launcher.prepare(self._ctx.backend, LaunchRequest(spec))
        command = self._ctx.command_line(cli_equivalents.launch_from(artifact.location, name))
        show_plan(self, self._ctx, prepared, command)

    def action_close(self) -> None:
        """Close the input field if it is open, otherwise the dialog; before a root was given, close the dialog
        directly.
        """
        if self._prompt == _PLACE and not self._root:
            self.dismiss(None)
        else:
            super().action_close()


def _row(key: str, artifact: Artifact, now: float) -> Row:
    made, reached = artifact.facts.get("time"), artifact.facts.get("eval_return")
    run, seed = str(artifact.facts.get("run") or NOTHING), str(artifact.facts.get("seed", NOTHING))
    # The manifest comes from inside a run: a field may be missing or of any type, and sort values must compare.
    created = float(made) if isinstance(made, int | float) else None
    eval_return = float(reached) if isinstance(reached, int | float) else float("-inf")
    name = sanitize(artifact.name) if artifact.problem else f"{count(artifact.updates)} updates"
    return row_of(
        ARTIFACTS,
        key,
        artifact,
        is_fault=bool(artifact.problem),
        checkpoint=(Span(name, TextStyle.STRONG), artifact.updates),
        run=(Span(sanitize(run)), run),
        seed=(Span(sanitize(seed)), seed),
        problem=(Span(sanitize(artifact.problem), TextStyle.BAD), artifact.problem),
        made=(Span(NOTHING if created is None else age(max(0.0, now - created)), TextStyle.DIM), created or 0.0),
        **{"return": (Span(f"{reached:.4g}" if isinstance(reached, int | float) else NOTHING), eval_return)},
    )


def _compared(first: Artifact, second: Artifact) -> list[Line]:
    """Return the differences: value of the marked checkpoint, then value of the one under the cursor."""
    rows = [
        row for row in artifacts.differences(first, second) if row[1] != row[2] and row[0] not in {"name", "time"}
    ]
    lines = [
        (Span(f"{sanitize(name):<14}", TextStyle.DIM), Span(f"{_value(value)}  →  {_value(other)}"))
        for name, value, other in rows[:_DIFFERENCES]
    ]
    more = len(rows) - _DIFFERENCES
    return [*lines, (Span(f"and {more} more", TextStyle.DIM),)] if more > 0 else list(lines)


def _value(value: object) -> str:
    match value:
        case None:
            return NOTHING
        case bool() | str():
            return sanitize(str(value))[:60]
        case int():
            return count(value)
        case float():
            return f"{value:.6g}"
    return sanitize(str(value))[:60]
