"""The table of keys is the truth: each entry is bound, does something, and is grey when the app is read-only."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from textual.color import Color

from l2rtui.domain.node import GpuUse
from l2rtui.ui.app import L2RApp
from l2rtui.ui.dialogs.artifacts import ArtifactsScreen
from l2rtui.ui.dialogs.dialog import DetailScreen, Dialog
from l2rtui.ui.dialogs.help import COMMANDS_HEADING, FILTERS_HEADING, GREYED, help_lines
from l2rtui.ui.dialogs.images import ImagesScreen
from l2rtui.ui.dialogs.launch import LaunchScreen
from l2rtui.ui.dialogs.simulators import SimulatorsScreen
from l2rtui.ui.dialogs.volumes import VolumesScreen
from l2rtui.ui.home.command_line import PromptMode
from l2rtui.ui.home.pane_sizes import ScreenState
from l2rtui.ui.home.screen import ClusterScreen
from l2rtui.ui.keys.palette import COMMANDS, changing_actions
from l2rtui.ui.keys.table import BAR, KEYS, KeyContext, KeyTable, bindings
from l2rtui.ui.overviews.experiments import ExperimentsScreen
from l2rtui.ui.overviews.history import HistoryScreen
from l2rtui.ui.overviews.owners import OwnersScreen
from l2rtui.ui.placing.screen import PlaceScreen
from l2rtui.ui.saved_files import screen_strips
from l2rtui.ui.widgets.bars import KeyBar, fitting
from l2rtui.ui.widgets.charts import ChartView
from l2rtui.ui.widgets.gpu_grid import GpuGrid
from l2rtui.ui.widgets.grid.shape import ZoomLevel
from l2rtui.ui.widgets.log_pane import LogPane
from l2rtui.ui.widgets.virtual_table import VirtualTable

OWNERS = {
    KeyContext.CLUSTER: ClusterScreen,
    KeyContext.GRID: GpuGrid,
    KeyContext.TABLE: VirtualTable,
    KeyContext.LOG: LogPane,
    KeyContext.CHARTS: ChartView,
    KeyContext.PLACEMENT: PlaceScreen,
    KeyContext.DIALOG: Dialog,
    KeyContext.SIMULATOR: SimulatorsScreen,
    KeyContext.VOLUME: VolumesScreen,
    KeyContext.IMAGE: ImagesScreen,
    KeyContext.ARTIFACT: ArtifactsScreen,
    KeyContext.EXPERIMENT: ExperimentsScreen,
    KeyContext.OWNER: OwnersScreen,
    KeyContext.HISTORY: HistoryScreen,
    KeyContext.TEXT: DetailScreen,
    KeyContext.LAUNCH: LaunchScreen,
    KeyContext.APP: L2RApp,
}
TABLE = KeyTable()


class Hand:
    """The keys of one open app, tried one after the other: each starts from the same home screen."""

    def __init__(self, desk) -> None:
        self.desk = desk

    @property
    def panes(self):
        return self.desk.cluster.panes

    @property
    def log(self):
        return self.panes.log_pane

    def has_said(self, text: str) -> bool:
        return any(text in sentence for sentence in self.desk.says())

    def shows(self, top: str, text: str) -> bool:
        return self.desk.top == top and text in self.desk.words()

    def asks(self, mode: PromptMode) -> bool:
        line = self.desk.cluster.command_line
        return line.is_open and line.prompt.mode is mode

    def row(self, pane: str = "pods") -> int:
        table = getattr(self.panes, pane)
        return table.model.displayed.index(table.cursor_key)

    async def home(self) -> None:
        """Undo what a key has done, by keys where that is one, until the home screen is as at the start."""
        one, cluster, panes = self.desk, self.desk.cluster, self.panes
        while one.top != "ClusterScreen" or cluster.command_line.is_open:
            await one.press("escape")
        if self.log.search:
            await one.press("5", "escape")
        if panes.zoomed is not None:
            await one.press("escape")
        while len(panes.logs.controllers) > 1:
            await one.press("5", "x")
        await one.press(*["o"] * cluster.content.is_mine_only, *["A"] * cluster.content.has_all_pods)
        if cluster.sizes.state != ScreenState():
            await one.press("equals_sign")
        if panes.pods.model.faults_only or panes.pods.marked:
            await one.press("3", "escape")
        panes.pods.model.sort_by(None)
        panes.pods.move_to(panes.pods.model.displayed[0])
        panes.slots.move_to(next(iter(cluster.snapshot.ledger.slots)))
        panes.runs.action_cell(-9)
        panes.runs.move_to(cluster.snapshot.run_named(MY_RUN).uid)
        log, controller = self.log, panes.logs.controllers[0]
        if log.is_wrapping or log.has_times or log.pan or not log.is_following:
            await one.press("5", *["w"] * log.is_wrapping, *["t"] * log.has_times, "h", "G")
        if controller.since or controller.is_previous:
            controller.since, controller.is_previous = 0, False
            controller.reload()
        if panes.focused_pane != "runs":
            await one.press("2")
        one.app.clear_notifications()
        one.app.copy_to_clipboard("")
        await one.until(lambda: len(log.ring) == LOG_LINES and not one.app.background.doing, "the whole log")
        assert (cluster.focused.id, self.row("runs"), self.row()) == ("runs", 1, 0)

    async def has_effect(self, name: str, before: list[str], effect: Callable[[], object]) -> None:
        """Press the keys that prepare it, then the key itself: its own effect comes, and was not there."""
        await self.desk.press(*before)
        await self.desk.pilot.pause()
        key = next(key for key in KEYS if key.id == name)
        assert not effect(), f"{key.id}: nothing to be seen of the key, its effect is there without it"
        await self.desk.press(key.keys.split(",")[0])
        await self.desk.until(effect, f"the effect of {key.face} ({key.id})")


LOG_LINES = 15
"""Of the three pods of the run of the small lab."""
MY_RUN = "racing-sac-s0"


def effects_on_the_cluster_screen(hand: Hand) -> dict[str, tuple[list[str], Callable[[], object]]]:
    """Return for each key of the whole screen what must have happened before it, and what it does."""
    one, panes, cluster = hand.desk, hand.panes, hand.desk.cluster

    def top(name: str) -> tuple[list[str], Callable[[], object]]:
        return [], lambda: one.top == name

    def focus(pane: str, before: Sequence[str] = ()) -> tuple[list[str], Callable[[], object]]:
        return list(before), lambda: panes.focused_pane == pane

    heights = cluster.sizes.state.heights
    height, width = panes.runs.outer_size.height, panes.slots.outer_size.width
    worker = f"{MY_RUN}-w-0"
    return {
        "run.place": top("PlaceScreen"),
        "run.launch": top("LaunchScreen"),
        "pod.kill": (["3", "down"], lambda: hand.shows("ConfirmScreen", f"Kill {worker}?")),
        "run.destroy": ([], lambda: hand.shows("ConfirmScreen", f"Destroy {MY_RUN}?")),
        "run.relaunch": ([], lambda: hand.shows("ConfirmScreen", f"Relaunch {MY_RUN}?")),
        "set.grow": ([], lambda: hand.shows("ConfirmScreen", "from 2 to 3")),
        "set.shrink": ([], lambda: hand.shows("ConfirmScreen", "from 2 to 1")),
        "run.edit": ([], lambda: hand.has_said(f"Use `l2rtui --backend demo scale {MY_RUN}/SET N`")),
        "pod.attach": (["3", "down"], lambda: hand.has_said("has no standard input") and panes.zoomed == "log"),
        "pod.signal": (["3", "down"], lambda: hand.asks(PromptMode.SIGNAL)),
        "pod.forward": (["3", "down"], lambda: hand.asks(PromptMode.FORWARD)),
        "view.forwards": ([], lambda: hand.shows("DetailScreen", "forward")),
        "pod.simulators": (["3", "down"], lambda: hand.shows("SimulatorsScreen", worker)),
        "view.volumes": top("VolumesScreen"),
        "view.images": top("ImagesScreen"),
        "view.artifacts": top("ArtifactsScreen"),
        "view.experiments": top("ExperimentsScreen"),
        "view.owners": top("OwnersScreen"),
        "view.history": top("HistoryScreen"),
        "pod.shell": (
            ["3", "down"],
            lambda: hand.has_said(f"cannot be lent. Use `l2rtui --backend demo exec {worker}"),
        ),
        "log.show": focus("log"),
        "log.split": ([], lambda: len(panes.logs.controllers) == 2 and panes.focused_pane == "runs"),
        "log.previous": ([], lambda: panes.logs.active.is_previous and panes.focused_pane == "log"),
        "view.filter": ([], lambda: hand.asks(PromptMode.FILTER)),
        "view.command": ([], lambda: hand.asks(PromptMode.COMMAND)),
        "view.detail": ([], lambda: hand.shows("DetailScreen", MY_RUN)),
        "view.faults": ([], lambda: panes.pods.model.faults_only and not panes.runs.model.displayed),
        "view.mine": (
            [],
            lambda: [cluster.snapshot.runs[uid].name for uid in panes.runs.model.displayed] == [MY_RUN],
        ),
        "view.all": ([], lambda: len(panes.pods.model.displayed) == 4),
        "view.spec": ([], lambda: hand.shows("DetailScreen", "kind: learner-workers")),
        "view.zoom": ([], lambda: panes.zoomed == "runs"),
        "view.menu": ([], lambda: hand.shows("MenuScreen", f"l2rtui --backend demo destroy {MY_RUN}")),
        "view.copy": ([], lambda: one.app.clipboard == f"l2rtui --backend demo logs {MY_RUN} -f"),
        "view.cancel": ([], lambda: hand.has_said("nothing to undo")),
        "pane.slots": focus("slots"),
        "pane.runs": focus("runs", ["3"]),
        "pane.pods": focus("pods"),
        "pane.nodes": focus("nodes"),
        "pane.log": focus("log"),
        "pane.events": focus("events"),
        "pane.leaks": focus("leaks"),
        "pane.charts": focus("charts"),
        "pane.next": focus("pods", ["3", "2"]),
        "pane.last": focus("slots"),
        "size.taller": ([], lambda: panes.runs.outer_size.height == height + 1),
        "size.lower": ([], lambda: panes.runs.outer_size.height == height - 1),
        "size.wider": ([], lambda: panes.slots.outer_size.width == width + 2),
        "size.narrower": ([], lambda: panes.slots.outer_size.width == width - 2),
        "size.usual": (["right_curly_bracket"], lambda: cluster.sizes.state.heights == heights),
        "view.older": focus("pods", ["3", "4"]),
        "view.newer": focus("nodes", ["3", "4", "left_square_bracket"]),
        "view.toggle": focus("runs", ["4"]),
        "view.refresh": ([], lambda: hand.has_said("refreshed")),
        "view.back": (["z"], lambda: panes.zoomed is None),
        "app.help": top("HelpScreen"),
        "app.palette": top("CommandPalette"),
        "app.suspend": ([], lambda: hand.has_said("There is no shell to go back to")),
    }


def effects_in_the_grid(hand: Hand) -> dict[str, tuple[list[str], Callable[[], object]]]:
    one, grid = hand.desk, hand.panes.slots

    def at(slot: str, *before: str) -> tuple[list[str], Callable[[], object]]:
        return list(before), lambda: str(grid.cursor_slot) == slot

    return {
        "grid.left": at("phortx1/0.0", "right"),
        "grid.right": at("phortx1/0.1"),
        "grid.up": at("phortx1/0.0", "down"),
        "grid.down": at("phortx2/0.0"),
        "grid.next_gpu": at("phortx1/1.0"),
        "grid.last_gpu": at("phortx1/0.0", "w"),
        "grid.first": at("phortx1/0.0", "right"),
        "grid.end": at("phortx2/3.3"),
        "grid.nearer": (["less_than_sign"], lambda: grid.shown_level is ZoomLevel.GPU),
        "grid.farther": ([], lambda: grid.shown_level is ZoomLevel.NODE),
        "grid.enter": (
            ["right"],
            lambda: one.cluster.focused.id == "pods" and hand.panes.pods.cursor_key in one.cluster.snapshot.pods,
        ),
    }


def effects_in_a_table(hand: Hand) -> dict[str, tuple[list[str], Callable[[], object]]]:
    panes = hand.panes
    pods, model = panes.pods, panes.pods.model
    return {
        "table.up": (["down"], lambda: hand.row() == 0),
        "table.down": ([], lambda: hand.row() == 1),
        "table.page_up": (["down", "down"], lambda: hand.row() == 0),
        "table.page_down": ([], lambda: hand.row() == 2),
        "table.first": (["down", "down"], lambda: hand.row() == 0),
        "table.end": ([], lambda: hand.row() == 2),
        "table.enter": ([], lambda: panes.focused_pane == "log"),
        "table.cell_left": (["2", "right"], lambda: panes.runs.cursor_set == ""),
        "table.cell_right": (["2"], lambda: panes.runs.cursor_set == "learner"),
        "table.mark_all": ([], lambda: pods.marked == set(model.displayed)),
        "table.mark": ([], lambda: pods.marked == {model.displayed[0]} and hand.row() == 1),
        "table.sort": ([], lambda: model.sort_column == 0 and not model.is_descending),
        "table.turn": (["full_stop"], lambda: model.sort_column == 0 and model.is_descending),
    }


def effects_in_the_log(hand: Hand) -> dict[str, tuple[list[str], Callable[[], object]]]:
    panes, log = hand.panes, hand.log
    first = panes.logs.controllers[0]
    search = ["slash", "e", "n", "v", "enter"]
    before = log.log_filter.json_as
    return {
        "log.follow": ([], lambda: not log.is_following),
        "log.wrap": ([], lambda: log.is_wrapping),
        "log.times": ([], lambda: log.has_times),
        "log.since": ([], lambda: first.selection.since_seconds == 60.0),
        "log.since_back": ([], lambda: first.selection.since_seconds == 86_400.0),
        "log.include": ([], lambda: hand.asks(PromptMode.INCLUDE)),
        "log.exclude": ([], lambda: hand.asks(PromptMode.EXCLUDE)),
        "log.json": ([], lambda: log.log_filter.json_as is not before),
        "log.save": ([], lambda: hand.asks(PromptMode.SAVE)),
        "log.close": (["vertical_line"], lambda: len(panes.logs.controllers) == 1),
        "log.next": ([*search, "n"], lambda: log.log_search.line == 1),
        "log.last": ([*search, "n", "n"], lambda: log.log_search.line == 0),
        "log.up": ([], lambda: not log.is_following and log.top_row == log.last_top_row - 1),
        "log.down": (["g"], lambda: log.top_row == 1),
        "log.page_up": ([], lambda: not log.is_following and log.top_row < log.last_top_row - 1),
        "log.page_down": (["g"], lambda: log.top_row > 1),
        "log.left": (["right"], lambda: log.pan == 0),
        "log.right": ([], lambda: log.pan > 0),
        "log.first": ([], lambda: log.top_row == 0),
        "log.end": (["g"], lambda: log.is_following),
        "log.marker": ([], lambda: sum(entry.is_mark for entry in log.ring) == 1),
    }


def effects_in_the_charts(hand: Hand) -> dict[str, tuple[list[str], Callable[[], object]]]:
    charts = hand.panes.charts
    before = charts.settings
    return {
        "charts.axis": ([], lambda: charts.settings.axis is not before.axis),
        "charts.smooth": ([], lambda: charts.settings.smoothing != before.smoothing),
        "charts.group": ([], lambda: charts.is_grouped),
        "charts.window": ([], lambda: charts.settings.window != before.window),
    }


NEED_CURVES = {key.id for key in KEYS if key.context is KeyContext.CHARTS and "cursor" in key.action} | {
    "charts.alone", "charts.alone_back", "charts.first", "charts.end",
}  # fmt: skip
"""Keys of the charts that move over curves, of which the small lab has none: test_charts.py."""


def test_ids_are_unique_and_every_action_is_defined_where_its_key_works():
    assert len({key.id for key in KEYS}) == len(KEYS)
    for key in KEYS:
        assert hasattr(OWNERS[key.context], f"action_{key.action.partition('(')[0]}"), key


@pytest.mark.parametrize("place", list(KeyContext))
def test_no_key_stands_twice_in_one_place(place):
    pressed = [one for key in TABLE.of(place) for one in key.keys.split(",")]
    assert len(pressed) == len(set(pressed))


def test_bindings_come_from_the_table():
    bound = {(binding.id, binding.key, binding.action) for place in KeyContext for binding in bindings(place)}
    plain = {(key.id, key.keys, key.action) for key in KEYS if "%" not in key.action}
    digits = {
        (f"{key.id}.{digit}", digit, key.action.replace("%", digit))
        for key in KEYS
        if "%" in key.action
        for digit in key.keys.split(",")
    }
    assert bound == plain | digits
    assert TABLE.pressed("L").id == "run.launch"
    assert TABLE.pressed("no such key") is None
    assert TABLE.pressed("f", KeyContext.LOG).id == "log.follow"


def test_nothing_needs_a_function_key_or_a_control_shift_chord():
    for key in KEYS:
        for one in key.keys.split(","):
            assert not (one.startswith("f") and one[1:].isdigit())
            assert not one.startswith("ctrl+shift")


def test_the_help_screen_shows_the_whole_table():
    text = "\n".join("".join(span.text for span in line) for line in help_lines(TABLE, lambda _: ""))
    assert all(key.tooltip in text for key in KEYS)
    assert all(command.tooltip in text for command in COMMANDS)
    assert "off: " not in text
    grey = "\n".join("".join(span.text for span in line) for line in help_lines(TABLE, lambda _: "a reason"))
    assert grey.count("off: a reason") == sum(len(TABLE.of(place)) for place in GREYED)


def test_the_help_screen_names_a_page_under_each_heading_that_is_there():
    lines = ["".join(span.text for span in line) for line in help_lines(TABLE, lambda _: "")]
    for heading in (*KeyContext, COMMANDS_HEADING, FILTERS_HEADING):
        page = next(line.removeprefix(heading) for line in lines if line.startswith(f"{heading}   docs/"))
        name, _, anchor = page.strip().partition("#")
        text = Path(__file__).parents[3].joinpath(name).read_text("utf-8")
        assert not anchor or f"\n## {anchor.replace('-', ' ').capitalize()}" in text, page


ENTERING = {
    KeyContext.CLUSTER: ("2", effects_on_the_cluster_screen),
    KeyContext.GRID: ("1", effects_in_the_grid),
    KeyContext.TABLE: ("3", effects_in_a_table),
    KeyContext.LOG: ("5", effects_in_the_log),
    KeyContext.CHARTS: ("8", effects_in_the_charts),
}
"""The key that goes to a context, and the effects of its keys."""
PARTS = 4
IN_PARTS = [
    (context, part)
    for context in ENTERING
    for part in range(PARTS if context is KeyContext.CLUSTER else 2 if context is KeyContext.LOG else 1)
]
"""One app would do for a context, but takes long: the keys of the whole screen are dealt out to four."""
LEAVING = {"app.quit", "app.quit_always"}


@pytest.mark.slow
@pytest.mark.timeout(600)  # many keys in one app
@pytest.mark.parametrize(
    ("context", "part"), IN_PARTS, ids=lambda value: getattr(value, "name", str(value)).lower()
)
async def test_every_key_has_its_own_effect(desk, context, part, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # A terminal in which the log is longer than its pane and lines are longer than the pane is wide.
    async with desk(size=(124, 34)) as one:
        hand = Hand(one)
        await hand.home()
        entering, effects_of = ENTERING[context]
        effects = effects_of(hand)
        wanted = {key.id for key in KEYS if key.context is context or (context, key.context) == FOR_THE_APP}
        # What app.redraw changes is on the terminal alone: test_terminal.py.
        assert effects.keys() == wanted - LEAVING - NEED_CURVES - {"app.redraw"}
        parts = sum(own is context for own, _ in IN_PARTS)
        for name in list(effects)[part::parts]:
            await hand.home()
            await one.press(entering)
            await hand.has_effect(name, *effects[name])


FOR_THE_APP = KeyContext.CLUSTER, KeyContext.APP


@pytest.mark.parametrize("key", ["q", "ctrl+q", "ctrl+c"])
async def test_keys_that_leave_the_app_end_it(desk, key):
    async with desk(size=(80, 24), ready=False) as one:
        if key != "q":
            await one.press("m")  # from everywhere, in a dialog too
        await one.press(key)
        await one.until(lambda: one.has_left, "the end of the app")
        assert one.app.return_code == 0


def effects_of_placing(place, one) -> dict[str, tuple[list[str], Callable[[], object]]]:
    editor, view = place.editor, place.view

    def seats() -> int:
        return len(editor.draft.seats)

    def fills(*devices: str) -> tuple[list[str], Callable[[], object]]:
        def is_there() -> bool:
            slots = [slot for seat in editor.draft.seats.values() for slot in seat.slots]
            return sorted(f"{slot.node}/{slot.gpu}" for slot in slots) == sorted(devices)

        return [], is_there

    return {
        "place.put": ([], lambda: seats() == 1),
        "place.pack": fills(*["phortx1/1"] * 4),
        "place.spread": fills("phortx1/1", "phortx1/2", "phortx1/3", "phortx2/0"),
        "place.memory": fills("phortx1/2", "phortx1/3", "phortx2/0", "phortx2/1"),
        "place.busy": fills("phortx1/1", "phortx1/3", "phortx2/0", "phortx2/1"),
        "place.plan": (["a"], lambda: one.top == "ReviewScreen"),
        "place.seeds": ([], lambda: view.prompt.display and "Seeds" in view.question),
        "place.replicas": (["tab"], lambda: [each.replicas for each in editor.draft.sets] == [1, 1, 1]),
        "place.set": ([], lambda: editor.set_number == 1),
        "place.set_back": ([], lambda: editor.set_number == 2),
        "place.range": ([], lambda: view.range_start == view.grid.cursor_slot is not None),
        "place.range_gpu": ([], lambda: len(view.pointed()) == 4),
        "place.form": ([], lambda: one.top == "LaunchScreen"),
        "place.move": (["space"], lambda: view.moving == view.grid.cursor_slot is not None),
        "place.undo": (["space"], lambda: seats() == 0),
        "place.clear": (["a"], lambda: seats() == 0),
        "place.spec": ([], lambda: "second" in editor.options.path),
        "place.name": ([], lambda: view.prompt.display and "Name" in view.question),
        "place.help": ([], lambda: one.top == "HelpScreen"),
        "place.copy": (["a"], lambda: one.app.clipboard.startswith("l2rtui --backend demo launch")),
        "place.leave": ([], lambda: one.top == "ClusterScreen"),
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_every_key_of_place_mode_has_its_own_effect(desk, tmp_path, monkeypatch):
    for name in ("first", "second"):
        spec = f"kind: learner-workers\nname: {name}\nworkers: [{{name: w, replicas: 2}}, {{name: v}}]\n"
        (tmp_path / "manifests").mkdir(exist_ok=True)
        (tmp_path / "manifests" / f"{name}.yaml").write_text(spec, "utf-8")
    monkeypatch.chdir(tmp_path)
    async with desk() as one:
        hand = Hand(one)
        # Full is not busy: the second device of phortx1 has little memory left, the third computes.
        node, full = (await one.backend.snapshot()).nodes["phortx1"], 80 << 30
        uses = [GpuUse(gpu, 99.0 * (gpu == 2), full * (gpu == 1), full) for gpu in range(4)]
        one.backend.put_node(replace(node, gpu_use=tuple(uses)))
        names = [key.id for key in TABLE.of(KeyContext.PLACEMENT)]
        for name in sorted(names, key="place.leave".__eq__):
            await one.press("P")
            await one.until(lambda: one.top == "PlaceScreen" and one.app.screen.draft.specs)
            place = one.app.screen
            await one.press("G")  # a free slot
            before, effect = effects_of_placing(place, one)[name]
            await hand.has_effect(name, before, effect)
            while one.top != "ClusterScreen":
                await one.press("escape")


async def test_readonly_forbids_what_changes_and_says_why(desk):
    async with desk(readonly=True) as one:
        snapshot = await one.backend.snapshot()
        assert "READ-ONLY" in one.words()
        commands = [command.help for command in one.app.get_system_commands(one.app.screen)]
        for key in (key for key in TABLE.of(KeyContext.CLUSTER) if key.changes):
            one.app.clear_notifications()
            await one.press("3", key.keys)
            await one.until(one.says)
            assert "--readonly" in one.says()[0]
            assert f"({key.name})" in one.says()[0]
            assert one.top == "ClusterScreen"
            assert not key.label or f"({key.label})" in one.words()
            assert key.tooltip not in commands
        assert await one.backend.snapshot() == snapshot


def test_changing_actions_are_those_that_the_tables_mark():
    of_runs = {"place", "launch", "kill", "destroy", "relaunch", "scale", "edit", "change"}
    assert changing_actions() == of_runs | {
        "shell",
        "signal",
        "test_alerts",
        "reserve",
        "unreserve",
        "forward",
        "restart",
        "send",
    } | {
        "download",
        "upload",
        "build",
        "push",
        "resume",
        "repeat",
        "gone",
        "admin",
    }


async def test_no_letter_acts_on_a_text_and_a_colon_leads_to_the_prompt(desk):
    async with desk() as one:
        await one.press("y")
        await one.until(lambda: one.top == "DetailScreen" and "kind: learner-workers" in one.words())
        await one.press(*"gonceyK")
        assert (one.top, one.says()) == ("DetailScreen", [])
        await one.press("colon", *"gone")
        await one.until(lambda: one.cluster.command_line.prompt.value == "gone", "what was typed")
        assert one.top == "ClusterScreen"
        await one.press("escape", "y")
        await one.until(lambda: one.top == "DetailScreen")
        await one.press("q")
        await one.until(lambda: one.top == "ClusterScreen")
        assert not one.has_left


async def test_pasted_text_fires_no_key(desk):
    from textual import events

    async with desk() as one:
        before = await one.backend.snapshot()
        one.app.post_message(events.Paste("LKq\x04+-y"))
        await one.pilot.pause()
        assert (one.top, one.says(), one.has_left) == ("ClusterScreen", [], False)
        assert await one.backend.snapshot() == before


NEED_RECORDS = {"charts.alone", "charts.window"}
"""Keys of the bar without an effect in the small lab, whose learners print no records: test_charts.py."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("size", [(80, 24), (160, 45)], ids=str)
async def test_every_key_that_the_bar_names_changes_what_is_seen(desk, size, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with desk(size=size) as one:
        hand = Hand(one)
        await hand.home()
        bar = one.app.screen.query_one(KeyBar)
        for pane in "12345678":
            await one.press(pane)
            named = fitting(bar.choices, bar.size.width)
            assert [choice.key.id for choice in named if choice.reason] == []
            texts = [f"{choice.key.face} {choice.key.label}" for choice in named]
            assert re.split("  +", one.words().splitlines()[-1].strip()) == texts, pane
            if pane in "234":
                assert {"app.help", *BAR[:6]} <= {choice.key.id for choice in named}
            for key in (choice.key for choice in named if choice.key.id not in NEED_RECORDS):
                await hand.home()
                await one.press(pane)
                before = one.top, one.words(), one.says()
                await one.press(key.keys.split(",")[0])
                await one.until(lambda: (one.top, one.words(), one.says()) != before, f"{key.id} in pane {pane}")  # noqa: B023
            await hand.home()


async def test_a_click_on_the_key_bar_is_the_key(desk):
    async with desk() as one:
        await one.pilot.click("KeyBar", offset=(20, 0))
        await one.until(lambda: one.cluster.command_line.is_open)


async def test_a_narrow_key_bar_has_what_newcomers_need_and_the_row_chosen_in_the_menu_can_be_read(desk):
    async with desk(size=(80, 24)) as one:
        bar = "l log  8 charts  / filter  d describe  L launch  ctrl+d destroy  ? help"
        assert one.words().splitlines()[-1].strip() == bar
        await one.press("m")
        await one.until(lambda: one.top == "MenuScreen" and "Go to the log" in one.words())
        line = next(strip for strip in screen_strips(one.app) if "Go to the log" in strip.text)
        chosen = next(segment for segment in line if segment.text.startswith("l"))
        assert chosen.style.color != chosen.style.bgcolor, "the key of the row under the cursor"
        light, dark = (
            Color.from_rich_color(colour).brightness for colour in (chosen.style.color, chosen.style.bgcolor)
        )
        assert abs(light - dark) > 0.25
