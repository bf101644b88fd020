"""Choice of another context, or of other namespaces: ``:ctx`` and ``:ns``, and their completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from l2rtui.backends.base import Contexts
from l2rtui.backends.registry import ALL_CONTEXTS
from l2rtui.errors import L2RError
from l2rtui.ui.dialogs.menu import ChoiceScreen
from l2rtui.ui.home.home_view import HomeView
from l2rtui.ui.state.messages import ContextRequested

ALL_NAMESPACES: Final = "*"
"""Not a valid namespace name: it means all namespaces for viewing, and the context's own for launches."""


class ContextActions:
    """Actions that ask the app for another connection."""

    def __init__(self, view: HomeView) -> None:
        self._view = view
        self._ctx = view.ctx
        self._contexts: tuple[str, ...] | None = None
        self._namespaces: tuple[str, ...] | None = None

    def action_context(self, name: str = "") -> None:
        """Switch to a context of the kubeconfig, or show several (``a,b``, ``*``); without a name, list them."""
        contexts = self._reader("contexts")
        if contexts is None:
            return
        if name:
            self._view.screen.app.post_message(ContextRequested(name))
            return
        try:
            self._contexts = contexts.names()  # read again: another program may have added one
        except L2RError as error:
            self._view.say(str(error), is_error=True)
            return

        def chosen(choice: str | None) -> None:
            if choice:
                self.action_context(choice)

        # Last, not first: most users want a single cluster.
        several = (ALL_CONTEXTS,) if len(self._contexts) > 1 else ()
        screen = ChoiceScreen("Contexts", (*self._contexts, *several), contexts.current.split(","))
        self._view.screen.app.push_screen(screen, chosen)

    def action_namespaces(self, names: str = "") -> None:
        """Show these namespaces, separated by commas, and launch in the first; without names, choose from a
        list.
        """
        contexts = self._reader("namespaces")
        if contexts is None:
            return
        if not names:
            work = self._choose_namespace(contexts)
            self._ctx.background.start(work, group="namespaces", what="the namespaces", is_exclusive=True)
            return
        parts = tuple(dict.fromkeys(part.strip() for part in names.split(",") if part.strip()))
        chosen = () if ALL_NAMESPACES in parts else parts
        self._view.screen.app.post_message(ContextRequested(contexts.current, chosen))

    def _reader(self, what: str) -> Contexts | None:
        """Return the contexts of the backend, or None after showing why it has none."""
        if self._ctx.backend_or_none is None:
            self._view.say("The backend is not connected yet.")
            return None
        contexts = self._ctx.backend.contexts
        if contexts is None:
            hint = "`l2rtui --context NAME` opens a cluster."
            self._view.say(f"The {self._ctx.backend.name} backend has no {what}. {hint}", is_error=True)
        return contexts

    async def _choose_namespace(self, contexts: Contexts) -> None:
        try:
            self._namespaces = await contexts.namespaces()
        except L2RError as error:
            hint = "`:ns NAME` goes to one all the same."
            self._view.say(f"The namespaces cannot be listed: {error.message.rstrip('.')}. {hint}", is_error=True)
            return

        def chosen(choice: str | None) -> None:
            if choice:
                self.action_namespaces(choice)

        if self._view.screen.is_current:  # otherwise another dialog has been opened in the meantime
            present = self._ctx.settings.namespaces or (ALL_NAMESPACES,)
            screen = ChoiceScreen("Namespaces", (ALL_NAMESPACES, *self._namespaces), present)
            self._view.screen.app.push_screen(screen, chosen)

    # --- completions -------------------------------------------------------------------------------------------
    def context_names(self) -> Sequence[str]:
        """Return the contexts; empty if they cannot be read, since an error must not disturb typing."""
        backend = self._ctx.backend_or_none
        if self._contexts is None and backend is not None and backend.contexts is not None:
            try:
                self._contexts = backend.contexts.names()
            except L2RError:
                self._contexts = ()
        return self._contexts or ()

    def namespace_names(self) -> Sequence[str]:
        """Return the namespaces of the shown pods and, once listed, all others."""
        backend = self._ctx.backend_or_none
        if self._namespaces is None and backend is not None and backend.contexts is not None:
            self._namespaces = ()
            work = self._list_namespaces(backend.contexts)
            self._ctx.background.start(work, group="namespaces", what="the namespaces", is_exclusive=True)
        visible = {pod.namespace for pod in self._view.snapshot.pods.values()}
        return sorted(visible.union(self._namespaces or ()))

    async def _list_namespaces(self, contexts: Contexts) -> None:
        try:
            self._namespaces = await contexts.namespaces()
        except L2RError:
            return  # the user may not list them: only those of the shown pods are completed
