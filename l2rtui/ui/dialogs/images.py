"""Dialog of images built here: build one from the source tree, push one to a registry, with progress by layer.

Closing the dialog stops nothing: a notification reports the end of a build or push, and quitting asks while one is
running.
"""

from __future__ import annotations

from collections import deque
from contextlib import aclosing
from datetime import datetime
from typing import Final

from textual import on
from textual.widgets import Input

from l2rtui.cloud.images.engine import ImageEngine, LocalImage
from l2rtui.domain.sanitize import sanitize
from l2rtui.errors import L2RError
from l2rtui.services import images
from l2rtui.tables.artifacts import IMAGES, local_image_document
from l2rtui.ui.dialogs.list_dialog import ListDialog
from l2rtui.ui.keys.table import KeyContext, bindings
from l2rtui.ui.state.app_context import AppContext
from l2rtui.ui.text import Line, Span, TextStyle
from l2rtui.ui.widgets.prompt_input import PromptInput
from l2rtui.ui.widgets.table_model import Row, columns_of, row_of

_PUSH: Final = "Push under which name, its registry first?   enter begin   esc back"
_MAX_STEPS: Final = 10
_MIN_STEPS: Final = 3
_ROWS_A_STEP: Final = 8
"""Terminal rows per line of progress: the input field and the hint need the space below."""


class ImagesScreen(ListDialog[None]):
    """Images, one row for each name."""

    KEY_CONTEXT = KeyContext.IMAGE
    BINDINGS = bindings(KEY_CONTEXT)
    ROW_ACTIONS = frozenset(("push",))

    def __init__(self, ctx: AppContext) -> None:
        field = PromptInput("name", placeholder="registry.example/lab/node:tag")
        super().__init__("images", ctx, columns_of(IMAGES), field)
        self._steps: deque[str] = deque(maxlen=_MAX_STEPS)

    _title = (Span("Images built here", TextStyle.STRONG),)
    _subject = "the images"

    async def _load(self) -> None:
        engine = ImageEngine()
        try:
            await engine.open()
            images_here = await engine.images()
        except L2RError as error:
            self._show_error(error)
            return
        finally:
            await engine.close()
        if self.is_open:
            self._show_rows([_row(image) for image in images_here], empty="None was built here.")

    @property
    def _command_line(self) -> str:
        name = self._table.cursor_key
        return self._ctx.command_line(("image", *(("build",) if name is None else ("push", name))))

    def action_build(self) -> None:
        """Build the runtime image from the source tree."""
        self._ctx.background.start(self._build(), group="image", what="the build")

    async def _build(self) -> None:
        # Uses a separate connection: refreshing the list closes its own, and a build may still be running.
        source = await images.find_source()
        image = images.node_image(source)
        engine = ImageEngine()
        await engine.open()
        try:
            with self._ctx.background.busy(f"building {image}"):
                async with aclosing(images.build(engine, images.Recipe(source, image))) as steps:
                    async for step in steps:
                        if not isinstance(step, images.Built):
                            self._progress(step.text, is_step=step.is_step)
        finally:
            await engine.close()
        dirty = ", from a work tree that differs from its revision" if source.is_dirty else ""
        self._ended(f"built {image}{dirty}")

    def action_push(self) -> None:
        """Ask for the name to push under."""
        if self._table.cursor_key is not None:
            self._ask(_PUSH, self._table.cursor_key)

    @on(Input.Submitted)
    def _name_typed(self, event: Input.Submitted) -> None:
        name, chosen = event.value.strip(), self._table.cursor_key
        self._close_field()
        if name and chosen is not None:
            self._ctx.background.start(self._push(name, chosen), group="image", what=f"the push of {name}")

    async def _push(self, name: str, chosen: str) -> None:
        image = images.destination(name)
        engine = ImageEngine()
        await engine.open()
        try:
            source = await engine.find(chosen)
            # The Engine pushes by name: for another name, tag the same image.
            if source is not None and chosen != str(image):
                await engine.tag(source.id, image)
            with self._ctx.background.busy(f"pushing {image}"):
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
        """Show a step on a separate line; an update of numbers replaces the last line until the next report."""
        if is_step:
            self._steps.append(text)
        if self.is_open:
            steps = [*self._steps] if is_step else [*self._steps, text]
            room = max(_MIN_STEPS, self.app.size.height // _ROWS_A_STEP)
            lines: list[Line] = [(Span(sanitize(line), TextStyle.DIM),) for line in steps[-room:]]
            self.show("progress", lines)

    def _ended(self, sentence: str) -> None:
        self._ctx.background.say(f"{sentence}.")
        if self.is_open:
            self._progress(sentence, is_step=True)
            self.action_again()


def _seconds(created: str) -> float:
    """Return a time of the Engine in seconds since the epoch; 0 for an unknown time."""
    try:
        return max(0.0, datetime.fromisoformat(created).timestamp())
    except (ValueError, OverflowError):
        return 0.0


def _row(image: LocalImage) -> Row:
    built = Span("", TextStyle.DIM), -_seconds(image.created)
    return row_of(IMAGES, image.name, local_image_document(image), built=built)
