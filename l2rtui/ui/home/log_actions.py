"""Actions on the logs of the home screen: panes, time spans, patterns, and saving of lines and tables."""

from __future__ import annotations

import asyncio
import csv
import io
import re

from l2rtui.domain.quantity import counted
from l2rtui.ui.home.home_view import HomeView
from l2rtui.ui.home.log_panes import SINCE
from l2rtui.ui.home.log_stream import LogSelection
from l2rtui.ui.home.selection import Pane
from l2rtui.ui.keys import cli_equivalents
from l2rtui.ui.saved_files import save_text


class LogActions:
    """Actions on the active log: the one that has the focus, or had it last."""

    def __init__(self, view: HomeView) -> None:
        self._view = view

    def action_logs(self) -> None:
        """Focus the log of the selection, without the delay with which it follows the cursor."""
        self._view.content.show_log()
        self._view.navigation.go_to(Pane.LOG)

    def action_log_of(self, target: str) -> None:
        """Show the log of a run, set or pod in a pinned pane; without a name, the log of the selection."""
        if not target:
            self.action_logs()
            return
        pods = self._view.snapshot.select(target)
        if not pods:
            self._view.say(f"There is no run, set or pod {target!r}.", is_error=True)
            return
        logs = self._view.panes.logs
        log = logs.split() or logs.active
        runs = {pod.run for pod in pods}
        log.show(LogSelection(f"named {target}", target, min(runs) if len(runs) == 1 else "", pods, len(pods) > 1))
        self._view.panes.focus_log(log)

    def action_split(self) -> None:
        """Keep this log in another pane. In a list the focus stays there, so that the next row can be kept too."""
        is_in_log = self._view.panes.focused_pane is Pane.LOG
        self._view.content.show_log()
        log = self._view.navigation.split_log()
        if log is not None:
            self._view.content.titles.show()
            if is_in_log:
                self._view.panes.focus_log(log)

    def action_close_log(self) -> None:
        """Close the active log pane."""
        logs = self._view.panes.logs
        if not logs.close(logs.active):
            self._view.say("The last log stays; | opens another pane.")
            return
        self._view.content.show_log()
        self._view.panes.focus(Pane.LOG)

    def action_previous_log(self) -> None:
        """Switch between the log of the previous process and that of the current one."""
        log = self._view.panes.logs.active
        selection = self._view.content.log_selection()
        if not selection.pods:
            self._view.say("Nothing with a log is selected.")
            return
        if self._view.panes.focused_pane is not Pane.LOG:
            log = self._view.panes.logs.controllers[0]
            log.show(selection)
        log.is_previous = not log.is_previous
        log.reload()
        self._view.navigation.go_to(Pane.LOG)
        self._view.content.titles.show()

    def action_log_since(self, by: int) -> None:
        """Show the next time span of ``SINCE``, or with -1 the previous one; after the last one all lines."""
        log = self._view.panes.logs.active
        log.since = (log.since + by) % len(SINCE)
        log.reload()
        self._view.content.titles.show()

    def action_narrow_log(self, what: str, pattern: str) -> None:
        """Show only lines that match (``include``), or hide them (``exclude``)."""
        pane = self._view.panes.log_pane
        try:
            pane.narrow(**{what: pattern})
        except re.error as error:
            self._view.say(f"{pattern!r} is no pattern: {error}.", is_error=True)

    def file_name(self) -> str:
        """Return the file name that is proposed for saving the active log."""
        title = self._view.panes.logs.active.selection.title or "log"
        name = re.sub(r"[^\w.-]+", "-", title)
        return f"{name}.log"

    def action_save_log(self, path: str) -> None:
        """Save the shown lines."""
        lines = self._view.panes.log_pane.ring.as_text()
        self._write(path or "l2rtui.log", "".join(f"{line}\n" for line in lines), counted(len(lines), "line"))

    def action_export(self, path: str) -> None:
        """Write the shown rows of the table as CSV, or the charts as SVG or CSV, by the file's ending."""
        charts = self._view.panes.charts
        if path and self._view.panes.last_list is Pane.CHARTS:
            text = charts.as_svg() if path.endswith(".svg") else charts.as_csv()
            self._write(path, text, f"chart of {counted(len(charts.groups), 'curve')}")
            return
        table = self._view.panes.table
        if table is None or not path:
            self._view.say("Write `:export FILE` while a table or the charts are open.")
            return
        file = io.StringIO()
        writer = csv.writer(file)
        # A column without a title is only visual: the letter of a run changes once an older run is deleted.
        columns = [number for number, column in enumerate(table.model.columns) if column.title]
        writer.writerow([table.model.columns[number].key for number in columns])
        for key in table.model.displayed:
            row = table.model.rows[key]
            writer.writerow([table.model.text(row, number) for number in columns])
        self._write(path, file.getvalue(), counted(len(table.model.displayed), "row"))

    def _write(self, path: str, text: str, what: str) -> None:
        async def write() -> None:
            target = await asyncio.to_thread(save_text, path, text)
            self._view.say(f"saved {what} in {target}")

        self._view.ctx.background.start(write(), group="save", what=f"saving {path}")

    def cli_equivalent(self) -> str:
        """Return the command line that reads the active log."""
        log = self._view.panes.logs.active
        selection = log.selection
        # The CLI has no name for a log of marked pods, so its pods are named individually.
        has_name = selection.key.partition(" ")[0] in ("run", "pod", "named")
        targets = [selection.title] if has_name else [pod.name for pod in selection.pods]
        command = cli_equivalents.logs(
            targets or ["RUN"],
            since_seconds=SINCE[log.since][0],
            is_previous=selection.is_previous,
            include=log.pane.log_filter.include,
            exclude=log.pane.log_filter.exclude,
        )
        return self._view.ctx.command_line(command, row=selection.pods[0] if selection.pods else None)
