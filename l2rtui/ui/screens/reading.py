"""The reading half of the home screen: what is typed, logs, events, leaks, descriptions. It changes no run."""

from __future__ import annotations

import asyncio
import csv
import io
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from textual import on

from l2rtui.backends.base import Inspector
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import PodView, RunView
from l2rtui.domain.workload import RunSpec
from l2rtui.services import filters
from l2rtui.ui import twins
from l2rtui.ui.commands import COMMANDS, command_named, complete
from l2rtui.ui.feeds import Subject
from l2rtui.ui.messages import LookWanted
from l2rtui.ui.screens.deck import SINCE
from l2rtui.ui.screens.panes import ClusterView
from l2rtui.ui.screens.purpose import Purpose
from l2rtui.ui.screens.selection import Pane
from l2rtui.ui.specfiles import example_specs
from l2rtui.ui.text import Line, Span, plural
from l2rtui.ui.widgets.log_pane import LogPane
from l2rtui.ui.widgets.report_tables import event_row, leak_row

if TYPE_CHECKING:  # the first frame needs no field
    from textual.widgets import Input

    from l2rtui.ui.screens.prompt import Prompt


_VIEWS: Final = {
    "slots": Pane.SLOTS,
    "seeds": Pane.RUNS,
    "pods": Pane.PODS,
    "nodes": Pane.NODES,
    "events": Pane.EVENTS,
}
"""What filters with a name call the views."""


class Reading(ClusterView):
    """Looking closer."""

    prompt: Prompt | None = None

    # --- what is typed -----------------------------------------------------------------------------------------
    def mount_prompt(self) -> None:
        """Have the line at hand, out of sight."""
        if self.prompt is None:
            from l2rtui.ui.screens.prompt import Prompt

            self.prompt = Prompt(self._complete)
            self.mount(self.prompt)

    @property
    def is_typing(self) -> bool:
        """Whether the line is open."""
        return self.prompt is not None and bool(self.prompt.display)

    def ask(self, purpose: Purpose, value: str = "") -> None:
        """Open the line at the bottom."""
        if self.prompt is None:
            self.mount_prompt()
        if self.prompt is not None and not self.prompt.display:
            self.prompt.open(purpose, value)

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

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter or search while it is typed."""
        match getattr(event.input, "purpose", None):
            case Purpose.SEARCH:
                self.log_pane.find(event.value)
            case Purpose.FILTER:
                self.narrow(self.last_list, event.value)

    def narrow(self, pane: Pane, text: str) -> None:
        """Filter a table; the slots are filtered by their nodes."""
        if pane is Pane.SLOTS:
            self.show_nodes()
            self.nodes.narrow(text=text)
            self.slots.only = frozenset(self.nodes.model.shown) if text.strip() else None
            self.show_titles()
        elif self.table is not None:
            self.table.narrow(text=text)

    async def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take what was typed."""
        field = self.prompt
        if field is None or event.input is not field or not field.display:
            return
        field.remember()
        value = field.value.strip()
        self.close_prompt(keep=True)
        match field.purpose:
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
        if field is None:
            return
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

        self.link.background.start(describe(target, backend), group="describe", what="the description")

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

        self.link.background.start(show(run.name), group="describe", what=f"the spec of {run.name}")

    def read(self, title: str, lines: list[Line] | tuple[Line, ...]) -> None:
        """Show lines on a screen of their own."""
        from l2rtui.ui.screens.detail import DetailScreen

        self.app.push_screen(DetailScreen(lines, sanitize(title)))

    # --- logs --------------------------------------------------------------------------------------------------
    def action_logs(self) -> None:
        """Go to the log, at once."""
        self.show_log()
        self.run_action_pane(Pane.LOG)

    def action_log_of(self, target: str) -> None:
        """The log of what was named, in a pane that keeps it."""
        if not target:
            self.action_logs()
            return
        pods = self.snapshot.select(target)
        if not pods:
            self.link.background.say(f"There is no run, set or pod {target!r}.", is_error=True)
            return
        desk = self.deck.split() or self.deck.active
        runs = {pod.run for pod in pods}
        desk.show(Subject(f"named {target}", target, min(runs) if len(runs) == 1 else "", pods, len(pods) > 1))
        self.call_after_refresh(self.set_focus, desk.pane)

    def action_split(self) -> None:
        """Keep this log and open another pane."""
        self.show_log()
        desk = self.deck.split()
        if desk is None:
            self.link.background.say("Four panes are open; x in a pane closes it.")
        else:
            self.show_titles()
            self.call_after_refresh(self.set_focus, desk.pane)

    @on(LogPane.CloseWanted)
    def _close_wanted(self, event: LogPane.CloseWanted) -> None:
        if not self.deck.close(self.deck.desk_of(event.pane)):
            self.link.background.say("The last log stays; | opens another pane.")
            return
        self.show_log()
        self.set_focus(self.log_pane)

    def action_previous_log(self) -> None:
        """The process before the present one, and back."""
        desk = self.deck.active
        subject = self.subject()
        if not subject.pods:
            self.link.background.say("Nothing with a log is selected.")
            return
        if self.focused_pane is not Pane.LOG:
            desk = self.deck.desks[0]
            desk.show(subject)
        desk.is_previous = not desk.is_previous
        desk.again()
        self.run_action_pane(Pane.LOG)
        self.show_titles()

    @on(LogPane.SinceWanted)
    def _since_wanted(self, event: LogPane.SinceWanted) -> None:
        desk = self.deck.desk_of(event.pane)
        desk.since = event.span
        desk.again()
        self.show_titles()

    @on(LogPane.AskWanted)
    def _pattern_wanted(self, event: LogPane.AskWanted) -> None:
        is_include = event.what == "include"
        value = event.pane.include if is_include else event.pane.exclude
        self.ask(Purpose.INCLUDE if is_include else Purpose.EXCLUDE, value)

    def action_narrow_log(self, what: str, pattern: str) -> None:
        """Show only lines that match, or hide them."""
        try:
            if what == "include":
                self.log_pane.narrow(include=pattern)
            else:
                self.log_pane.narrow(exclude=pattern)
        except re.error as error:
            self.link.background.say(f"{pattern!r} is no pattern: {error}.", is_error=True)

    @on(LogPane.SaveWanted)
    def _save_wanted(self) -> None:
        name = re.sub(r"[^\w.-]+", "-", self.log_feed.subject.title or "log")
        self.ask(Purpose.SAVE, f"{name}.log")

    def action_save_log(self, path: str) -> None:
        """Save the shown lines."""
        lines = self.log_pane.shown_lines()
        self._write(path or "l2rtui.log", "".join(f"{line}\n" for line in lines), plural(len(lines), "line"))

    def action_export(self, path: str) -> None:
        """Write the shown rows of the table as CSV."""
        table = self.table
        if table is None or not path:
            self.link.background.say("Write `:export FILE` while a table is open.")
            return
        file = io.StringIO()
        writer = csv.writer(file)
        writer.writerow([column.key for column in table.model.columns])
        for key in table.model.shown:
            row = table.model.rows[key]
            writer.writerow([table.model.text(row, number) for number in range(len(row.cells))])
        self._write(path, file.getvalue(), plural(len(table.model.shown), "row"))

    def _write(self, path: str, text: str, what: str) -> None:
        async def write() -> None:
            where = await asyncio.to_thread(_save, path, text)
            self.link.background.say(f"wrote {what} to {where}")

        self.link.background.start(write(), group="save", what=f"saving {path}")

    def log_twin(self) -> str:
        """The command line that reads the log which is shown."""
        desk = self.deck.active
        subject = desk.feed.subject
        head = subject.key.partition(" ")[0]
        targets = [subject.title] if head in ("run", "pod", "named") else [pod.name for pod in subject.pods]
        return twins.logs(
            targets or ["RUN"],
            since_seconds=SINCE[desk.since][0],
            is_previous=subject.is_previous,
            include=desk.pane.include,
            exclude=desk.pane.exclude,
        )


def _as_yaml(spec: RunSpec) -> str:
    import yaml

    from l2rtui.services.specdump import to_document

    return str(yaml.safe_dump(to_document(spec), sort_keys=False, allow_unicode=True))


def _save(path: str, text: str) -> Path:
    """Write a new file.

    Raises:
        UsageError: it is there already, or cannot be written.
    """
    from l2rtui.errors import UsageError

    where = Path(path).expanduser()
    try:
        with where.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        reason = "it is there already" if isinstance(error, FileExistsError) else error.strerror
        raise UsageError(f"{where} was not written: {reason}.", "Name another file.") from error
    return where.absolute()
