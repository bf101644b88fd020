"""The keys of the logs on the home screen: which are shown, how far back, what is left out, and saving them."""

from __future__ import annotations

import asyncio
import csv
import io
import re
from pathlib import Path

from l2rtui.ui import twins
from l2rtui.ui.feeds import Subject
from l2rtui.ui.screens.deck import SINCE
from l2rtui.ui.screens.panes import ClusterView
from l2rtui.ui.screens.purpose import Purpose
from l2rtui.ui.screens.selection import Pane
from l2rtui.ui.text import plural


class Logs(ClusterView):
    """Reading what was written."""

    def ask(self, purpose: Purpose, value: str = "") -> None:
        """Open the line at the bottom."""

    def action_logs(self) -> None:
        """Go to the log, at once."""
        self.show_log()
        self.go_to(Pane.LOG)

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

    def action_close_log(self) -> None:
        """Close the pane with the focus."""
        if not self.deck.close(self.deck.active):
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
        self.go_to(Pane.LOG)
        self.show_titles()

    def action_log_since(self, span: int) -> None:
        """Show another span of time."""
        desk = self.deck.active
        desk.since = span
        desk.again()
        self.show_titles()

    def action_ask_log(self, what: str) -> None:
        """Open the line for a pattern, ``include`` or ``exclude``, or for the file of ``save``."""
        match what:
            case "include":
                self.ask(Purpose.INCLUDE, self.log_pane.include)
            case "exclude":
                self.ask(Purpose.EXCLUDE, self.log_pane.exclude)
            case _:
                name = re.sub(r"[^\w.-]+", "-", self.log_feed.subject.title or "log")
                self.ask(Purpose.SAVE, f"{name}.log")

    def action_narrow_log(self, what: str, pattern: str) -> None:
        """Show only lines that match, or hide them."""
        try:
            if what == "include":
                self.log_pane.narrow(include=pattern)
            else:
                self.log_pane.narrow(exclude=pattern)
        except re.error as error:
            self.link.background.say(f"{pattern!r} is no pattern: {error}.", is_error=True)

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
