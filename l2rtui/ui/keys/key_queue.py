"""Keys take effect in the order in which they are pressed, however fast they come.

Textual passes a key from one queue to the next, from the widget with the focus up to the app, which then looks for
its binding. A key that moves the focus, such as ``/``, so takes effect after the letters behind it have been sent
to the widget that had the focus: a line that is pasted, or typed by a script, loses its beginning to the keys of
the table, of which one kills a pod. Here a key is looked up, and a letter put into its field, before the next key
is taken from the terminal.
"""

from __future__ import annotations

from textual import events
from textual.app import App
from textual.widget import Widget


class KeyOrder(App[None]):
    """An app that has done with a key before it takes the next."""

    async def on_event(self, event: events.Event) -> None:
        """Give a field what is typed into it at once; everything else goes the usual way."""
        if isinstance(event, events.Key | events.Paste) and not event.is_forwarded:
            field = self.focused
            if field is not None and _is_for(field, event):
                event._set_forwarded()  # noqa: SLF001  (else a widget that lets it pass would be asked for ever)
                await field.on_event(event)
                return
        await super().on_event(event)

    async def _check_bindings(self, key: str, priority: bool = False) -> bool:
        """Look at all bindings when those with priority are asked for: when the key comes from the terminal.

        Not once more when it has bubbled: by then there may be another screen, to which it was not meant.
        """
        return priority and (
            await super()._check_bindings(key, priority=True) or await super()._check_bindings(key)
        )


def _is_for(field: Widget, event: events.Key | events.Paste) -> bool:
    return isinstance(event, events.Paste) or field.check_consume_key(event.key, event.character)
