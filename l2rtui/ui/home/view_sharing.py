"""Sharing of the view: export the current view as a link, and open such a link."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from l2rtui.domain.node import SlotId
from l2rtui.domain.selection.shared_view import SharedView, parse_view
from l2rtui.services.terminal import write
from l2rtui.ui.home.filter_actions import FilterActions
from l2rtui.ui.home.home_view import HomeView
from l2rtui.ui.home.selection import Pane
from l2rtui.ui.widgets.virtual_table import VirtualTable


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
