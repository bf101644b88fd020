"""Table of all keys.

Bindings, the key bar, the help screen, the menu, the command palette, ``docs/keys.md``, the grey of ``--readonly``
and the tests are derived from it, so they cannot contradict each other.

Keys follow the conventions of k9s and kdash, if there are any. No action needs a function key, a ctrl-shift chord
or the mouse. Pasted text arrives as one event, never as keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from textual.binding import Binding, BindingType


class KeyContext(StrEnum):
    """Screen or widget in which a key works; the value is the heading of the help screen."""

    CLUSTER = "Everywhere on the cluster screen"
    GRID = "In the slot grid"
    TABLE = "In tables"
    LOG = "In the log"
    CHARTS = "In the charts"
    PLACEMENT = "While placing"
    SIMULATOR = "Among a worker's simulators"
    VOLUME = "Among volumes and their files"
    IMAGE = "Among images"
    ARTIFACT = "Among checkpoints"
    EXPERIMENT = "Among experiments"
    OWNER = "Among owners"
    HISTORY = "In the history"
    LAUNCH = "In the launch form"
    DIALOG = "In a dialog"
    TEXT = "While reading a text"
    APP = "In the whole app"


@dataclass(frozen=True, slots=True)
class Key:
    """Entry of the key table: keys and their action.

    Attributes:
        id: Stable name, for keymaps.
        keys: Textual's key names, separated by commas.
        face: The keys as shown on screens.
        action: The action without ``action_``, as the widget or screen of its context defines it; ``%`` is replaced
            by the digit that was pressed.
        label: One or two words for the key bar; empty keeps it out of the bar.
        tooltip: One sentence for the help screen and the palette.
        context: Where it works; a widget's context has precedence over that of its screen.
        changes: It changes something outside this screen; ``--readonly`` turns it off.
    """

    id: str
    keys: str
    face: str
    action: str
    label: str
    tooltip: str
    context: KeyContext = KeyContext.CLUSTER
    changes: bool = False

    @property
    def name(self) -> str:
        """One or two words for display, also if the key bar does not show the key."""
        return self.label or self.action.partition("(")[0].replace("_", " ")


DIGITS: Final = "1,2,3,4,5,6,7,8,9,0"

# Short names in the order of the enum, so that an entry of the table fits on one line.
_, _GRID, _TABLE, _LOG, _CHARTS, _PLACEMENT, _SIMULATOR, _VOLUME, _IMAGE, _ARTIFACT, *_REST = KeyContext
_EXPERIMENT, _OWNER, _HISTORY, _LAUNCH, _DIALOG, _TEXT, _APP = _REST

KEYS: Final = (
    # Most changes have a capital letter or ctrl.
    Key("run.place", "P", "P", "place", "place", "Place a run on slots by cursor", changes=True),
    Key("run.launch", "L", "L", "launch", "launch", "Launch a run from a spec file", changes=True),
    Key("pod.kill", "K", "K", "kill", "kill", "Kill the selected or marked pods; they come back", changes=True),
    Key("run.destroy", "ctrl+d", "ctrl+d", "destroy", "destroy", "Destroy the run and all it owns", changes=True),
    Key("run.relaunch", "R", "R", "relaunch", "relaunch", "Destroy the run and launch it again", changes=True),
    Key("set.grow", "plus", "+", "scale(1)", "scale", "One replica more in the selected set", changes=True),
    Key("set.shrink", "underscore", "_", "scale(-1)", "", "One replica fewer in the selected set", changes=True),
    Key("run.edit", "e", "e", "edit", "edit", "Edit the run's spec or scale in $EDITOR, then review", changes=True),
    Key("pod.attach", "a", "a", "attach", "", "Type into the pod's process, or see its output"),
    Key("pod.signal", "S", "S", "signal", "", "Send the pod's process a signal", changes=True),
    Key("pod.forward", "F", "F", "forward", "", "Forward a port of this machine to a pod, or end it", changes=True),
    Key("view.forwards", "f", "f", "forwards", "", "List the ports that are forwarded"),
    Key("pod.simulators", "i", "i", "simulators", "", "List, restart or signal a worker's simulators"),
    Key("view.volumes", "V", "V", "volumes", "", "List the volumes and the files in them"),
    Key("view.images", "I", "I", "images", "", "List the images that were built here"),
    Key("view.artifacts", "C", "C", "artifacts", "", "List the checkpoints that runs have left"),
    Key("view.experiments", "E", "E", "experiments", "", "List the experiments, each over its seeds"),
    Key("view.owners", "O", "O", "owners", "", "See the owners of slots and GPUs, and idle GPUs"),
    Key("view.history", "H", "H", "past_runs", "", "See runs of the past, how they ended, and how two differ"),
    Key("pod.shell", "s", "s", "shell", "shell", "Open a shell next to the pod's process", changes=True),
    Key("log.show", "l", "l", "logs", "log", "Go to the log of the selection, or of the marked pods"),
    Key("log.split", "vertical_line", "|", "split", "split", "Keep this log and open another pane, up to four"),
    Key("log.previous", "p", "p", "previous_log", "", "Show the log of the previous process"),
    Key("view.filter", "slash", "/", "find", "filter", "Filter the table, or search the log; ? in it helps"),
    Key("view.command", "colon", ":", "command_line", "command", "Type a command; tab completes it"),
    Key("view.detail", "d", "d", "detail", "describe", "Show everything that is known of the selection"),
    # Lists faults: home/view_actions.py action_faults(), which keeps the rows whose Row.is_fault is set.
    Key("view.faults", "exclamation_mark", "!", "faults", "faults", "Show only what fails"),
    Key("view.mine", "o", "o", "mine", "mine", "Show only your own rows, or all"),
    Key("view.all", "A", "A", "all_pods", "", "Show the pods of all runs, or only of the selected run"),
    Key("view.spec", "y", "y", "spec", "", "Show the spec of the run as YAML"),
    Key("view.zoom", "z", "z", "zoom", "zoom", "Give the whole screen to this pane, and back"),
    Key("view.menu", "m", "m", "menu", "menu", "Choose what to do from a list"),
    Key("view.copy", "c", "c", "copy", "", "Copy the command line for the selection"),
    Key("view.cancel", "u", "u", "cancel", "", "Undo an action confirmed less than five seconds ago"),
    # Digits select panes everywhere, except in place mode, where they are numbers of replicas.
    Key("pane.slots", "1", "1", "pane('slots')", "", "Go to the slots"),
    Key("pane.runs", "2", "2", "pane('runs')", "", "Go to the runs and their sets"),
    Key("pane.pods", "3", "3", "pane('pods')", "", "Go to the pods"),
    Key("pane.nodes", "4", "4", "pane('nodes')", "", "Go to the nodes"),
    Key("pane.log", "5", "5", "pane('log')", "", "Go to the log"),
    Key("pane.events", "6", "6", "pane('events')", "", "Go to the events"),
    Key("pane.leaks", "7", "7", "pane('leaks')", "", "Go to the leaks"),
    Key("pane.charts", "8", "8", "pane('charts')", "charts", "Go to the charts of the marked runs"),
    Key("pane.next", "tab", "tab", "next_pane(1)", "", "Go to the next pane"),
    Key("pane.last", "shift+tab", "shift+tab", "next_pane(-1)", "", "Go to the pane before"),
    Key("size.taller", "right_curly_bracket,ctrl+down", "} ctrl+↓", "taller(1)", "", "One line more for this pane"),
    Key("size.lower", "left_curly_bracket,ctrl+up", "{ ctrl+↑", "taller(-1)", "", "One line less for this pane"),
    Key("size.wider", "right_parenthesis,ctrl+right", ") ctrl+→", "wider(2)", "", "Make the slots wider"),
    Key("size.narrower", "left_parenthesis,ctrl+left", "( ctrl+←", "wider(-2)", "", "Make the slots narrower"),
    Key("size.usual", "equals_sign", "=", "usual_sizes", "", "Give the panes their usual sizes again"),
    Key("view.older", "left_square_bracket", "[", "history(-1)", "", "Go to the view before"),
    Key("view.newer", "right_square_bracket", "]", "history(1)", "", "Go to the view after"),
    Key("view.toggle", "minus", "-", "toggle_view", "", "Go to the last view, and back"),
    Key("view.refresh", "r,ctrl+r", "r", "look_again", "", "Refresh now"),
    Key("view.back", "escape", "esc", "back", "", "Back: close the filter, the zoom, the faults, the marks"),
    Key("app.help", "question_mark", "?", "help", "help", "Show all keys"),
    Key("app.quit", "q", "q", "leave", "quit", "Leave the app; runs go on"),
    # Arrows, and the keys of vi.
    Key("grid.left", "left,h", "← h", "step(-1,0)", "", "One slot to the left", _GRID),
    Key("grid.right", "right,l", "→ l", "step(1,0)", "", "One slot to the right", _GRID),
    Key("grid.up", "up,k", "↑ k", "step(0,-1)", "", "One line up", _GRID),
    Key("grid.down", "down,j", "↓ j", "step(0,1)", "", "One line down", _GRID),
    Key("grid.next_gpu", "w", "w", "step_gpu(1)", "", "To the next GPU", _GRID),
    Key("grid.last_gpu", "b", "b", "step_gpu(-1)", "", "To the GPU before", _GRID),
    Key("grid.first", "g,home", "g", "edge(-1)", "", "First slot", _GRID),
    Key("grid.end", "G,end", "G", "edge(1)", "", "Last slot", _GRID),
    Key("grid.nearer", "greater_than_sign", ">", "nearer(1)", "zoom in", "From cluster to nodes, to GPUs", _GRID),
    Key("grid.farther", "less_than_sign", "<", "nearer(-1)", "zoom out", "From GPUs to nodes, to cluster", _GRID),
    Key("grid.enter", "enter", "enter", "choose", "", "Go to the pod that holds the slot", _GRID),
    Key("table.up", "up,k", "↑ k", "move(-1)", "", "One row up", _TABLE),
    Key("table.down", "down,j", "↓ j", "move(1)", "", "One row down", _TABLE),
    Key("table.page_up", "pageup", "page up", "page(-1)", "", "One page up", _TABLE),
    Key("table.page_down", "pagedown", "page down", "page(1)", "", "One page down", _TABLE),
    Key("table.first", "g,home", "g", "edge(-1)", "", "First row", _TABLE),
    Key("table.end", "G,end", "G", "edge(1)", "", "Last row", _TABLE),
    Key("table.enter", "enter", "enter", "choose", "", "From a run to its pods, then to the log", _TABLE),
    Key("table.cell_left", "left", "←", "cell(-1)", "", "To the set at the left, then the whole run", _TABLE),
    Key("table.cell_right", "right", "→", "cell(1)", "", "To a set of the run", _TABLE),
    Key("table.mark_all", "asterisk", "*", "mark_all", "", "Mark all rows, or none", _TABLE),
    Key("table.mark", "space", "space", "mark", "mark", "Mark or unmark the row, and go on", _TABLE),
    Key("table.sort", "full_stop", ".", "sort", "", "Sort by the next column", _TABLE),
    Key("table.turn", "comma", ",", "turn", "", "Sort the other way round", _TABLE),
    Key("log.follow", "f", "f", "follow", "follow", "Stay at the newest line, or stop to read", _LOG),
    Key("log.wrap", "w", "w", "wrap", "wrap", "Break long lines", _LOG),
    Key("log.times", "t", "t", "times", "times", "Show when each line was written", _LOG),
    Key("log.since", "greater_than_sign", ">", "since(1)", "since", "The last 1m 5m 15m 30m 1h 1d, then all", _LOG),
    Key("log.since_back", "less_than_sign", "<", "since(-1)", "", "The span of time before that", _LOG),
    Key("log.include", "ampersand", "&", "ask('include')", "include", "Show only lines that match", _LOG),
    # In the log `!` hides lines instead: it has no notion of faults.
    Key("log.exclude", "exclamation_mark", "!", "ask('exclude')", "exclude", "Hide lines that match", _LOG),
    Key("log.json", "J", "J", "json", "json", "Metric records as a table, raw, or on lines of their own", _LOG),
    Key("log.marker", "M", "M", "marker", "", "Insert a marker at the newest line", _LOG),
    Key("log.save", "ctrl+s", "ctrl+s", "save", "", "Save the shown lines to a file", _LOG),
    Key("log.close", "x", "x", "close_pane", "", "Close this pane", _LOG),
    Key("log.next", "n", "n", "hit(1)", "", "Next match of the search, sideways too", _LOG),
    Key("log.last", "N", "N", "hit(-1)", "", "Match of the search before this one", _LOG),
    Key("log.up", "up,k", "↑ k", "scroll(-1)", "", "One line up; stops following", _LOG),
    Key("log.down", "down,j", "↓ j", "scroll(1)", "", "One line down", _LOG),
    Key("log.page_up", "pageup", "page up", "page(-1)", "", "One page up", _LOG),
    Key("log.page_down", "pagedown,space", "page down", "page(1)", "", "One page down", _LOG),
    Key("log.left", "left,h", "← h", "pan(-1)", "", "To the start of long lines", _LOG),
    Key("log.right", "right", "→", "pan(1)", "", "To the end of long lines", _LOG),
    Key("log.first", "g,home", "g", "edge(-1)", "", "Oldest line that is kept", _LOG),
    Key("log.end", "G,end", "G", "edge(1)", "", "Newest line; follows again", _LOG),
    Key("charts.axis", "x", "x", "axis", "axis", "Draw over env steps, over time, over updates", _CHARTS),
    Key("charts.smooth", "f", "f", "smooth", "smooth", "Smooth the curves: not, a little, more", _CHARTS),
    Key("charts.group", "b", "b", "group", "seeds", "Seeds of an experiment as mean and spread, or each", _CHARTS),
    Key("charts.window", "w", "w", "window", "newest", "The newest quarter of the axis, a sixteenth, all", _CHARTS),
    Key("charts.alone", "n", "n", "alone(1)", "alone", "Show only the next figure; after the last, all", _CHARTS),
    Key("charts.alone_back", "N", "N", "alone(-1)", "", "Show only the previous figure", _CHARTS),
    Key("charts.left", "left,h", "← h", "cursor(-1)", "", "Read values one column to the left", _CHARTS),
    Key("charts.right", "right", "→", "cursor(1)", "", "One column to the right; at the end the newest", _CHARTS),
    Key("charts.far_left", "pageup", "page up", "cursor(-10)", "", "Ten columns to the left", _CHARTS),
    Key("charts.far_right", "pagedown", "page down", "cursor(10)", "", "Ten columns to the right", _CHARTS),
    Key("charts.first", "g,home", "g", "edge(-1)", "", "Read values at the beginning", _CHARTS),
    Key("charts.end", "G,end", "G", "edge(1)", "", "Read the newest values", _CHARTS),
    # Place mode is a separate screen, so its letters may repeat those of the cluster screen.
    Key("place.put", "space", "space", "put", "place/remove", "Place a replica here, or remove it", _PLACEMENT),
    Key("place.pack", "a", "a", "fill('pack')", "pack", "Place the rest, device after device", _PLACEMENT),
    Key("place.spread", "A", "A", "fill('spread')", "spread", "Place the rest, round all devices", _PLACEMENT),
    Key("place.memory", "f", "f", "fill('free-memory')", "", "Place the rest, by free memory", _PLACEMENT),
    Key("place.busy", "B", "B", "fill('least-busy')", "", "Place the rest, least busy first", _PLACEMENT),
    Key("place.plan", "enter", "enter", "plan", "plan", "Show the plan, and ask", _PLACEMENT),
    Key("place.leave", "escape,q", "esc", "leave_place", "cancel", "End move and range, then leave", _PLACEMENT),
    Key("place.seeds", "s", "s", "ask('seeds')", "seeds", "One run for each seed: 0-11 or 1,5,7", _PLACEMENT),
    Key("place.replicas", DIGITS, "1-9", "digit(%)", "replicas", "Replicas of the set, in every run", _PLACEMENT),
    Key("place.set", "tab", "tab", "next_set(1)", "set", "Go to the next set", _PLACEMENT),
    Key("place.set_back", "shift+tab", "shift+tab", "next_set(-1)", "", "Go to the set before", _PLACEMENT),
    Key("place.range", "v", "v", "range", "range", "Begin a range; space acts on all of it", _PLACEMENT),
    Key("place.range_gpu", "V", "V", "range_gpus", "GPU", "Take whole GPUs; again the whole node", _PLACEMENT),
    Key("place.move", "m", "m", "move", "", "Move a staged replica: m, go, m; or drag it", _PLACEMENT),
    Key("place.undo", "u", "u", "undo", "undo", "Undo the last step", _PLACEMENT),
    Key("place.clear", "x", "x", "clear", "", "Take back everything that is staged", _PLACEMENT),
    Key("place.spec", "t", "t", "spec(1)", "spec", "Go to the next spec file", _PLACEMENT),
    Key("place.name", "n", "n", "ask('name')", "name", "Give the run another name", _PLACEMENT),
    Key("place.help", "question_mark", "?", "help", "help", "Show all keys", _PLACEMENT),
    Key("place.form", "L", "L", "form", "form", "To the launch form, with all that was chosen", _PLACEMENT),
    Key("place.copy", "c", "c", "copy", "", "Copy the command line that does the same", _PLACEMENT),
    Key("simulator.restart", "R", "R", "restart", "restart", "End it; another is started", _SIMULATOR, True),
    Key("simulator.signal", "S", "S", "send", "signal", "Send it a signal", _SIMULATOR, True),
    Key("simulator.frame", "v", "v", "look", "camera", "What its camera sees now", _SIMULATOR),
    Key("simulator.again", "r", "r", "again", "refresh", "Ask again how they are", _SIMULATOR),
    Key("volume.up", "backspace", "backspace", "up", "up", "To the folder above, or to the volumes", _VOLUME),
    Key("volume.get", "D", "D", "download", "download", "Download the file or folder", _VOLUME, True),
    Key("volume.put", "U", "U", "upload", "upload", "Upload a file or folder to here", _VOLUME, True),
    Key("volume.again", "r", "r", "again", "refresh", "Look again", _VOLUME),
    Key("image.build", "B", "B", "build", "build", "Build the image of the source tree", _IMAGE, True),
    Key("image.push", "P", "P", "push", "push", "Push the image to a registry", _IMAGE, True),
    Key("image.again", "r", "r", "again", "refresh", "Ask again which there are", _IMAGE),
    Key("artifact.get", "D", "D", "download", "download", "Download the checkpoint", _ARTIFACT, True),
    Key("artifact.resume", "R", "R", "resume", "resume", "Launch a run from its place", _ARTIFACT, True),
    Key("artifact.place", "P", "P", "elsewhere", "location", "Look in another location", _ARTIFACT),
    Key("artifact.again", "r", "r", "again", "refresh", "Look again", _ARTIFACT),
    Key("experiment.filter", "slash", "/", "filter", "filter", "Filter the experiments", _EXPERIMENT),
    Key("experiment.faults", "exclamation_mark", "!", "faults", "faults", "Only those with a fault", _EXPERIMENT),
    Key("experiment.charts", "8", "8", "charts", "charts", "Mean and spread of its seeds as charts", _EXPERIMENT),
    Key("owner.filter", "slash", "/", "filter", "filter", "Filter the owners", _OWNER),
    Key("owner.faults", "exclamation_mark", "!", "faults", "idle", "Only those with idle GPUs", _OWNER),
    Key("history.filter", "slash", "/", "filter", "filter", "Filter the history", _HISTORY),
    Key("history.faults", "exclamation_mark", "!", "faults", "faults", "Only the failed and the lost", _HISTORY),
    Key("history.diff", "d", "d", "diff", "diff", "How the two marked runs differ", _HISTORY),
    Key("history.repeat", "R", "R", "repeat", "repeat", "Launch again exactly as it was", _HISTORY, True),
    Key("history.change", "e", "e", "change", "change", "Launch again with other settings", _HISTORY, True),
    Key("launch.place", "ctrl+g", "ctrl+g", "place", "", "Place it on slots, with all that was typed", _LAUNCH),
    Key("dialog.accept", "y", "y", "accept", "", "Yes", _DIALOG),
    Key("dialog.copy", "c", "c", "copy", "", "Copy the command line that does the same", _DIALOG),
    Key("dialog.close", "escape,n", "esc n", "close", "", "No; close the dialog", _DIALOG),
    # No letter acts on a text: one that was meant for the screen below must do nothing.
    Key("text.close", "escape,q", "esc q", "close", "", "Close the text", _TEXT),
    Key("text.command", "colon", ":", "command_line", "", "Close the text and type a command", _TEXT),
    Key("app.palette", "ctrl+p", "ctrl+p", "command_palette", "", "Find a command by name", _APP),
    # Bound with priority: they work in fields and dialogs too, and cannot be rebound.
    Key("app.suspend", "ctrl+z", "ctrl+z", "suspend_process", "", "Go back to the shell; `fg` returns", _APP),
    Key("app.redraw", "ctrl+l", "ctrl+l", "redraw", "", "Draw the whole screen again", _APP),
    Key("app.quit_always", "ctrl+q,ctrl+c", "ctrl+q", "leave", "", "Leave the app from everywhere", _APP),
)  # fmt: skip


BAR: Final = (
    "log.show", "pane.charts", "view.filter", "view.detail", "run.launch", "run.destroy", "view.menu", "run.place",
)  # fmt: skip
"""First keys of the key bar on the home screen: first those that look, then those that change something."""


def in_bar(keys: Iterable[Key]) -> list[Key]:
    """Return the keys that the key bar shows, most important first."""
    order = {name: number for number, name in enumerate(BAR)}
    return sorted((key for key in keys if key.label), key=lambda key: order.get(key.id, len(order)))


def bindings(context: KeyContext, only: str = "") -> list[BindingType]:
    """Return Textual's bindings of one context, or of its one entry with this id, for a BINDINGS class variable."""
    return [
        Binding(
            pressed,
            key.action.replace("%", pressed),
            key.label or key.tooltip,
            show=False,
            tooltip=key.tooltip,
            id=f"{key.id}.{pressed}" if "%" in key.action else key.id,
            # Textual checks bindings with priority from the app down, before the focused widget gets the key.
            priority=context is KeyContext.APP,
        )
        for key in KEYS
        if key.context is context and only in ("", key.id)
        # A % is replaced by the pressed key, so each key of such an entry needs a separate binding and action.
        for pressed in (key.keys.split(",") if "%" in key.action else (key.keys,))
    ]


class KeyTable:
    """Key table of one user: the default table with the bindings of the settings."""

    def __init__(self, keys: Iterable[Key] = KEYS) -> None:
        self.keys = tuple(keys)

    def of(self, context: KeyContext) -> tuple[Key, ...]:
        """Return the entries of one context, in the order of the table."""
        return tuple(key for key in self.keys if key.context is context)

    def pressed(self, name: str, context: KeyContext = KeyContext.CLUSTER) -> Key | None:
        """Return the entry of a context that has this key, by Textual's name of the key."""
        return next((key for key in self.of(context) if name in key.keys.split(",")), None)

    def face(self, key_id: str) -> str:
        """Return the keys of an entry as shown on screens."""
        return next(key.face for key in self.keys if key.id == key_id)
