"""Dialog of the simulators of one worker: state, restart, signal, camera image."""

from __future__ import annotations

from itertools import groupby

from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.reactive import reactive
from textual.strip import Strip
from textual.widgets import Input, Static

from l2rtui.domain.quantity import age
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.simulator import UPPER, CameraImage, CellRows, Simulator, to_cells
from l2rtui.domain.snapshot import PodView
from l2rtui.domain.status import Level
from l2rtui.errors import L2RError
from l2rtui.services import simulators
from l2rtui.tables.resources import SIMULATORS, SimulatorRow, simulator_level
from l2rtui.ui.dialogs.confirm import Question
from l2rtui.ui.dialogs.dialog import Dialog
from l2rtui.ui.dialogs.list_dialog import ListDialog
from l2rtui.ui.dialogs.questions import ask, is_acting_for, may_touch, owned_by
from l2rtui.ui.keys import cli_equivalents
from l2rtui.ui.keys.table import KeyContext, bindings
from l2rtui.ui.state.app_context import AppContext
from l2rtui.ui.text import Line, Span, TextStyle, key_hints, status_text, style_of_level
from l2rtui.ui.widgets.prompt_input import PromptInput
from l2rtui.ui.widgets.span_renderer import SpanWidget, is_plain
from l2rtui.ui.widgets.table_model import Row, columns_of, row_of


class CameraImageView(SpanWidget):
    """Cells of an image, centred; the owner scales them to ``size``."""

    rows: reactive[CellRows] = reactive(())

    def render_line(self, y: int) -> Strip:
        """One line of cells, centred."""
        width = self.size.width
        if y >= len(self.rows):
            return self.strip((), width)
        cells = self.rows[y]
        margin = Segment(" " * max(0, (width - len(cells)) // 2), self.rich_style)
        if is_plain(self.app) or self.app.no_color:
            return Strip([margin, Segment("".join(cell.shade for cell in cells), self.rich_style)])
        # Equal adjacent cells share one segment: each segment costs the terminal an escape sequence.
        groups = groupby(cells, key=lambda cell: (cell.upper, cell.lower))
        pieces = [
            Segment(UPPER * len(list(same)), Style(color=Color.from_rgb(*upper), bgcolor=Color.from_rgb(*lower)))
            for (upper, lower), same in groups
        ]
        return Strip([margin, *pieces]).adjust_cell_length(width, self.rich_style)


class SimulatorsScreen(ListDialog[None]):
    """Simulators, one row each; ``target`` selects exactly their pod on the command line."""

    KEY_CONTEXT = KeyContext.SIMULATOR
    BINDINGS = bindings(KEY_CONTEXT)
    PANELS = ("tail",)

    def __init__(self, ctx: AppContext, pod: PodView, target: str) -> None:
        self._target = target
        field = PromptInput("signal", placeholder="signal: name or number, such as USR1")
        super().__init__("simulators", ctx, columns_of(SIMULATORS), field)
        self._pod = pod
        self._simulators: tuple[Simulator, ...] = ()

    @property
    def _title(self) -> Line:
        return (Span(f"Simulators of {sanitize(self._pod.name)}", TextStyle.STRONG),)

    @property
    def _subject(self) -> str:
        return f"the simulators of {self._pod.name}"

    async def _load(self) -> None:
        try:
            self._simulators = await simulators.status(self._ctx.backend, self._pod)
        except L2RError as error:
            if self.is_open:
                self._show_error(error)
            return
        if self.is_open:
            rows = [_row(simulator) for simulator in self._simulators]
            self._show_rows(rows, empty="This pod's process drives no simulators now.")
            self._update_texts()

    def _update_texts(self) -> None:
        simulator = self._chosen
        tail = simulator.tail if simulator is not None else ()
        self.show("tail", [(Span(sanitize(line), TextStyle.DIM),) for line in tail])
        super()._update_texts()

    @property
    def _chosen(self) -> Simulator | None:
        key = self._table.cursor_key
        return next((simulator for simulator in self._simulators if str(simulator.index) == key), None)

    @property
    def _command_line(self) -> str:
        return self._command("status")

    def _command(self, what: str, signal: str = "") -> str:
        simulator = self._chosen
        # `status` lists all simulators of the pod and takes no index.
        index = simulator.index if simulator is not None and what != "status" else 0
        is_admin = what in ("restart", "signal") and is_acting_for([self._pod])
        words = cli_equivalents.simulator(what, self._target, index, signal_name=signal, is_admin=is_admin)
        return self._ctx.command_line(words, row=self._pod)

    # --- actions -----------------------------------------------------------------------------------
    def action_restart(self) -> None:
        """Ask for confirmation, then stop the simulator; its worker starts a new one."""
        simulator = self._chosen
        if simulator is not None and may_touch(self._ctx, "restart", [self._pod]):
            self._question("Restart", simulator, "restart", "Its episode is lost, and is not learned from.")

    def action_send(self) -> None:
        """Ask for the signal to send."""
        if self._chosen is not None and may_touch(self._ctx, "signal", [self._pod]):
            self._ask()

    @on(Input.Submitted)
    def _signal_typed(self, event: Input.Submitted) -> None:
        simulator, name = self._chosen, event.value.strip()
        self._close_field()
        if simulator is not None and name:
            self._question("Signal", simulator, "signal", f"It gets {sanitize(name.upper())}.", name)

    def _question(self, verb: str, simulator: Simulator, what: str, sentence: str, signal: str = "") -> None:
        name = f"simulator {simulator.index} of {self._pod.name}"
        is_admin = is_acting_for([self._pod])
        question = Question(
            f"{verb} {sanitize(name)}?",
            ((Span(sentence, TextStyle.DIM),), *owned_by([self._pod])),
            yes=verb,
            typed=self._ctx.protected_for([self._pod]) or (self._pod.name if is_admin else ""),
            is_grave=True,
            command=self._command(what, signal),
        )

        async def act() -> None:
            if signal:
                await simulators.send_signal(self._ctx.backend, self._pod, signal, simulator.index)
            else:
                await simulators.restart(self._ctx.backend, self._pod, simulator.index)
            self._ctx.background.say(f"asked: {what} of {name}")
            if self.is_open:
                self.action_again()

        def begin() -> None:
            self._ctx.background.start(act(), group="simulator", what=f"the {what} of {name}")

        ask(self, self._ctx, question, f"{what} of {name}", begin)

    def action_look(self) -> None:
        """Show the image of its camera."""
        if self._chosen is not None:
            self.app.push_screen(FrameScreen(self._ctx, self._pod, self._chosen.index, self._target))


class FrameScreen(Dialog[None]):
    """One camera image, as large as the terminal allows; ``r`` takes another."""

    # Only `r`: the other keys of this context act on the list below.
    BINDINGS = bindings(KeyContext.SIMULATOR, "simulator.again")

    def __init__(self, ctx: AppContext, pod: PodView, index: int, target: str) -> None:
        self._target = target
        super().__init__("frame")
        self._ctx = ctx
        self._pod = pod
        self._index = index
        self._view = CameraImageView(id="picture")
        self._picture: CameraImage | None = None

    def compose(self) -> ComposeResult:
        """The image under its title."""
        with Vertical(classes="dialog whole"):
            yield Static(id="title")
            yield self._view
            yield Static(id="hint")

    def on_mount(self) -> None:
        """Request the first image."""
        name = f"simulator {self._index} of {sanitize(self._pod.name)}"
        again = self._ctx.keys.face("simulator.again")
        self.show("title", [(Span(f"What {name} sees", TextStyle.STRONG),)])
        hints = [f"{again} again", "esc close", f"c copies {self._command_line}"]
        self.show("hint", key_hints(hints, self.app.size.width))
        self.action_again()

    @property
    def _command_line(self) -> str:
        return self._ctx.command_line(cli_equivalents.simulator("frame", self._target, self._index), row=self._pod)

    def action_again(self) -> None:
        """Request another image."""
        what = f"the camera of {self._pod.name}"
        self._ctx.background.start(self._take(), group="frame", what=what, is_exclusive=True)

    async def _take(self) -> None:
        self._picture = await simulators.frame(self._ctx.backend, self._pod, self._index)
        if self.is_open:
            self._draw()

    def on_resize(self) -> None:
        """Scale the image to the new size."""
        # The view gets its own size only with the next layout.
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        width, height = self._view.size
        if self._picture is not None and width and height:
            self._view.rows = tuple(to_cells(self._picture, width, height))

    def action_copy(self) -> None:
        """Copy the command line."""
        self._ctx.background.copy(self._command_line)


def _row(simulator: Simulator) -> Row:
    level = simulator_level(simulator.state)
    state = status_text(sanitize(simulator.state) or "unknown", level)
    return row_of(
        SIMULATORS,
        str(simulator.index),
        SimulatorRow("", simulator),
        is_fault=level in (Level.WARN, Level.BAD),
        state=(Span(state, style_of_level(level)), simulator.state),
        uptime=(Span(age(simulator.uptime_seconds), TextStyle.DIM), simulator.uptime_seconds),
    )
