"""Launch form: a spec file or template, and overrides of name, seeds and slots. It only makes the plan."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Grid, Vertical
from textual.widgets import Input, Label, OptionList, Static
from textual.widgets.option_list import Option

from l2rtui.domain.placement import Pin, PlacementPolicy, parse_pins, parse_seeds
from l2rtui.domain.preflight import taken_names
from l2rtui.domain.sanitize import sanitize
from l2rtui.errors import L2RError, UsageError
from l2rtui.services import launcher
from l2rtui.services.terminal.command_lines import Words
from l2rtui.ui.dialogs.body import REST, DialogChoices
from l2rtui.ui.dialogs.dialog import Dialog
from l2rtui.ui.dialogs.review import show_plan
from l2rtui.ui.state.app_context import AppContext
from l2rtui.ui.state.spec_files import example_specs, launch_options, load_spec
from l2rtui.ui.text import Span, TextStyle
from l2rtui.ui.widgets.span_renderer import to_text

_FIELDS: Final = (
    ("spec", "spec", "path of a YAML file, or name of a template"),
    ("name", "name", "as the file says"),
    ("seeds", "seeds", "as the file says; 0-11 or 1,5,7: one run each"),
    ("policy", "policy", "as the file says; pack, spread, free-memory or least-busy"),
    ("on", "on slots", "any free; n1/0-3 or n1/3.2 or n1/0,n2/0"),
    ("wave", "waves", "all pods at once; 8: eight more once the last eight run"),
)
_MAX_DIGITS: Final = 6


@dataclass(frozen=True, slots=True)
class _Choice:
    """Decoded fields; ``command`` has the words of the equivalent command."""

    path: str
    name: str
    seeds: tuple[int, ...]
    pins: tuple[Pin, ...] | None
    policy: PlacementPolicy | None
    wave: int
    command: Words


class Examples(DialogChoices):
    """List of spec files; typing or pasting starts another path in the field below."""

    def check_consume_key(self, key: str, character: str | None) -> bool:  # noqa: ARG002  (Textual's)
        """Claim letters: otherwise one letter would close the form and the next would act on the screen below."""
        return character is not None and character.isprintable()

    def on_key(self, event: events.Key) -> None:
        """Forward a letter to the path field."""
        if event.is_printable and event.character:
            self._forward(event, event.character)

    def on_paste(self, event: events.Paste) -> None:
        """Forward the first line of a paste to the path field."""
        self._forward(event, event.text.partition("\n")[0])

    def _forward(self, event: events.Event, text: str) -> None:
        event.stop()
        if isinstance(self.screen, LaunchScreen):
            self.screen.type_path(text)


class LaunchScreen(Dialog[tuple[str, ...] | None]):
    """Form that answers with the names of the launched runs, or None; ``path`` is its first spec file."""

    def __init__(self, ctx: AppContext, path: str = "", *, is_planning: bool = False) -> None:
        super().__init__("launch")
        self._is_planning = is_planning
        self._path = path
        self._ctx = ctx

    def compose(self) -> ComposeResult:
        """Examples on top, fields below."""
        with Vertical(classes="dialog wide"):
            yield Static(id="title")
            yield Examples(id="examples", classes=REST, compact=True)
            with Grid(id="fields"):
                for field, label, placeholder in _FIELDS:
                    yield Label(label)
                    yield Input(id=field, placeholder=placeholder, compact=True)
            yield Static(id="error")
            yield Static("enter plan   tab next field   esc close", id="hint")

    async def on_mount(self) -> None:
        """Load the list of examples."""
        self.show("title", [(Span("Launch a run", TextStyle.STRONG),)])
        examples, spec = self.query_one("#examples", OptionList), self.query_one("#spec", Input)
        spec.value = self._path
        self.set_focus(spec if self._path else examples)
        specs = await asyncio.to_thread(example_specs)
        # A path longer than half of the screen shifts only its own description.
        most = self.app.size.width // 2
        width = max((len(path) for path, _ in specs if len(path) <= most), default=0)
        for path, about in specs:
            line = Span(f"{sanitize(path):<{width}}   "), Span(sanitize(about), TextStyle.DIM)
            examples.add_option(Option(to_text(self.app, [line]), id=path))
        examples.display = bool(specs)
        if not specs:
            self.set_focus(spec)
        elif not spec.value:
            examples.highlighted = 0
            if self._is_planning:
                spec.value = specs[0][0]
                self.action_accept()

    def type_path(self, text: str) -> None:
        """Replace the path with this text and focus its field."""
        field = self.query_one("#spec", Input)
        field.select_on_focus = False  # set before the focus event, which would select the text
        field.value, field.cursor_position = text, len(text)
        self.set_focus(field)

    @on(OptionList.OptionHighlighted)
    def _pointed(self, event: OptionList.OptionHighlighted) -> None:
        # The list also highlights its first entry when it is filled; that must not replace a typed path.
        if isinstance(self.focused, Examples):
            self.query_one("#spec", Input).value = event.option.id or ""

    @on(OptionList.OptionSelected)
    @on(Input.Submitted)
    def _entered(self) -> None:
        self.action_accept()

    def action_accept(self) -> None:
        """Plan the launch that the form describes."""
        self._fail("")
        self._ctx.background.start(self._plan(), group="plan", what="the plan", is_exclusive=True)

    async def _plan(self) -> None:
        try:
            choice = await asyncio.to_thread(self._read, [self._value(field) for field, _, _ in _FIELDS])
            request = await asyncio.to_thread(load_spec, choice.path, self._ctx.settings, choice.name)
            prepared = await launcher.prepare(
                self._ctx.backend,
                request,
                seeds=choice.seeds,
                pins=choice.pins,
                policy=choice.policy,
                wave=choice.wave,
            )
        except L2RError as error:
            # The form may have been closed while the plan was being made.
            if self in self.app.screen_stack:
                self._fail(str(error))
            return
        if names := taken_names(prepared.findings):
            used = {
                text
                for run in (await self._ctx.backend.snapshot()).runs.values()
                for text in (run.name, run.experiment)
            }
            name = request.free_name(choice.seeds, used)
            if self in self.app.screen_stack:
                self.query_one("#name", Input).value = name
                self._fail(f"{', '.join(names)} exists already: enter launches it as {name}.")
            return
        show_plan(self, self._ctx, prepared, self._ctx.command_line(choice.command))

    @staticmethod
    def _read(values: Sequence[str]) -> _Choice:
        """Decode the fields, find the template, and compose the equivalent command line.

        Raises:
            UsageError: a field is invalid; the sentence shows the right form.
        """
        # An empty field keeps the value of the spec file.
        path, name, seeds, chosen, on, wave = values
        if not path:
            raise UsageError("No spec file is named.", "Choose an example, or type the path of a YAML file.")
        if chosen not in ("", *PlacementPolicy):
            policies = ", ".join(PlacementPolicy)
            raise UsageError(f"{sanitize(chosen)!r} is no policy.", f"Write one of {policies}, or leave it empty.")
        if wave and not (wave.isascii() and wave.isdigit() and len(wave) < _MAX_DIGITS):
            raise UsageError(f"{sanitize(wave)!r} is no number of pods.", "Such as 8, or leave the field empty.")
        arguments = ["launch", *launch_options(path)]
        options = (("--name", name), ("--seeds", seeds), ("--on", on), ("--policy", chosen), ("--wave", wave))
        for option, value in options:
            if value:
                arguments += [option, value]
        try:
            return _Choice(
                path,
                name,
                parse_seeds(seeds) if seeds else (),
                parse_pins(on) if on else None,
                PlacementPolicy(chosen) if chosen else None,
                int(wave or 0),
                arguments,
            )
        except ValueError as error:
            raise UsageError(f"{error}.") from error

    def _value(self, field: str) -> str:
        return self.query_one(f"#{field}", Input).value.strip()

    def _fail(self, sentence: str) -> None:
        self.show("error", [(Span(sanitize(sentence), TextStyle.BAD),)])
