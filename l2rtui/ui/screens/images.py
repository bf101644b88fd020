"""Images that were built here: build one from the source tree, push one to a registry, with each layer on its way.

Closing the screen stops nothing: what runs is told of when it ends, and quitting asks.
"""

from __future__ import annotations

from collections import deque
from contextlib import aclosing
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.widgets import Input, Static

from l2rtui.backends.images.engine import Engine, LocalImage
from l2rtui.domain.quantity import format_bytes
from l2rtui.domain.sanitize import sanitize
from l2rtui.errors import L2RError
from l2rtui.services import images
from l2rtui.ui import twins
from l2rtui.ui.keys import Place, bindings
from l2rtui.ui.link import Link
from l2rtui.ui.screens.listing import Listing
from l2rtui.ui.text import NOTHING, Line, Span, Tone
from l2rtui.ui.widgets.field import Field
from l2rtui.ui.widgets.rows import Column, Row
from l2rtui.ui.widgets.virtual_table import VirtualTable

COLUMNS: Final = (
    Column("image", "image", most=60),
    Column("size", "size", most=8, right=True),
    Column("revision", "revision", most=14),
    Column("dirty", "dirty", most=5),
    Column("digest", "digest", most=80, rank=2),
)
_PUSH: Final = "Push under which name, its registry first?   enter begin   esc back"
_KEPT_STEPS: Final = 10
_FEWEST_STEPS: Final = 3
_ROWS_A_STEP: Final = 8
"""A small terminal shows fewer of them: the field and the keys are below."""


class ImagesScreen(Listing[None]):
    """One row for each name."""

    PLACE = Place.IMAGE
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(PLACE)]

    def __init__(self, link: Link) -> None:
        field = Field("name", placeholder="registry.example/lab/node:tag")
        super().__init__("images", link, VirtualTable(COLUMNS, empty="Asking.", id="table"), field)
        self._steps: deque[str] = deque(maxlen=_KEPT_STEPS)

    def compose(self) -> ComposeResult:
        """Title, rows, the last steps of what is going on, the keys."""
        with Vertical(classes="dialog wide"):
            yield Static(id="title")
            yield self._table
            yield Static(id="progress")
            yield Static(id="command")
            yield self._field
            yield Static(id="hint")

    def on_mount(self) -> None:
        """Ask the Engine."""
        self.show("title", [(Span("Images built here", Tone.STRONG),)])
        self._tell()
        self._table.focus()
        self.action_again()

    # --- what there is -----------------------------------------------------------------------------------------
    def action_again(self) -> None:
        """Ask again."""
        self._link.background.start(self._ask(), group="images", what="the images", is_exclusive=True)

    async def _ask(self) -> None:
        engine = Engine()
        try:
            await engine.open()
            found = await engine.images()
        except L2RError as error:
            self._table.empty_text = sanitize(f"{error.message} {error.hint}".strip())
            self._table.refresh()
            return
        finally:
            await engine.close()
        if self.is_attached:
            self._table.empty_text = "None was built here."
            self._table.set_rows([_row(one) for one in found])
            self._table.refresh()

    @on(VirtualTable.CursorMoved)
    def _moved(self) -> None:
        self._tell()

    @property
    def _asking(self) -> str:
        return _PUSH if self._field.display else ""

    @property
    def _twin(self) -> str:
        name = self._table.cursor_key
        return twins.image("push", name) if name is not None else twins.image("build")

    # --- build and push ----------------------------------------------------------------------------------------
    def action_build(self) -> None:
        """Build the node's image from the source tree."""
        self._link.background.start(self._build(), group="image", what="the build")

    async def _build(self) -> None:
        source = await images.find_source()
        image = images.node_image(source)
        engine = Engine()
        await engine.open()
        try:
            with self._link.background.busy(f"building {image}"):
                async with aclosing(images.build(engine, images.Recipe(source, image))) as steps:
                    async for step in steps:
                        if not isinstance(step, images.Built):
                            self._progress(step.text, is_step=step.is_step)
        finally:
            await engine.close()
        dirty = ", from a work tree that differs from its revision" if source.is_dirty else ""
        self._ended(f"built {image}{dirty}")

    def action_push(self) -> None:
        """Ask under which name."""
        if self._table.cursor_key is not None:
            self._open_field(self._table.cursor_key)

    @on(Input.Submitted)
    def _name_typed(self, event: Input.Submitted) -> None:
        name, chosen = event.value.strip(), self._table.cursor_key
        self._close_field()
        if name and chosen is not None:
            self._link.background.start(self._push(name, chosen), group="image", what=f"the push of {name}")

    async def _push(self, name: str, chosen: str) -> None:
        image = images.destination(name)
        engine = Engine()
        await engine.open()
        try:
            found = await engine.find(chosen)
            if found is not None and chosen != str(image):
                await engine.tag(found.id, image)
            with self._link.background.busy(f"pushing {image}"):
                await images.prepare_registry(image)
                pushing = images.push(engine, image, lambda: images.login_for(image.registry))
                async with aclosing(pushing) as steps:
                    async for step in steps:
                        if isinstance(step, images.Pushed):
                            self._ended(f"pushed {step.image}: {step.layers} layers, {step.present} were there")
                        else:
                            self._progress(step.text, is_step=step.is_step)
        finally:
            await engine.close()

    def _progress(self, text: str, *, is_step: bool) -> None:
        """A step keeps its line; what is a mere change of numbers has the last line until the next."""
        if is_step:
            self._steps.append(text)
        if self.is_attached:
            shown = [*self._steps] if is_step else [*self._steps, text]
            room = max(_FEWEST_STEPS, self.app.size.height // _ROWS_A_STEP)
            lines: list[Line] = [(Span(sanitize(line), Tone.DIM),) for line in shown[-room:]]
            self.show("progress", lines)

    def _ended(self, sentence: str) -> None:
        self._link.background.say(f"{sentence}.")
        if self.is_attached:
            self._progress(sentence, is_step=True)
            self.action_again()


def _row(one: LocalImage) -> Row:
    digest = one.digests[0].partition("@")[2] if one.digests else ""
    cells = (
        Span(sanitize(one.name), Tone.STRONG),
        Span(format_bytes(one.size_bytes)),
        Span(sanitize(one.revision) or NOTHING, Tone.DIM),
        Span("yes" if one.is_dirty else "no", Tone.WARN if one.is_dirty else Tone.DIM),
        Span(sanitize(digest) or NOTHING, Tone.DIM),
    )
    return Row(one.name, cells, (one.name, one.size_bytes, one.revision, one.is_dirty, digest))
