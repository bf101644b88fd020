"""The launch form: a spec file, and what a person may want otherwise than it says. Nothing is created here."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import Final

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Grid, Vertical
from textual.widgets import Input, Label, OptionList, Static
from textual.widgets.option_list import Option

from l2rtui.domain.placement import Pin, Policy, parse_pins, parse_seeds
from l2rtui.domain.sanitize import sanitize
from l2rtui.errors import L2RError, UsageError
from l2rtui.services import launcher, specfile
from l2rtui.ui.link import Link
from l2rtui.ui.screens.dialog import Dialog
from l2rtui.ui.screens.review import show_plan
from l2rtui.ui.specfiles import example_specs
from l2rtui.ui.text import Span, Tone
from l2rtui.ui.widgets.paint import text_of

_FIELDS: Final = (
    ("spec", "spec file", "path of a YAML file"),
    ("name", "name", "as the file says"),
    ("seeds", "seeds", "as the file says; 0-11 or 1,5,7: one run each"),
    ("policy", "policy", "as the file says; pack fills one device after the other, spread goes round all"),
    ("on", "on slots", "any free; n1/0-3 or n1/3.2 or n1/0,n2/0"),
)


class Examples(OptionList):
    """Spec files to choose from; a letter or a paste is the beginning of another path."""

    def check_consume_key(self, key: str, character: str | None) -> bool:  # noqa: ARG002  (Textual's)
        """Letters are no keys here: one of them would close the form, and the next be one of the screen's below."""
        return character is not None and character.isprintable()

    def on_key(self, event: events.Key) -> None:
        """Hand a letter on."""
        if event.is_printable and event.character:
            self._hand_on(event, event.character)

    def on_paste(self, event: events.Paste) -> None:
        """Hand a paste on."""
        self._hand_on(event, event.text.partition("\n")[0])

    def _hand_on(self, event: events.Event, text: str) -> None:
        event.stop()
        if isinstance(self.screen, LaunchScreen):
            self.screen.type_path(text)


class LaunchScreen(Dialog[tuple[str, ...] | None]):
    """Answers with the names of the launched runs, or None.

    Args:
        path: The spec file to begin with.
    """

    def __init__(self, link: Link, path: str = "") -> None:
        super().__init__("launch")
        self._path = path
        self._link = link

    def compose(self) -> ComposeResult:
        """Examples on top, fields below."""
        with Vertical(classes="dialog wide"):
            yield Static("Launch a run", id="title")
            yield Examples(id="examples", compact=True)
            with Grid(id="fields"):
                for field, label, placeholder in _FIELDS:
                    yield Label(label)
                    yield Input(id=field, placeholder=placeholder, compact=True)
            yield Static(id="error")
            yield Static("enter plan   tab next field   esc close", id="hint")

    async def on_mount(self) -> None:
        """List the examples."""
        examples, spec = self.query_one("#examples", OptionList), self.query_one("#spec", Input)
        spec.value = self._path
        self.set_focus(spec if self._path else examples)
        found = await asyncio.to_thread(example_specs)
        for path, about in found:
            line = (Span(sanitize(str(path)), Tone.PLAIN), Span(f"   {sanitize(about)}", Tone.DIM))
            examples.add_option(Option(text_of(self.app, [line]), id=str(path)))
        examples.display = bool(found)
        if not found:
            self.set_focus(spec)
        elif not spec.value:
            examples.highlighted = 0

    def type_path(self, text: str) -> None:
        """Begin a path in the field for it."""
        field = self.query_one("#spec", Input)
        field.select_on_focus = False  # it has been typed into before it hears of its focus
        field.value, field.cursor_position = text, len(text)
        self.set_focus(field)

    @on(OptionList.OptionHighlighted)
    def _pointed(self, event: OptionList.OptionHighlighted) -> None:
        if isinstance(self.focused, Examples):
            self.query_one("#spec", Input).value = event.option.id or ""

    @on(OptionList.OptionSelected)
    @on(Input.Submitted)
    def _entered(self) -> None:
        self.action_accept()

    def action_accept(self) -> None:
        """Plan with what the form says."""
        self._fail("")
        self._link.background.start(self._plan(), group="plan", what="the plan", is_exclusive=True)

    async def _plan(self) -> None:
        try:
            words, seeds, pins, policy = self._read()
            path, name = self._value("spec"), self._value("name")
            wish = await asyncio.to_thread(_load, path, name)
            prepared = await launcher.prepare(self._link.backend, wish, seeds=seeds, pins=pins, policy=policy)
        except L2RError as error:
            if self in self.app.screen_stack:
                self._fail(str(error))
            return
        show_plan(self, self._link, prepared, words, self._reviewed)

    def _read(self) -> tuple[str, tuple[int, ...], tuple[Pin, ...] | None, Policy | None]:
        """The fields, and the command line that says the same.

        Raises:
            UsageError: a field cannot be read; the sentence shows the right form.
        """
        path, name, seeds, chosen, on = (self._value(field) for field, _, _ in _FIELDS)
        if not path:
            raise UsageError("No spec file is named.", "Choose an example, or type the path of a YAML file.")
        if chosen not in ("", *Policy):
            raise UsageError(f"{sanitize(chosen)!r} is no policy.", "Write pack or spread, or leave it empty.")
        words = ["l2rtui", "launch", "-f", path]
        options = (("--name", name), ("--seeds", seeds), ("--on", on), ("--policy", chosen))
        for option, value in options:
            if value:
                words += [option, value]
        try:
            return (
                shlex.join(words),
                parse_seeds(seeds) if seeds else (),
                parse_pins(on) if on else None,
                Policy(chosen) if chosen else None,
            )
        except ValueError as error:
            raise UsageError(f"{error}.") from error

    def _value(self, field: str) -> str:
        return self.query_one(f"#{field}", Input).value.strip()

    def _fail(self, sentence: str) -> None:
        self.show("error", [(Span(sanitize(sentence), Tone.BAD),)])

    def _reviewed(self, launched: tuple[str, ...] | None) -> None:
        if launched:
            self.dismiss(launched)


def _load(path: str, name: str) -> specfile.Wish:
    return specfile.load(str(Path(path).expanduser()), name=name)
