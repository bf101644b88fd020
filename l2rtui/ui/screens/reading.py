"""The reading half of the home screen: what is typed, events, leaks, descriptions. It changes no run."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from l2rtui.backends.base import Inspector
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import PodView, RunView
from l2rtui.domain.workload import RunSpec
from l2rtui.services import filters
from l2rtui.ui.commands import COMMANDS, command_named, complete
from l2rtui.ui.link import Link
from l2rtui.ui.messages import LookWanted
from l2rtui.ui.screens.logs import Logs
from l2rtui.ui.screens.prompt import Prompt
from l2rtui.ui.screens.purpose import Purpose
from l2rtui.ui.screens.selection import Pane
from l2rtui.ui.specfiles import example_specs
from l2rtui.ui.text import Line, Span
from l2rtui.ui.widgets.report_tables import event_row, leak_row

_VIEWS: Final = {
    "slots": Pane.SLOTS,
    "seeds": Pane.RUNS,
    "pods": Pane.PODS,
    "nodes": Pane.NODES,
    "events": Pane.EVENTS,
}
"""What filters with a name call the views."""


class Reading(Logs):
    """Looking closer."""

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self.prompt = Prompt(self._complete, self._typed, self._taken)

    async def mount_rest(self) -> None:
        """The line at hand, out of sight."""
        await super().mount_rest()
        await self.mount(self.prompt)

    # --- what is typed -----------------------------------------------------------------------------------------
    @property
    def is_typing(self) -> bool:
        """Whether the line is open."""
        return bool(self.prompt.display)

    def ask(self, purpose: Purpose, value: str = "") -> None:
        """Open the line at the bottom."""
        if not self.prompt.display:
            self.prompt.ask(purpose, value)

    def action_find(self) -> None:
        """Filter the table or the slots, or search the log."""
        if self.focused_pane is Pane.LOG:
            self.ask(Purpose.SEARCH, self.log_pane.search)
        elif self.last_list is Pane.SLOTS:
            self.ask(Purpose.FILTER, self.nodes.model.filter_text)
        else:
            self.ask(Purpose.FILTER, self.table.model.filter_text if self.table is not None else "")

    def action_command_line(self) -> None:
        """Type a command."""
        self.ask(Purpose.COMMAND)

    def _typed(self, purpose: Purpose, value: str) -> None:
        match purpose:
            case Purpose.SEARCH:
                self.log_pane.find(value)
            case Purpose.FILTER:
                self.narrow(self.last_list, value)

    def narrow(self, pane: Pane, text: str) -> None:
        """Filter a table; the slots are filtered by their nodes."""
        if pane is Pane.SLOTS:
            self.show_nodes()
            self.nodes.narrow(text=text)
            self.slots.only = frozenset(self.nodes.model.shown) if text.strip() else None
            self.show_titles()
        elif self.table is not None:
            self.table.narrow(text=text)

    async def _taken(self, purpose: Purpose, value: str) -> None:
        self.close_prompt(keep=True)
        match purpose:
            case Purpose.COMMAND:
                await self.run_command(value)
            case Purpose.INCLUDE:
                self.action_narrow_log("include", value)
            case Purpose.EXCLUDE:
                self.action_narrow_log("exclude", value)
            case Purpose.SAVE:
                self.action_save_log(value)
            case Purpose.SIGNAL if value:
                await self.run_command(f"signal {value}")
            case Purpose.FORWARD if value:
                await self.run_command(f"forward {value}")

    def close_prompt(self, *, keep: bool) -> None:
        """Take the line away and give the focus back; without ``keep`` as if nothing had been typed."""
        field = self.prompt
        if not keep and field.purpose is Purpose.SEARCH:
            self.log_pane.find("")
        elif not keep and field.purpose is Purpose.FILTER:
            self.narrow(self.last_list, "")
        field.close()
        is_log = field.purpose in (Purpose.SEARCH, Purpose.INCLUDE, Purpose.EXCLUDE, Purpose.SAVE)
        self.set_focus(self.log_pane if is_log else self.pane(self.last_list))

    async def run_command(self, text: str) -> None:
        """Do what was typed after the colon."""
        word, _, rest = text.partition(" ")
        command = command_named(word)
        if not word:
            return
        if command is None:
            likely = " ".join(one.name for one in COMMANDS if one.name[:1] == word[:1])
            hint = f" Did you mean {likely}?" if likely else " `:help` lists them."
            self.link.background.say(f"There is no command {word!r}.{hint}", is_error=True)
            return
        name, _, arguments = command.action.partition("(")
        if reason := self.may(name):
            self.link.background.say(f":{command.name} is off: {reason}.")
            return
        await self.app.run_action(
            f"{name}({arguments.replace('%', repr(rest.strip()))}" if arguments else name, self
        )

    def _complete(self, text: str) -> str:
        tables = {"slots": self.nodes, "seeds": self.runs, "pods": self.pods, "nodes": self.nodes}
        columns = {name: [column.key for column in table.model.columns] for name, table in tables.items()}
        words = {
            **columns,
            "events": [column.key for column in self.kube_events.model.columns],
            "runs": sorted(run.name for run in self.snapshot.runs.values()),
            "themes": sorted(self.app.available_themes),
            "filters": sorted(self._filters()),
            "specs": [str(path) for path, _ in example_specs()] if text.startswith(("place ", "launch ")) else [],
        }
        return complete(text, words)

    def action_view(self, pane: str, text: str) -> None:
        """Go to a view, with a filter."""
        self.run_action_pane(pane)
        if text or Pane(pane) is Pane.SLOTS:
            self.narrow(Pane(pane), text)

    def run_action_pane(self, pane: str) -> None:
        """Go to a pane; the keys remember the way."""
        self.go_to(Pane(pane))
        self.entered(Pane(pane))

    # --- filters with a name -----------------------------------------------------------------------------------
    def _filters(self) -> dict[str, str]:
        """Those that were kept, then those of the settings, which win."""
        return {**filters.kept(), **dict(self.link.settings.filters)}

    def action_filter(self, name: str) -> None:
        """Show what a filter shows; without a name, say which there are."""
        found = self._filters()
        text = found.get(name)
        if text is None:
            names = ", ".join(f"{one} ({found[one]})" for one in sorted(found))
            known = f"Filters: {names}." if found else "No filter has a name yet: `:keep NAME` gives one."
            self.link.background.say(
                f"There is no filter {name!r}. {known}" if name else known, is_error=bool(name)
            )
            return
        view, _, rest = text.partition(" ")
        self.action_view(_VIEWS[view], rest.strip())

    def action_keep_filter(self, name: str) -> None:
        """Keep the filter of this view under a name."""
        view = next((view for view, pane in _VIEWS.items() if pane is self.last_list), "")
        table = self.nodes if self.last_list is Pane.SLOTS else self.table
        text = table.model.filter_text if table is not None else ""
        if not view or not text or not name:
            self.link.background.say("Filter a view with / and then write `:keep NAME`.", is_error=True)
            return
        self._keep(name, f"{view} {text}", f"`:filter {name}` shows {view} {text}")

    def action_forget_filter(self, name: str) -> None:
        """Forget a filter that was kept."""
        if name in dict(self.link.settings.filters):
            self.link.background.say(f"{name} stands in the settings file: remove it there.", is_error=True)
        elif name not in filters.kept():
            self.link.background.say(f"There is no filter {name!r}.", is_error=True)
        else:
            self._keep(name, "", f"{name} is forgotten")

    def _keep(self, name: str, text: str, sentence: str) -> None:
        async def keep() -> None:
            await asyncio.to_thread(filters.keep, name, text)
            self.link.background.say(sentence)

        self.link.background.start(keep(), group="filters", what="the filters")

    def action_theme(self, name: str) -> None:
        """Other colours."""
        if name in self.app.available_themes:
            self.app.theme = name
        else:
            self.link.background.say(f"There is no theme {name!r}: {' '.join(sorted(self.app.available_themes))}")

    # --- events and leaks --------------------------------------------------------------------------------------
    def entered(self, pane: Pane) -> None:
        """A view was opened: what is asked for and not watched is asked for."""
        if pane is Pane.LEAKS:
            self.link.background.start(self._ask_leaks(), group="leaks", what="the leaks", is_exclusive=True)
        elif pane is Pane.EVENTS:
            self.link.background.start(self._ask_events(), group="events", what="the events", is_exclusive=True)

    async def _ask_leaks(self) -> None:
        self.leaks.empty_text = "Looking."
        self.leaks.refresh()
        found = await self.link.backend.leaks()
        self.leaks.empty_text = f"Nothing is left of runs that are gone. Looked at {time.strftime('%H:%M:%S')}."
        self.leaks.set_rows([leak_row(leak) for leak in found])
        self.leaks.refresh()
        self.show_titles()

    async def _ask_events(self) -> None:
        backend = self.link.backend
        if not isinstance(backend, Inspector):
            self.kube_events.empty_text = (
                f"The {backend.name} backend has no events; restarts are marked in the log."
            )
            self.kube_events.refresh()
            return
        found = await backend.events()
        self.kube_events.empty_text = "No events."
        self.kube_events.set_rows([event_row(event) for event in reversed(found)])
        self.show_titles()

    def action_look_again(self) -> None:
        """Look at the cluster now."""
        self.entered(self.lower)
        self.app.post_message(LookWanted())

    # --- descriptions ------------------------------------------------------------------------------------------
    def action_detail(self) -> None:
        """Everything about the selection."""
        target: PodView | RunView | None = self.selection.pod(self.snapshot) or self.selection.run(self.snapshot)
        lines = self.about()
        if not lines:
            self.link.background.say("Nothing is selected.")
            return
        backend: object = self.link.backend_or_none
        if target is None or not isinstance(backend, Inspector):
            self.read("Selection", lines)
            return

        async def describe(target: PodView | RunView, backend: Inspector) -> None:
            told = await backend.describe(target)
            self.read(target.name, [*lines, (Span(""),), *((Span(sanitize(one)),) for one in told)])

        self.link.background.start(
            describe(target, backend), group="describe", what="the description", is_exclusive=True
        )

    def action_spec(self) -> None:
        """The spec of the run as YAML."""
        run = self.selection.run(self.snapshot)
        if run is None:
            self.link.background.say("Select a run whose spec is to be shown: 2 goes to the seeds.")
            return

        async def show(name: str) -> None:
            spec = await self.link.backend.spec(name)
            text = await asyncio.to_thread(_as_yaml, spec)
            self.read(f"{name}.yaml", [(Span(sanitize(line)),) for line in text.splitlines()])

        self.link.background.start(
            show(run.name), group="describe", what=f"the spec of {run.name}", is_exclusive=True
        )

    def read(self, title: str, lines: list[Line] | tuple[Line, ...]) -> None:
        """Show lines on a screen of their own."""
        from l2rtui.ui.screens.detail import DetailScreen

        self.app.push_screen(DetailScreen(lines, sanitize(title)))


def _as_yaml(spec: RunSpec) -> str:
    import yaml

    from l2rtui.services.specdump import to_document

    return str(yaml.safe_dump(to_document(spec), sort_keys=False, allow_unicode=True))
