"""The checkpoints that runs have left in a bucket or a folder: seen, compared, fetched, trained on from.

The place is the selected run's own, or one that is typed. Marking one compares it with whatever the cursor is on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.widgets import Input, Static

from l2rtui.backends.artifacts import Artifact, Artifacts
from l2rtui.domain.quantity import format_bytes
from l2rtui.domain.sanitize import sanitize
from l2rtui.errors import L2RError
from l2rtui.services import artifacts
from l2rtui.services.progress import Counter
from l2rtui.ui import twins
from l2rtui.ui.keys import Place, bindings
from l2rtui.ui.link import Link
from l2rtui.ui.screens.listing import Listing
from l2rtui.ui.screens.volumes import here
from l2rtui.ui.text import NOTHING, Line, Span, Tone, age, count
from l2rtui.ui.widgets.field import Field
from l2rtui.ui.widgets.rows import Column, Row
from l2rtui.ui.widgets.virtual_table import VirtualTable

COLUMNS: Final = (
    Column("checkpoint", "checkpoint", most=40),
    Column("run", "run", most=24),
    Column("seed", "seed", most=6, right=True),
    Column("steps", "env steps", most=14, right=True),
    Column("return", "return", most=10, right=True),
    Column("size", "size", most=8, right=True),
    Column("made", "made", most=8, right=True),
    Column("problem", "problem", most=80, rank=2),
)
_ASKED: Final = {
    "place": "Look in which place: s3://BUCKET/PREFIX, a folder, or a run?   enter look   esc back",
    "download": "Download to which folder of this machine?   enter begin   esc back",
    "resume": "Train on from it as a run of which name?   enter plan   esc back",
}
_DIFFERENCES: Final = 8
"""Rows of a comparison that are shown; the command line shows all."""


class ArtifactsScreen(Listing[tuple[str, ...] | None]):
    """Answers with the names of the runs that were launched from a checkpoint, or None.

    Args:
        place: A run or a place to begin with; empty asks for one.
    """

    PLACE = Place.ARTIFACT
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(PLACE)]
    FACES = ("space compare with",)

    def __init__(self, link: Link, place: str = "") -> None:
        table = VirtualTable(COLUMNS, empty="Asking.", clock=link.clock, id="table")
        super().__init__("artifacts", link, table, Field("field"))
        self._place = place
        self._asked = ""
        self._found: Mapping[str, Artifact] = {}
        self._store: Artifacts | None = None

    def compose(self) -> ComposeResult:
        """Title, rows, what differs, how far a transfer is, the keys."""
        with Vertical(classes="dialog wide"):
            yield Static(id="title")
            yield self._table
            yield Static(id="differences")  # or what is wrong with the chosen one
            yield Static(id="progress")
            yield Static(id="command")
            yield self._field
            yield Static(id="hint")

    def on_mount(self) -> None:
        """Look in the place that is known, or ask for one."""
        self._table.focus()
        if self._place:
            self.action_again()
        else:
            self._table.empty_text = "Name a place: a bucket, a folder, or a run that copies its checkpoints."
            self.action_elsewhere()
        self._tell()

    # --- what there is -----------------------------------------------------------------------------------------
    def action_again(self) -> None:
        """Look again."""
        if self._place:
            what = f"the checkpoints of {self._place}"
            self._link.background.start(self._look(), group="artifacts", what=what, is_exclusive=True)

    async def _look(self) -> None:
        try:
            root = await artifacts.root_of(self._link.backend, self._place)
            store = Artifacts(root)
            found = await store.list()
        except L2RError as error:
            self._table.empty_text = sanitize(f"{error.message} {error.hint}".strip())
            self._table.set_rows([])
            self._table.refresh()
            return
        if self.is_attached:
            self._store, self._found = store, {f"{one.place}/{one.name}": one for one in found}
            self._table.empty_text = f"No checkpoint lies in {sanitize(root)}."
            self._table.set_rows([_row(key, one, self._link.clock()) for key, one in self._found.items()])
            self._table.refresh()
            self._tell()

    @on(VirtualTable.CursorMoved)
    def _moved(self) -> None:
        self._tell()

    @on(VirtualTable.Rearranged)
    def _marked(self) -> None:
        self._tell()

    @property
    def _chosen(self) -> Artifact | None:
        return self._found.get(self._table.cursor_key or "")

    @property
    def _other(self) -> str:
        """The marked one that the chosen one is compared with; empty where none or several are marked."""
        marked = self._table.marked - {self._table.cursor_key}
        return next(iter(marked)) if len(marked) == 1 else ""

    def _tell(self) -> None:
        super()._tell()
        where = self._store.root if self._store is not None else self._place
        self.show("title", [(Span("Checkpoints", Tone.STRONG), Span(f"   {sanitize(where)}", Tone.DIM))])
        first, second = self._found.get(self._other), self._chosen
        if second is not None and second.problem:
            self.show("differences", [(Span(sanitize(second.problem), Tone.BAD),)])
        else:
            self.show("differences", _compared(first, second) if first is not None and second is not None else [])

    @property
    def _asking(self) -> str:
        return _ASKED.get(self._asked, "")

    @property
    def _twin(self) -> str:
        one, typed = self._table.cursor_key, self._field.value.strip()
        if self._asked == "place" or one is None:
            return twins.artifacts("ls", (typed if self._asked else "") or self._place or "PLACE")
        if self._asked == "resume":
            place = self._found[one].place if one in self._found else "PLACE"
            return twins.launch_from(place, typed or "NAME")
        if self._asked == "download":
            return twins.artifacts("get", one, "--to", typed or "FOLDER")
        return twins.artifacts("compare", self._other, one) if self._other else twins.artifacts("get", one)

    # --- what is done with one ---------------------------------------------------------------------------------
    def action_elsewhere(self) -> None:
        """Ask for another place."""
        self._ask("place", "")

    def action_download(self) -> None:
        """Ask where to."""
        if self._chosen is not None:
            self._ask("download", ".")

    def action_resume(self) -> None:
        """Ask for the name of the run that trains on."""
        if self._chosen is not None:
            self._ask("resume", f"{self._chosen.facts.get('run') or 'run'}-on")

    def _ask(self, what: str, value: str) -> None:
        self._asked = what
        self._open_field(value)

    @on(Input.Changed)
    def _typing(self) -> None:
        self._tell()

    @on(Input.Submitted)
    def _typed(self, event: Input.Submitted) -> None:
        typed, asked, one, store = event.value.strip(), self._asked, self._chosen, self._store
        self._close_field()
        if not typed:
            return
        if asked == "place":
            self._place, self._store, self._found = typed, None, {}
            self._table.empty_text = "Asking."
            self._table.set_rows([])
            self.action_again()
        elif one is not None and asked == "download" and store is not None:
            self._link.background.start(
                self._fetch(store, one, here(typed)), group="transfer", what=f"fetching {one.name}"
            )
        elif one is not None and asked == "resume":
            what = f"the plan of {typed}"
            self._link.background.start(self._plan(one, typed), group="launch", what=what, is_exclusive=True)
        self._tell()

    async def _fetch(self, store: Artifacts, one: Artifact, folder: Path) -> None:
        loop = asyncio.get_running_loop()

        def told(text: str, *, is_step: bool) -> None:  # noqa: ARG001  (a screen shows each; any thread)
            loop.call_soon_threadsafe(self._progress, text)

        self._progress(f"fetching {one.name}: {format_bytes(one.bytes)}")
        try:
            with self._link.background.busy(f"fetching {one.name}"):
                data = await store.fetch(one, folder, Counter(told, one.bytes).add)
        finally:
            loop.call_soon(self._progress, "")
        self._link.background.say(f"{data} is whole; `--set train.resume_from={folder}` begins from it.")

    async def _plan(self, one: Artifact, name: str) -> None:
        from l2rtui.services import launcher
        from l2rtui.services.specfile import Wish
        from l2rtui.ui.screens.review import show_plan

        spec = await artifacts.resumed(self._link.backend, one, name)
        prepared = await launcher.prepare(self._link.backend, Wish(spec))
        show_plan(self, self._link, prepared, twins.launch_from(one.place, name), self._reviewed)

    def _reviewed(self, launched: tuple[str, ...] | None) -> None:
        if launched:
            self.dismiss(launched)

    def _progress(self, text: str) -> None:
        if self.is_attached:
            self.show("progress", [(Span(sanitize(text), Tone.ACCENT),)] if text else [])

    def _close_field(self) -> None:
        self._asked = ""
        super()._close_field()

    def action_close(self) -> None:
        """The field first, then the dialog; at once where no place was ever named."""
        if self._asked == "place" and not self._place:
            self.dismiss(None)
        else:
            super().action_close()


def _row(key: str, one: Artifact, now: float) -> Row:
    made, reached = one.facts.get("time"), one.facts.get("eval_return")
    run, seed = str(one.facts.get("run") or NOTHING), str(one.facts.get("seed", NOTHING))
    cells = (
        Span(sanitize(one.name) if one.problem else f"{count(one.updates)} updates", Tone.STRONG),
        Span(sanitize(run)),
        Span(sanitize(seed)),
        Span(count(one.env_steps)),
        Span(f"{reached:.4g}" if isinstance(reached, int | float) else NOTHING),
        Span(format_bytes(one.bytes)),
        Span(age(max(0.0, now - made)) if isinstance(made, int | float) else NOTHING, Tone.DIM),
        Span(sanitize(one.problem), Tone.BAD),
    )
    number = float(reached) if isinstance(reached, int | float) else float("-inf")
    when = float(made) if isinstance(made, int | float) else 0.0
    sort = (one.updates, run, seed, one.env_steps, number, one.bytes, when, one.problem)
    return Row(key, cells, sort, is_fault=bool(one.problem))


def _compared(first: Artifact, second: Artifact) -> list[Line]:
    """What differs, the marked one before the one under the cursor."""
    rows = [
        row for row in artifacts.differences(first, second) if row[1] != row[2] and row[0] not in {"name", "time"}
    ]
    shown = [
        (Span(f"{sanitize(name):<14}", Tone.DIM), Span(f"{_value(one)}  →  {_value(other)}"))
        for name, one, other in rows[:_DIFFERENCES]
    ]
    more = len(rows) - _DIFFERENCES
    return [*shown, (Span(f"and {more} more", Tone.DIM),)] if more > 0 else list(shown)


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
