"""The table of keys is the truth: each entry is bound, does something, and is grey when the app is read-only."""

from __future__ import annotations

import pytest
from textual.color import Color

from l2rtui.ui.app import L2RApp
from l2rtui.ui.dialogs.artifacts import ArtifactsScreen
from l2rtui.ui.dialogs.dialog import Dialog
from l2rtui.ui.dialogs.help import GREYED, help_lines
from l2rtui.ui.dialogs.images import ImagesScreen
from l2rtui.ui.dialogs.simulators import SimulatorsScreen
from l2rtui.ui.dialogs.volumes import VolumesScreen
from l2rtui.ui.home.screen import ClusterScreen
from l2rtui.ui.keys.palette import COMMANDS, changing_actions
from l2rtui.ui.keys.table import KEYS, Key, KeyContext, KeyTable, bindings
from l2rtui.ui.overviews.experiments import ExperimentsScreen
from l2rtui.ui.overviews.history import HistoryScreen
from l2rtui.ui.overviews.owners import OwnersScreen
from l2rtui.ui.placing.screen import PlaceScreen
from l2rtui.ui.saved_files import screen_strips
from l2rtui.ui.widgets.charts import ChartView
from l2rtui.ui.widgets.gpu_grid import GpuGrid
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
    KeyContext.APP: L2RApp,
}
TABLE = KeyTable()
FOCUS = {KeyContext.GRID: "1", KeyContext.TABLE: "3", KeyContext.LOG: "5"}
PREPARED = {  # what must have happened before a key can do something
    "grid.left": ["right"],
    "grid.up": ["down"],
    "grid.first": ["right"],
    "table.up": ["down"],
    "table.page_up": ["down"],
    "table.first": ["down"],
    "table.turn": ["full_stop"],
    "log.end": ["g"],
    "log.down": ["g"],
    "log.page_down": ["g"],
    "log.left": ["right"],
    "log.next": ["slash", "e", "n", "v", "enter"],
    "log.last": ["slash", "e", "n", "v", "enter"],
    "log.previous": ["3"],
    "pod.kill": ["3"],
    "set.grow": ["3", "down", "down"],
    "set.shrink": ["3", "down", "down"],
    "size.usual": ["right_curly_bracket"],
    "grid.nearer": ["less_than_sign"],
    "view.back": ["z"],
    "view.older": ["3", "4"],
    "view.newer": ["3", "4", "left_square_bracket"],
    "view.toggle": ["4"],
    "view.mine": ["3"],
    "pane.runs": ["3"],
    "table.cell_left": ["2", "right"],
    "table.cell_right": ["2"],
    "pod.shell": ["3"],
    "pod.attach": ["3"],
    "pod.signal": ["3"],
    "pod.forward": ["3"],
    "pod.simulators": ["3", "down", "down"],
    "log.close": ["vertical_line"],
    "log.up": [],
}


def state(desk) -> tuple[object, ...]:
    """All that a key can change, as far as a user can see it."""
    cluster = desk.cluster
    log = cluster.panes.log_pane
    return (
        [type(screen).__name__ for screen in desk.app.screen_stack],
        cluster.focused.id if cluster.focused else None,
        cluster.panes.zoomed,
        cluster.content.has_all_pods,
        [(desk.is_previous, desk.since, desk.selection.key) for desk in cluster.panes.logs.controllers],
        (
            cluster.panes.lower,
            cluster.content.is_mine_only,
            cluster.panes.runs.cursor_cell,
            cluster.command_line.is_open,
        ),
        cluster.panes.slots.cursor_slot,
        tuple(
            (table.cursor_key, tuple(sorted(table.marked)), tuple(table.model.displayed), table.model.sort_column)
            for table in (cluster.panes.runs, cluster.panes.pods)
        ),
        (cluster.panes.pods.model.is_descending, cluster.panes.pods.model.faults_only),
        (
            log.is_following,
            log.is_wrapping,
            log.has_times,
            None if log.is_following else log._top,  # it goes by itself with the lines that come
            log._pan,
            (log.log_search.line, log.log_search.match),
            log.log_filter.json_as,
            sum(entry.is_mark for entry in log.ring),
        ),
        (cluster.panes.slots.shown_level, cluster.sizes.state),
        len(desk.says()),
        desk.app._exit,
    )


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


WORKING = [
    key
    for key in KEYS
    if key.context in (KeyContext.CLUSTER, KeyContext.APP, *FOCUS)
    and key.id != "app.redraw"  # what it changes is on the terminal alone: test_terminal.py
]


@pytest.mark.parametrize("key", WORKING, ids=lambda key: key.id)
async def test_every_key_does_something(desk, key: Key):
    # A terminal in which the log is longer than its pane and lines are longer than the pane is wide.
    async with desk(size=(124, 34)) as one:
        if key.context in FOCUS:
            await one.press(FOCUS[key.context])
        await one.press(*PREPARED.get(key.id, []))
        before = await settled(one)
        await one.press(key.keys.split(",")[0])
        await one.until(lambda: state(one) != before, f"{key.face} did nothing")


async def settled(desk) -> tuple[object, ...]:
    """The state once what was pressed has had its effect: what comes later would pass for that of the next key."""
    before, now = None, state(desk)
    while before != now:
        await desk.pilot.pause()
        before, now = now, state(desk)
    return now


PLACING = {  # what must have happened in place mode before a key can do something
    "place.replicas": ["t", "tab"],
    "place.undo": ["space"],
    "place.move": ["space"],
    "place.clear": ["space"],
    "place.plan": ["a"],
}


@pytest.mark.parametrize("key", TABLE.of(KeyContext.PLACEMENT), ids=lambda key: key.id)
async def test_every_key_of_place_mode_does_something(desk, key: Key, tmp_path, monkeypatch):
    for name in ("first", "second"):
        spec = f"kind: learner-workers\nname: {name}\nworkers: [{{name: w, replicas: 2}}, {{name: v}}]\n"
        (tmp_path / "manifests").mkdir(exist_ok=True)
        (tmp_path / "manifests" / f"{name}.yaml").write_text(spec, "utf-8")
    monkeypatch.chdir(tmp_path)
    async with desk() as one:
        await one.press("P")
        await one.until(lambda: one.top == "PlaceScreen" and one.app.screen.draft.specs)
        place = one.app.screen
        await one.press("right", *PLACING.get(key.id, []))
        await one.until(lambda: place.draft.specs)

        def seen() -> tuple[object, ...]:
            editor, view = place.editor, place._view
            edited = (editor.draft, editor.options, editor.set_number, view.range_start, view.prompt.display)
            return (*edited, view.moving, one.top, len(one.says()))

        before = seen()
        await one.press(key.keys.split(",")[0])
        await one.until(lambda: seen() != before, f"{key.face} did nothing")


@pytest.mark.parametrize(
    "key", [key for key in TABLE.of(KeyContext.CLUSTER) if key.changes], ids=lambda key: key.id
)
async def test_readonly_forbids_what_changes_and_says_why(desk, key: Key):
    async with desk(readonly=True) as one:
        snapshot = await one.backend.snapshot()
        await one.press("3", key.keys)
        await one.until(one.says)
        assert "--readonly" in one.says()[0]
        assert one.top == "ClusterScreen"
        assert await one.backend.snapshot() == snapshot
        assert "READ-ONLY" in one.words()
        assert f"({key.name})" in one.says()[0]
        assert not key.label or f"({key.label})" in one.words()
        assert not any(command.help == key.tooltip for command in one.app.get_system_commands(one.app.screen))


def test_changing_actions_are_those_that_the_tables_mark():
    of_runs = {"place", "launch", "kill", "destroy", "relaunch", "scale", "edit"}
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


async def test_pasted_text_fires_no_key(desk):
    from textual import events

    async with desk() as one:
        before = state(one)
        one.app.post_message(events.Paste("LKq\x04+-y"))
        await one.pilot.pause()
        assert state(one) == before


async def test_a_click_on_the_key_bar_is_the_key(desk):
    async with desk() as one:
        await one.pilot.click("KeyBar", offset=(2, 0))
        await one.until(lambda: one.top == "PlaceScreen")


async def test_the_key_bar_has_the_menu_however_narrow_and_the_row_chosen_there_can_be_read(desk):
    async with desk(size=(80, 24)) as one:
        assert "m menu  ? help" in one.words().splitlines()[-1]
        await one.press("m")
        await one.until(lambda: one.top == "MenuScreen" and "Place a run" in one.words())
        line = next(strip for strip in screen_strips(one.app) if "Place a run" in strip.text)
        chosen = next(segment for segment in line if segment.text.startswith("P"))
        assert chosen.style.color != chosen.style.bgcolor, "the key of the row under the cursor"
        light, dark = (
            Color.from_rich_color(colour).brightness for colour in (chosen.style.color, chosen.style.bgcolor)
        )
        assert abs(light - dark) > 0.25
