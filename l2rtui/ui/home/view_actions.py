"""View of the home screen: filters by typed text, faults, owner and name, and links to what it shows."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from l2rtui.domain.node import SlotId
from l2rtui.domain.selection.shared_view import SharedView, parse_view
from l2rtui.services import filters
from l2rtui.services.terminal import write
from l2rtui.ui.home.home_view import HomeView
from l2rtui.ui.home.selection import Pane
from l2rtui.ui.widgets.virtual_table import VirtualTable

_VIEWS: Final = {
    "slots": Pane.SLOTS,
    "runs": Pane.RUNS,
    "pods": Pane.PODS,
    "nodes": Pane.NODES,
    "events": Pane.EVENTS,
    "seeds": Pane.RUNS,  # of files that earlier versions wrote
}
"""Names of the views in saved filters."""


class FilterActions:
    """Actions that narrow the lists of the home screen."""

    def __init__(self, view: HomeView) -> None:
        self._view = view

    def filter_text(self) -> str:
        """Return the filter of the list that has the focus, or had it last."""
        panes = self._view.panes
        table = panes.nodes if panes.last_list is Pane.SLOTS else panes.table
        return table.model.filter_text if table is not None else ""

    def set_filter(self, pane: Pane, text: str) -> None:
        """Filter a table; slots use the filter of their nodes."""
        panes, content = self._view.panes, self._view.content
        if pane is Pane.SLOTS:
            content.show_nodes()  # the node table may be hidden and have rows of an old snapshot
            panes.nodes.narrow(text=text)
            panes.slots.only = frozenset(panes.nodes.model.displayed) if text.strip() else None
            content.titles.show()
        elif panes.table is not None:
            panes.table.narrow(text=text)

    def clear(self) -> None:
        """Show all rows again and remove all marks."""
        self._view.panes.slots.only = None
        for table in self._view.panes.filtered_tables:
            table.narrow(text="", faults_only=False)
            table.clear_marks()

    def action_faults(self) -> None:
        """List only faults, or everything again: key ``!``.

        Every table hides its rows without ``Row.is_fault``, which the row functions set. Faults are a run or pod
        whose status has level BAD or WARN; a node that is not ready, is cordoned or has a failing pod; an event of
        type Warning.
        """
        faults_only = not self._view.panes.pods.model.faults_only
        for table in self._view.panes.filtered_tables:
            table.narrow(faults_only=faults_only)

    def action_mine(self) -> None:
        """List only the user's own runs and pods, or all of them."""
        content = self._view.content
        content.is_mine_only = not content.is_mine_only
        content.show_runs()
        content.show_pods()
        content.titles.show()

    def action_all_pods(self) -> None:
        """List the pods of all runs, or of the selected one."""
        content = self._view.content
        content.has_all_pods = not content.has_all_pods
        content.show_pods()
        content.titles.show()

    def action_view(self, pane: str, text: str) -> None:
        """Open a view with a filter."""
        target = Pane(pane)
        self._view.navigation.open(target)
        if target is Pane.PODS and text and not self._view.content.has_all_pods:
            self.action_all_pods()  # a filter on pods applies to all runs, not only to the run under the cursor
        if text or target is Pane.SLOTS:
            self.set_filter(target, text)

    def action_sort_by(self, column: str) -> None:
        """Sort the list that has the focus, or had it last, by a column; without a name, list the columns."""
        table = self._view.panes.table
        if table is None:
            self._view.say("Go to a table first: 2 goes to the runs, 3 to the pods.", is_error=True)
        elif not table.sort_on(column):
            listing = ", ".join(column.title for column in table.model.columns if column.title)
            missing = f"There is no column {column.removeprefix('-')!r}. " if column else ""
            self._view.say(f"{missing}Columns: {listing}; -COLUMN sorts downwards.", is_error=bool(column))

    def named_filters(self) -> dict[str, str]:
        """Return saved filters and those of the settings; on equal names the settings win."""
        return {**filters.saved_filters(), **dict(self._view.ctx.settings.filters)}

    def action_filter(self, name: str) -> None:
        """Apply a filter by its name; without a name, list the names."""
        named = self.named_filters()
        text = named.get(name)
        if text is None:
            listing = ", ".join(f"{key} ({named[key]})" for key in sorted(named))
            available = f"Filters: {listing}." if named else "None is saved yet: `:save-filter NAME` saves one."
            self._view.say(f"There is no filter {name!r}. {available}" if name else available, is_error=bool(name))
            return
        view, _, rest = text.partition(" ")
        self.action_view(_VIEWS[view], rest.strip())

    def action_keep_filter(self, name: str) -> None:
        """Save the filter of this view under a name."""
        last_list = self._view.panes.last_list
        view = next((view for view, pane in _VIEWS.items() if pane is last_list), "")
        text = self.filter_text()
        if not view or not text or not name:
            self._view.say("Filter a view with / and then write `:save-filter NAME`.", is_error=True)
            return
        self._save(name, f"{view} {text}", f"`:filter {name}` shows {view} {text}")

    def action_forget_filter(self, name: str) -> None:
        """Delete a saved filter."""
        if name in dict(self._view.ctx.settings.filters):
            self._view.say(f"{name} is defined in the settings file: remove it there.", is_error=True)
        elif name not in filters.saved_filters():
            self._view.say(f"There is no filter {name!r}.", is_error=True)
        else:
            self._save(name, "", f"deleted the filter {name}")

    def _save(self, name: str, text: str, sentence: str) -> None:
        async def save() -> None:
            await asyncio.to_thread(filters.save_filter, name, text)
            self._view.say(sentence)

        self._view.ctx.background.start(save(), group="filters", what="the filters")


class ViewSharing:
    """Links to the current view of the home screen."""

    def __init__(self, view: HomeView, filters: FilterActions) -> None:
        self._view = view
        self._filters = filters

    def action_share(self, path: str = "") -> None:
        """Copy the command that opens this view, or write its link to a file: ``:share``."""
        link = self.current().link
        try:
            parse_view(link)  # the shared link must open: a filter may be too long for a link
        except ValueError as error:
            self._view.say(str(error), is_error=True)
            return
        if not path:
            self._view.ctx.background.copy(write([("--view", link)]))
            return

        async def save() -> None:
            from l2rtui.ui.saved_files import save_text

            target = await asyncio.to_thread(save_text, path, f"{link}\n")
            self._view.say(f"The view is in {target}: `l2rtui --view FILE` opens it.")

        self._view.ctx.background.start(save(), group="save", what=f"saving {path}")

    def current(self) -> SharedView:
        """Return the current view."""
        view, panes, ctx = self._view, self._view.panes, self._view.ctx
        backend = ctx.backend_or_none
        contexts = backend.contexts if backend is not None else None
        run = view.snapshot.runs.get(panes.runs.cursor_key or "")
        models = {name: table.model for name, table in self._tables.items()}
        return SharedView(
            backend.name if backend is not None else "",
            contexts.current if contexts is not None else "",
            ctx.settings.namespaces,
            panes.last_list,
            run.name if run is not None else "",
            self._selected(),
            view.content.is_mine_only,
            view.content.has_all_pods,
            panes.pods.model.faults_only,
            tuple((name, model.filter_text) for name, model in models.items() if model.filter_text),
            tuple(
                (name, f"{'-' if model.is_descending else ''}{model.columns[model.sort_column].key}")
                for name, model in models.items()
                if model.sort_column is not None
            ),
        )

    @property
    def _tables(self) -> Mapping[str, VirtualTable]:
        panes = self._view.panes
        return {"runs": panes.runs, "pods": panes.pods, "nodes": panes.nodes, "events": panes.kube_events}

    def _selected(self) -> str:
        """Return the name of the row or slot under the cursor; a node's key is its name."""
        panes, snapshot = self._view.panes, self._view.snapshot
        match panes.last_list:
            case Pane.PODS:
                pod = snapshot.pods.get(panes.pods.cursor_key or "")
                return pod.name if pod is not None else ""
            case Pane.NODES:
                return panes.nodes.cursor_key or ""
            case Pane.SLOTS:
                return str(panes.slots.cursor_slot or "")
        return ""

    def apply(self, shared: SharedView) -> None:
        """Show the view of a link, and report rows and columns that do not exist here."""
        content, panes = self._view.content, self._view.panes
        content.is_mine_only, content.has_all_pods = shared.is_mine, shared.has_all_pods
        content.show_runs()
        missing: list[str] = []
        for name, table in self._tables.items():
            table.narrow(text=dict(shared.filters).get(name, ""), faults_only=shared.faults_only)
            column = dict(shared.sorts).get(name, "")
            if column and not table.sort_on(column):
                missing.append(f"column {column.removeprefix('-')} of the {name}")
        run = self._view.snapshot.run_named(shared.run) if shared.run else None
        if shared.run and (run is None or not panes.runs.move_to(run.uid)):
            missing.append(f"run {shared.run}")
        self._view.navigation.action_pane(shared.pane)
        if shared.pane == Pane.SLOTS:
            self._filters.set_filter(Pane.SLOTS, dict(shared.filters).get("nodes", ""))
        if shared.selected and not self._select(Pane(shared.pane), shared.selected):
            missing.append(shared.selected)
        content.titles.show()
        if missing:
            self._view.say(f"The view names objects that do not exist here: {', '.join(missing)}.", is_error=True)

    def _select(self, pane: Pane, name: str) -> bool:
        panes, snapshot = self._view.panes, self._view.snapshot
        if pane is Pane.SLOTS:
            with suppress(ValueError):
                panes.slots.move_to(SlotId.parse(name))
            return str(panes.slots.cursor_slot) == name
        if pane is Pane.NODES:
            return panes.nodes.move_to(name)
        if pane is Pane.PODS:
            uids = [uid for uid, pod in snapshot.pods.items() if pod.name == name]
            return any(map(panes.pods.move_to, uids))
        return False
