"""Launch form: a list of specs that typed letters filter, and overrides of the chosen one. It only plans."""

from __future__ import annotations

import asyncio
import shlex
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Final

from msgspec import Struct
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Grid, Horizontal, Vertical
from textual.reactive import reactive
from textual.widgets import Input, Label, Static

from l2rtui.domain.placement import Pin, PlacementPolicy, parse_pins, parse_seeds
from l2rtui.domain.preflight import taken_names
from l2rtui.domain.sanitize import sanitize
from l2rtui.errors import L2RError, UsageError
from l2rtui.services import launcher
from l2rtui.services.terminal import Words
from l2rtui.tables.column import TableColumn
from l2rtui.ui.dialogs.dialog import Dialog
from l2rtui.ui.dialogs.review import show_plan
from l2rtui.ui.keys.table import KeyContext, bindings
from l2rtui.ui.state.app_context import AppContext
from l2rtui.ui.state.placement_draft import LaunchOptions
from l2rtui.ui.state.spec_files import SpecFacts, example_specs, facts_of, launch_options, load_spec, preview_of
from l2rtui.ui.text import NOTHING, Line, Span, TextStyle, key_hints
from l2rtui.ui.widgets.table_model import Row, make_row
from l2rtui.ui.widgets.virtual_table import VirtualTable

_FIELDS: Final = (
    ("name", "name", "the file's"),
    ("seeds", "seeds", "0-11 or 1,5,7"),
    ("policy", "placement", ""),
    ("on", "slots", "any free, or n1/0-3"),
    ("wave", "batches", "all at once, or 8"),
    ("set", "settings", "train.gamma=0.9"),
)
_MAX_DIGITS: Final = 6
_LEAST_PREVIEW: Final = 20
_WIDE: Final = 116
"""Columns of the terminal from which the preview is shown beside the list."""
PlaceOpener = Callable[[LaunchOptions, Callable[[tuple[str, ...] | None, LaunchOptions], None]], None]
"""Opens place mode; the function is called with its result and what was changed there."""


class _Choice(Struct, frozen=True):
    """Decoded fields; ``command`` has the words of the equivalent command."""

    path: str
    name: str
    seeds: tuple[int, ...]
    pins: tuple[Pin, ...] | None
    policy: PlacementPolicy | None
    wave: int
    changes: tuple[str, ...]
    command: Words


class SpecTable(VirtualTable):
    """List of specs; the keys of the field above it move its cursor."""

    COLUMNS = (
        TableColumn("name", "name", most=28),
        TableColumn("method", "method", most=12),
        TableColumn("environment", "environment", most=18),
        TableColumn("pods", "pods", most=5, right=True),
        TableColumn("gpus", "needs", most=9, right=True),
        TableColumn("about", "what it is", most=90, rank=1),
    )
    EMPTY = "No spec files here: type the path of one."
    WAY_BACK = "enter reads this path."
    can_focus = False

    @property
    def is_active(self) -> bool:
        """True: enter acts on its cursor wherever the focus is."""
        return True


class PolicyChoice(Static, can_focus=True):
    """Placement policy, chosen by arrows or by its first letter; empty for the policy of the file."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("right,space", "turn(1)", show=False),
        Binding("left", "turn(-1)", show=False),
    ]
    _CHOICES = ("", *PlacementPolicy)
    value: reactive[str] = reactive("")
    of_file: reactive[str] = reactive("")

    def render(self) -> str:
        """Show the choice between arrows."""
        text = self.value or f"the file's{self.of_file and f': {self.of_file}'}"
        return f"< {sanitize(text)} >" if self.has_focus else sanitize(text)

    def action_turn(self, by: int) -> None:
        """Go to the next policy, or with -1 to the one before."""
        now = self._CHOICES.index(self.value) if self.value in self._CHOICES else 0
        self.value = str(self._CHOICES[(now + by) % len(self._CHOICES)])

    def check_consume_key(self, key: str, character: str | None) -> bool:  # noqa: ARG002  (Textual's)
        """Claim letters: otherwise they would act on the dialog."""
        return character is not None and character.isprintable()

    def on_key(self, event: events.Key) -> None:
        """Choose the policy that begins with a letter; plan by enter."""
        if event.key == "enter" and isinstance(self.screen, Dialog):
            event.stop()
            self.screen.action_accept()
        elif event.is_printable and event.character != " ":
            event.stop()
            self.value = next((own for own in self._CHOICES if own.startswith(event.character or "")), self.value)


class LaunchScreen(Dialog[tuple[str, ...] | None]):
    """Form that answers with the names of the launched runs, or None.

    Args:
        options: What its fields hold at the beginning.
        is_planning: The first spec is planned immediately.
        place: Opens place mode with the typed values; None without place mode.
    """

    BINDINGS = bindings(KeyContext.LAUNCH)

    def __init__(
        self,
        ctx: AppContext,
        options: LaunchOptions | None = None,
        *,
        is_planning: bool = False,
        place: PlaceOpener | None = None,
    ) -> None:
        super().__init__("launch")
        self._ctx = ctx
        self._options = options or LaunchOptions("")
        self._is_planning = is_planning
        self._place = place
        self._facts: dict[str, SpecFacts] = {}

    def compose(self) -> ComposeResult:
        """Yield the field of the filter, the list beside the preview, and the other fields."""
        with Vertical(classes="dialog whole"):
            yield Static(id="title")
            yield Input(id="spec", placeholder="type to filter the list, or the path of a spec file", compact=True)
            with Horizontal(id="specs"):
                yield SpecTable(id="examples")
                yield Static(id="preview", markup=False)
            with Grid(id="fields"):
                for field, label, placeholder in _FIELDS:
                    yield Label(label)
                    if field == "policy":
                        yield PolicyChoice(id=field)
                    else:
                        yield Input(id=field, placeholder=placeholder, compact=True)
            yield Static(id="error")
            yield Static(id="hint")

    def on_mount(self) -> None:
        """Fill the fields, and read the specs."""
        self.show("title", [(Span("Launch a run", TextStyle.STRONG),)])
        self._hint()
        self._fill(self._options)
        self.set_focus(self.query_one("#spec", Input))
        self._ctx.background.start(self._read_specs(), group="specs", what="the spec files", is_exclusive=True)

    def on_resize(self, event: events.Resize) -> None:
        """Show the preview where it has room."""
        self.query_one("#preview").display = event.size.width >= _WIDE
        self.call_after_refresh(self._show_chosen)

    def _fill(self, options: LaunchOptions) -> None:
        self.query_one("#spec", Input).value = options.path
        values = (
            options.name,
            options.seeds,
            options.policy,
            options.on,
            options.wave,
            shlex.join(options.changes),
        )
        for (field, _, _), value in zip(_FIELDS, values, strict=True):
            if field == "policy":
                self.query_one(PolicyChoice).value = value
            else:
                self.query_one(f"#{field}", Input).value = value

    async def _read_specs(self) -> None:
        """List the specs by name, then with their facts, which takes longer."""
        specs = await asyncio.to_thread(example_specs)
        if not self.is_open:
            return
        table = self.query_one(SpecTable)
        table.set_rows([_spec_row(path, about, None) for path, about in specs])
        self._narrow()
        if self._is_planning and specs:
            self.action_accept()
        paths = [path for path, _ in specs]
        self._facts = await asyncio.to_thread(lambda: facts_of(paths, self._ctx.settings))
        if self.is_open:
            table.set_rows([_spec_row(path, about, self._facts.get(path)) for path, about in specs])
            self._show_chosen()

    # --- the list ----------------------------------------------------------------------------------------------
    def on_key(self, event: events.Key) -> None:
        """Move in the list from the field above it."""
        table, focused = self.query_one(SpecTable), self.focused
        moves = {"up": -1, "down": 1}
        pages = {"pageup": -1, "pagedown": 1}
        if focused is None or focused.id != "spec" or event.key not in (*moves, *pages):
            return
        event.stop()
        if event.key in moves:
            table.action_move(moves[event.key])
        else:
            table.action_page(pages[event.key])

    @on(Input.Changed, "#spec")
    def _narrow(self) -> None:
        text = self._value("spec")
        table = self.query_one(SpecTable)
        # A path of the list chooses its row; another one filters by the name of its file, as the list shows it.
        is_path = "/" in text or text.endswith((".yaml", ".yml"))
        table.narrow(text="" if text in table.model.rows else Path(text).stem if is_path else text)
        if text in table.model.rows:
            table.move_to(text)
        self._show_chosen()

    @on(VirtualTable.CursorMoved)
    def _show_chosen(self) -> None:
        """Show the spec under the cursor, and its values as placeholders."""
        path = self._path
        facts = self._facts.get(path)
        self.show("preview", _preview(path, self.query_one("#preview").content_size.width))
        self.query_one("#name", Input).placeholder = facts.name if facts else "the file's"
        seeds = facts.seeds if facts else ""
        self.query_one("#seeds", Input).placeholder = f"{seeds}; 0-11 or 1,5,7" if seeds else "0-11 or 1,5,7"
        self.query_one(PolicyChoice).of_file = facts.policy if facts else ""

    @on(VirtualTable.Chosen)
    @on(Input.Submitted)
    def _entered(self, event: VirtualTable.Chosen | Input.Submitted) -> None:
        event.stop()
        self.action_accept()

    @property
    def _path(self) -> str:
        """The spec that was typed, if it is one, otherwise the one under the cursor of the list."""
        typed = self._value("spec")
        chosen = self.query_one(SpecTable).cursor_key
        if not typed or typed == chosen:
            return chosen or ""
        is_named = launch_options(typed)[0] == "-t" or Path(typed).expanduser().is_file()
        return typed if is_named or chosen is None else chosen

    # --- next steps ------------------------------------------------------------------------------------------
    @property
    def options(self) -> LaunchOptions:
        """The options as typed so far."""
        name, seeds, policy, slots, wave, changes = (self._value(field) for field, _, _ in _FIELDS)
        return LaunchOptions(
            self._path, name, seeds, policy=policy, on=slots, wave=wave, changes=_changes_in(changes)
        )

    def action_place(self) -> None:
        """Go to place mode with everything that was typed; esc there comes back."""
        if self._place is None:
            return
        self._fail("")
        try:
            options = self.options
            self._read([self._path, *(self._value(field) for field, _, _ in _FIELDS)])
        except L2RError as error:
            self._fail(str(error))
            return
        self._place(options, self._placed)

    def _placed(self, launched: tuple[str, ...] | None, options: LaunchOptions) -> None:
        if launched:
            self.dismiss(launched)
        else:
            self._fill(options)

    def action_accept(self) -> None:
        """Plan the launch that the form describes."""
        self._fail("")
        self.show("hint", [(Span("planning …   esc close", TextStyle.WAIT),)])
        self._ctx.background.start(self._plan(), group="plan", what="the plan", is_exclusive=True)

    async def _plan(self) -> None:
        try:
            values = [self._path, *(self._value(field) for field, _, _ in _FIELDS)]
            choice = await asyncio.to_thread(self._read, values)
            request = await asyncio.to_thread(
                load_spec, choice.path, self._ctx.settings, choice.name, choice.changes
            )
            prepared = await launcher.prepare(
                self._ctx.backend,
                request,
                seeds=choice.seeds,
                pins=choice.pins,
                policy=choice.policy,
                wave=choice.wave,
            )
            if names := taken_names(prepared.findings):
                runs = (await self._ctx.backend.snapshot()).runs.values()
                name = request.free_name(
                    choice.seeds, {text for run in runs for text in (run.name, run.experiment)}
                )
                verb = "exists" if len(names) == 1 else "exist"
                self._fail(f"{', '.join(names)} {verb} already: enter launches as {name}.")
                if self.is_open:
                    self.query_one("#name", Input).value = name
                return
        except L2RError as error:
            self._fail(str(error))  # which does nothing if the form was closed meanwhile
            return
        self._hint()
        show_plan(self, self._ctx, prepared, self._ctx.command_line(choice.command))

    @staticmethod
    def _read(values: Sequence[str]) -> _Choice:
        """Decode the fields, find the template, and compose the equivalent command line.

        Raises:
            UsageError: a field is invalid; the sentence shows the right form.
        """
        # An empty field keeps the value of the spec file.
        path, name, seeds, chosen, on, wave, settings = values
        if not path:
            raise UsageError("No spec file is named.", "Choose an example, or type the path of a YAML file.")
        if chosen not in ("", *PlacementPolicy):
            policies = ", ".join(PlacementPolicy)
            raise UsageError(f"{sanitize(chosen)!r} is no policy.", f"Write one of {policies}, or leave it empty.")
        if wave and not (wave.isascii() and wave.isdigit() and len(wave) < _MAX_DIGITS):
            raise UsageError(f"{sanitize(wave)!r} is no number of pods.", "Such as 8, or leave the field empty.")
        changes = _changes_in(settings)
        arguments = ["launch", *launch_options(path)]
        options = (("--name", name), ("--seeds", seeds), ("--on", on), ("--policy", chosen), ("--wave", wave))
        for option, value in (*options, *(("--set", change) for change in changes)):
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
                changes,
                arguments,
            )
        except ValueError as error:
            raise UsageError(f"{error}.") from error

    def _value(self, field: str) -> str:
        widget = self.query_one(f"#{field}")
        return widget.value.strip() if isinstance(widget, Input | PolicyChoice) else ""

    def _hint(self) -> None:
        place = ["ctrl+g place"] if self._place is not None else []
        hints = ["enter plan", "↑ ↓ choose", "tab field", *place, "esc close"]
        self.show("hint", key_hints(hints, self.app.size.width, has_button=True))

    def _fail(self, sentence: str) -> None:
        self.show("error", [(Span(sanitize(sentence), TextStyle.BAD),)])
        self._hint()


def _changes_in(text: str) -> tuple[str, ...]:
    """Return the settings of a field, separated by spaces; quotes keep a space.

    Raises:
        UsageError: a quote is not closed.
    """
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"settings {sanitize(text)!r}: {str(error).lower()}.", "Close the quote.") from error


def _spec_row(path: str, about: str, facts: SpecFacts | None) -> Row:
    name = Path(path).stem
    unknown = Span(NOTHING if facts is None else "", TextStyle.FAINT)
    values = [facts.method, facts.environment] if facts else ["", ""]
    return make_row(
        path,
        (Span(sanitize(name), TextStyle.STRONG), name),
        *((Span(sanitize(text)) if text else unknown, text) for text in values),
        (Span(str(facts.pods)) if facts else unknown, facts.pods if facts else 0),
        (Span(facts.gpus) if facts else unknown, facts.gpus if facts else ""),
        (Span(sanitize(about), TextStyle.DIM), about),
    )


def _preview(path: str, width: int) -> list[Line]:
    """Lines of a spec, with its comments wrapped."""
    lines: list[Line] = []
    for text in map(sanitize, preview_of(path) if path else ()):
        if text.startswith("# ") and width > _LEAST_PREVIEW:
            comment = textwrap.wrap(text, width, subsequent_indent="# ", break_on_hyphens=False)
            lines += [(Span(row, TextStyle.DIM),) for row in comment]
        else:
            lines.append((Span(text, TextStyle.DIM if text.startswith("#") else TextStyle.PLAIN),))
    return lines
