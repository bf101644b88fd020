"""Command line of the home screen: the prompt at the bottom, its commands and completions, and submission."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import ClassVar, Final

from textual.binding import Binding, BindingType
from textual.suggester import Suggester
from textual.widgets import Static

from l2rtui.services import destroyed_specs
from l2rtui.ui.home.context_actions import ContextActions
from l2rtui.ui.home.home_view import HomeView
from l2rtui.ui.home.log_actions import LogActions
from l2rtui.ui.home.selection import Pane
from l2rtui.ui.home.view_actions import FilterActions
from l2rtui.ui.keys.palette import command_named, complete, hint_for
from l2rtui.ui.state.spec_files import example_specs
from l2rtui.ui.widgets.prompt_input import PromptInput

MAX_REMEMBERED: Final = 50


class PromptMode(StrEnum):
    """Meaning of the text in the prompt; the value is the word before the field."""

    FILTER = "filter"
    SEARCH = "search"
    INCLUDE = "include"
    EXCLUDE = "exclude"
    COMMAND = "command"
    SIGNAL = "signal"
    FORWARD = "ports"
    SAVE = "save to"


_PLACEHOLDERS: Final = {
    PromptMode.FILTER: "words, !word, column=x  column~x  column>=2; ? explains",
    PromptMode.SEARCH: "text in the log; n and N go from hit to hit",
    PromptMode.INCLUDE: "show only lines that match this pattern",
    PromptMode.EXCLUDE: "hide lines that match this pattern",
    PromptMode.COMMAND: "tab completes, ? lists them",
    PromptMode.SIGNAL: "name or number, such as USR1; it goes to the pod's process",
    PromptMode.FORWARD: "LOCAL:REMOTE, such as 6006:6006",
    PromptMode.SAVE: "file for the lines that are shown",
}


_HISTORY: defaultdict[PromptMode, list[str]] = defaultdict(list)
"""Submitted lines by mode, oldest first; kept until the process ends."""


class _Completion(Suggester):
    def __init__(self, complete: Callable[[str], str]) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._complete = complete

    async def get_suggestion(self, value: str) -> str | None:
        """Return the completed line, or None if there is nothing to add."""
        completion = self._complete(value)
        return completion if completion != value else None


class Prompt(PromptInput):
    """Input line with a history on up and down and completion on tab.

    Args:
        complete: Returns a command line with its completion.
        changed: Called with the mode and the text after each letter.
        submitted: Called with the mode and the stripped text after enter.

    Attributes:
        mode: Meaning of the text.
        sign: Label before the field; it stays visible when the placeholder disappears.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "older", show=False),
        Binding("down", "newer", show=False),
        Binding("tab", "complete", show=False),
    ]

    def __init__(
        self,
        complete: Callable[[str], str],
        changed: Callable[[PromptMode, str], None],
        submitted: Callable[[PromptMode, str], Awaitable[None]],
    ) -> None:
        super().__init__("find", suggester=_Completion(self._completed))
        self.mode = PromptMode.FILTER
        self.sign = Static(id="sign", markup=False)
        self.sign.display = False
        self._complete = complete
        self._changed = changed
        self._submitted = submitted
        self._position = 0

    def ask(self, mode: PromptMode, value: str) -> None:
        """Open the prompt in a mode."""
        self.mode, self._position = mode, len(_HISTORY[mode])
        self.placeholder = _PLACEHOLDERS[mode]
        self.sign.update(mode)
        self._show(is_open=True)
        self.open(value)

    def close(self) -> None:
        """Hide the field and empty it."""
        super().close()
        self._show(is_open=False)

    def _show(self, *, is_open: bool) -> None:
        """Show the prompt instead of the key bar: keys of the bar do not act while text is typed."""
        self.sign.display = is_open
        self.screen.set_class(is_open, "asks")

    def watch_value(self, value: str) -> None:
        """Report each letter by a direct call, not a message: the next key may act on the filtered rows."""
        if self.display:
            self._changed(self.mode, value)

    async def action_submit(self) -> None:
        """Submit the line, awaited: the key after enter goes to the pane that then has the focus."""
        history = _HISTORY[self.mode]
        if self.value and self.value not in history[-1:]:  # as in a shell: no repeated lines
            history.append(self.value)
            del history[:-MAX_REMEMBERED]
        await self._submitted(self.mode, self.value.strip())

    def action_older(self) -> None:
        """Recall the previous line."""
        self._recall(-1)

    def action_newer(self) -> None:
        """Recall the next line."""
        self._recall(1)

    def action_complete(self) -> None:
        """Accept the completion."""
        self.value = self._completed(self.value)
        self.cursor_position = len(self.value)

    def _completed(self, text: str) -> str:
        return self._complete(text) if self.mode is PromptMode.COMMAND else text

    def _recall(self, by: int) -> None:
        history = _HISTORY[self.mode]
        self._position = max(0, min(len(history), self._position + by))
        self.value = history[self._position] if self._position < len(history) else ""
        self.cursor_position = len(self.value)


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
