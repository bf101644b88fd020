"""The simulators of one worker: how each is, a restart, a signal, and what its camera sees."""

from __future__ import annotations

from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.widgets import Input, Static

from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import PodView
from l2rtui.domain.status import Level
from l2rtui.services import pictures, simulators
from l2rtui.services.simulators import Picture, Simulator
from l2rtui.ui import twins
from l2rtui.ui.keys import Place, bindings
from l2rtui.ui.link import Link
from l2rtui.ui.screens.asking import ask, is_acting_for, may_touch, owned_by, typed
from l2rtui.ui.screens.confirm import Question
from l2rtui.ui.screens.dialog import Dialog
from l2rtui.ui.screens.listing import Listing
from l2rtui.ui.text import NOTHING, Line, Span, Tone, age, count, status_text, tone_of
from l2rtui.ui.widgets.field import Field
from l2rtui.ui.widgets.picture import PictureView
from l2rtui.ui.widgets.pod_table import simulator_level
from l2rtui.ui.widgets.rows import Column, Row
from l2rtui.ui.widgets.virtual_table import VirtualTable

COLUMNS: Final = (
    Column("index", "no.", most=4, right=True),
    Column("state", "state", most=14),
    Column("restarts", "restarts", most=8, right=True),
    Column("fps", "fps", most=6, right=True),
    Column("uptime", "up", most=6, right=True),
    Column("kind", "kind", most=12, rank=2),
    Column("error", "last error", most=400),
)


class SimulatorsScreen(Listing[None]):
    """One row for each."""

    PLACE = Place.SIMULATOR
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(PLACE)]

    def __init__(self, link: Link, pod: PodView) -> None:
        field = Field("signal", placeholder="signal: name or number, such as USR1")
        super().__init__("simulators", link, VirtualTable(COLUMNS, empty="Asking.", id="table"), field)
        self._pod = pod
        self._found: tuple[Simulator, ...] = ()

    def compose(self) -> ComposeResult:
        """Title, rows, the last lines of the selected one, the keys."""
        with Vertical(classes="dialog wide"):
            yield Static(id="title")
            yield self._table
            yield Static(id="tail")
            yield Static(id="command")
            yield self._field
            yield Static(id="hint")

    def on_mount(self) -> None:
        """Ask."""
        self.show("title", [(Span(f"Simulators of {sanitize(self._pod.name)}", Tone.STRONG),)])
        self._tell()
        self._table.focus()
        self.action_again()

    # --- how they are ------------------------------------------------------------------------------------------
    def action_again(self) -> None:
        """Ask how they are."""
        self._link.background.start(
            self._ask(), group="simulators", what=f"the simulators of {self._pod.name}", is_exclusive=True
        )

    async def _ask(self) -> None:
        try:
            self._found = await simulators.status(self._link.backend, self._pod)
        finally:
            if self.is_attached:
                self._table.empty_text = "This pod's process drives no simulators now."
                self._table.set_rows([_row(one) for one in self._found])
                self._table.refresh()
                self._tell()

    @on(VirtualTable.CursorMoved)
    def _moved(self) -> None:
        self._tell()

    def _tell(self) -> None:
        one = self._chosen
        lines: list[Line] = [(Span(sanitize(line), Tone.DIM),) for line in one.tail] if one is not None else []
        self.show("tail", lines)
        super()._tell()

    @property
    def _chosen(self) -> Simulator | None:
        return next((one for one in self._found if str(one.index) == self._table.cursor_key), None)

    @property
    def _twin(self) -> str:
        return self._command("status")

    def _command(self, what: str, signal: str = "") -> str:
        one = self._chosen
        index = one.index if one is not None and what != "status" else 0
        is_admin = what in ("restart", "signal") and is_acting_for([self._pod])
        return twins.simulator(what, self._pod.name, index, signal_name=signal, is_admin=is_admin)

    # --- what is done to one -----------------------------------------------------------------------------------
    def action_restart(self) -> None:
        """Ask whether it is to be ended, so that its worker starts another."""
        one = self._chosen
        if one is not None and may_touch(self._link, "restart", [self._pod]):
            self._question("Restart", one, "restart", "Its episode is lost, and is not learned from.")

    def action_send(self) -> None:
        """Ask for a signal."""
        if self._chosen is not None and may_touch(self._link, "signal", [self._pod]):
            self._open_field()

    @on(Input.Submitted)
    def _signal_typed(self, event: Input.Submitted) -> None:
        one, name = self._chosen, event.value.strip()
        self._close_field()
        if one is not None and name:
            self._question("Signal", one, "signal", f"It gets {sanitize(name.upper())}.", name)

    def _question(self, verb: str, one: Simulator, what: str, sentence: str, signal: str = "") -> None:
        name = f"simulator {one.index} of {self._pod.name}"
        is_admin = is_acting_for([self._pod])
        question = Question(
            f"{verb} {sanitize(name)}?",
            ((Span(sentence, Tone.DIM),), *owned_by([self._pod])),
            yes=verb,
            typed=typed(self._link, self._pod.name if is_admin else ""),
            is_grave=True,
            command=self._command(what, signal),
        )

        async def act() -> None:
            if signal:
                await simulators.send_signal(self._link.backend, self._pod, signal, one.index)
            else:
                await simulators.restart(self._link.backend, self._pod, one.index)
            self._link.background.say(f"asked: {what} of {name}")
            if self.is_attached:
                self.action_again()

        def begin() -> None:
            self._link.background.start(act(), group="simulator", what=f"the {what} of {name}")

        ask(self, self._link, question, f"{what} of {name}", begin)

    def action_look(self) -> None:
        """What its camera sees."""
        if self._chosen is not None:
            self.app.push_screen(FrameScreen(self._link, self._pod, self._chosen.index))


class FrameScreen(Dialog[None]):
    """One camera image, as large as the terminal allows; ``r`` takes another."""

    BINDINGS: ClassVar[list[BindingType]] = [
        binding for binding in bindings(Place.SIMULATOR) if binding.id == "simulator.again"
    ]

    def __init__(self, link: Link, pod: PodView, index: int) -> None:
        super().__init__("frame")
        self._link = link
        self._pod = pod
        self._index = index
        self._view = PictureView(id="picture")
        self._picture: Picture | None = None

    def compose(self) -> ComposeResult:
        """The image under its title."""
        with Vertical(classes="dialog whole"):
            yield Static(id="title")
            yield self._view
            yield Static(id="hint")

    def on_mount(self) -> None:
        """Take an image."""
        name = f"simulator {self._index} of {sanitize(self._pod.name)}"
        again = self._link.keys.face("simulator.again")
        self.show("title", [(Span(f"What {name} sees", Tone.STRONG),)])
        self.show("hint", [(Span(f"{again} again   esc close   c copies {self._twin}", Tone.DIM),)])
        self.action_again()

    @property
    def _twin(self) -> str:
        return twins.simulator("frame", self._pod.name, self._index)

    def action_again(self) -> None:
        """Take another image."""
        self._link.background.start(
            self._take(), group="frame", what=f"the camera of {self._pod.name}", is_exclusive=True
        )

    async def _take(self) -> None:
        self._picture = await simulators.frame(self._link.backend, self._pod, self._index)
        if self.is_attached:
            self._draw()

    def on_resize(self) -> None:
        """Fit the image anew."""
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        width, height = self._view.size
        if self._picture is not None and width and height:
            self._view.rows = tuple(pictures.cells(self._picture, width, height))

    def action_copy(self) -> None:
        """Copy the command line."""
        self.app.copy_to_clipboard(self._twin)
        self._link.background.say(f"copied: {self._twin}")


def _row(one: Simulator) -> Row:
    level = simulator_level(one.state)
    cells = (
        Span(str(one.index), Tone.STRONG),
        Span(status_text(sanitize(one.state) or "unknown", level), tone_of(level)),
        Span(str(one.restarts) if one.restarts else NOTHING, Tone.WARN if one.restarts else Tone.DIM),
        Span(count(round(one.fps))),
        Span(age(one.uptime_seconds), Tone.DIM),
        Span(sanitize(one.kind) or NOTHING, Tone.DIM),
        Span(sanitize(one.error) or NOTHING, Tone.WARN if one.error else Tone.DIM),
    )
    sort = (one.index, one.state, one.restarts, one.fps, one.uptime_seconds, one.kind, one.error)
    return Row(str(one.index), cells, sort, is_fault=level in (Level.WARN, Level.BAD))
