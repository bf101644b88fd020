"""Command line of the home screen: the prompt at the bottom, its commands and completions, and submission."""

from __future__ import annotations

from collections.abc import Callable

from l2rtui.services import destroyed_specs
from l2rtui.ui.home.context_actions import ContextActions
from l2rtui.ui.home.filter_actions import FilterActions
from l2rtui.ui.home.home_view import HomeView
from l2rtui.ui.home.log_actions import LogActions
from l2rtui.ui.home.prompt import Prompt, PromptMode
from l2rtui.ui.home.selection import Pane
from l2rtui.ui.keys.palette import command_named, complete, hint_for
from l2rtui.ui.state.spec_files import example_specs

_HELP = {PromptMode.FILTER: "Filters", PromptMode.COMMAND: "Commands, after :"}
"""Heading of the help screen that ``?`` without an argument opens."""
_ON_SELECTION = ("detail", "edit", "shell", "attach", "simulators")
"""Actions without an argument that act on the row under the cursor."""
_OF_LOG = (PromptMode.SEARCH, PromptMode.INCLUDE, PromptMode.EXCLUDE, PromptMode.SAVE)


class CommandLine:
    """Controller of the prompt."""

    def __init__(
        self,
        view: HomeView,
        filters: FilterActions,
        logs: LogActions,
        contexts: ContextActions,
        help_about: Callable[[str], None],
    ) -> None:
        self._view = view
        self._filters = filters
        self._logs = logs
        self._contexts = contexts
        self._help_about = help_about
        self.prompt = Prompt(self.complete, self._changed, self._submitted)
        self._is_from_log = False

    @property
    def is_open(self) -> bool:
        """True while the prompt is open."""
        return bool(self.prompt.display)

    def ask(self, mode: PromptMode, value: str = "") -> None:
        """Open the prompt; a prompt that is already open stays as it is."""
        if not self.prompt.display:
            self._is_from_log = self._view.panes.focused_pane is Pane.LOG
            self.prompt.ask(mode, value)

    def close(self, *, keep: bool) -> None:
        """Close the prompt and return the focus; without ``keep``, undo the search or filter that was typed."""
        mode, panes = self.prompt.mode, self._view.panes
        if not keep and mode is PromptMode.SEARCH:
            panes.log_pane.find("")
        elif not keep and mode is PromptMode.FILTER:
            self._filters.set_filter(panes.last_list, "")
        self.prompt.close()
        panes.focus(Pane.LOG if mode in _OF_LOG or self._is_from_log else panes.last_list)
        self._view.content.titles.show()  # at once: the next command may be one that takes a picture

    def action_find(self) -> None:
        """Filter the table or the slots, or search the log."""
        if self._view.panes.focused_pane is Pane.LOG:
            self.ask(PromptMode.SEARCH, self._view.panes.log_pane.search)
        else:
            self.ask(PromptMode.FILTER, self._filters.filter_text())

    def action_command_line(self) -> None:
        """Type a command."""
        self.ask(PromptMode.COMMAND)

    def action_ask_log(self, what: str) -> None:
        """Ask for a pattern, ``include`` or ``exclude``, or for the file of ``save``."""
        if what == "save":
            self.ask(PromptMode.SAVE, self._logs.file_name())
        else:
            self.ask(PromptMode[what.upper()], getattr(self._view.panes.log_pane.log_filter, what))

    def _changed(self, mode: PromptMode, value: str) -> None:
        if value == "?" and mode in _HELP:
            self.close(keep=False)
            self._help_about(_HELP[mode])
        elif mode is PromptMode.SEARCH:
            self._view.panes.log_pane.find(value)
        elif mode is PromptMode.FILTER:
            self._filters.set_filter(self._view.panes.last_list, value)

    async def _submitted(self, mode: PromptMode, value: str) -> None:
        self.close(keep=True)
        match mode:
            case PromptMode.COMMAND:
                await self.run_command(value)
            case PromptMode.INCLUDE | PromptMode.EXCLUDE:
                self._logs.action_narrow_log(mode.name.lower(), value)
            case PromptMode.SAVE:
                self._logs.action_save_log(value)
            case PromptMode.SIGNAL | PromptMode.FORWARD if value:
                await self.run_command(f"{mode.name.lower()} {value}")

    async def run_command(self, text: str) -> None:
        """Execute a line such as ``kill drive/worker``, if it is allowed."""
        word, _, rest = text.partition(" ")
        if not word:
            return
        command = command_named(word)
        if command is None:
            self._view.say(f"There is no command {word!r}. {hint_for(word)}", is_error=True)
            return
        name, _, arguments = command.action.partition("(")
        if reason := self._view.ctx.forbidden(name):
            self._view.say(f":{command.name} is off: {reason}.")
            return
        if rest.strip() and not arguments:
            select = " It acts on the selection: go to the row first." if name in _ON_SELECTION else ""
            self._view.say(f":{command.name} takes no argument.{select}", is_error=True)
            return
        # repr: Textual parses the arguments of an action as Python literals, so quotes in a text are safe.
        action = f"{name}({arguments.replace('%', repr(rest.strip()))}" if arguments else name
        await self._view.screen.app.run_action(action, self._view.screen)

    def complete(self, text: str) -> str:
        """Return the line with the word under the cursor completed, as far as one is meant."""
        panes = self._view.panes
        tables = {
            "slots": panes.nodes,
            "runs": panes.runs,
            "pods": panes.pods,
            "nodes": panes.nodes,
            "events": panes.kube_events,
        }
        columns = {name: table.model.filter_columns for name, table in tables.items()}
        columns["sort"] = [column.key for column in panes.table.model.columns] if panes.table else []
        # Spec files are read from the disk, so only for commands that take one.
        specs = [path for path, _ in example_specs()] if text.startswith(("place ", "launch ")) else []
        word = text.partition(" ")[0]
        is_context, is_namespace = ((command_named(word) is command_named(name)) for name in ("ctx", "ns"))
        runs = sorted(run.name for run in self._view.snapshot.runs.values())
        completions = {
            **columns,
            "targets": runs,
            "experiments": sorted({run.experiment for run in self._view.snapshot.runs.values()}),
            "gone": [*runs, *(destroyed_specs.names() if command_named(word) is command_named("relaunch") else ())],
            "themes": sorted(self._view.screen.app.available_themes),
            "filters": sorted(self._filters.named_filters()),
            "specs": specs,
            # These come from a file and from the server: read only once such a command is typed.
            "contexts": self._contexts.context_names() if is_context else (),
            "namespaces": self._contexts.namespace_names() if is_namespace else (),
        }
        return complete(text, completions)
