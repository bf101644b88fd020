"""Key dispatch that finishes one key before it takes the next, however fast they come.

Textual passes a key from queue to queue, from the focused widget up to the app, which then looks up its binding. A
key that moves the focus, such as ``/``, therefore takes effect only after the following letters went to the widget
that had the focus. The beginning of text that is pasted, or typed by a script, would then act as keys of the table,
one of which kills a pod. Here a key is looked up, and a letter delivered to its field, before the next key is taken
from the terminal.
"""

from __future__ import annotations

from textual import events
from textual.app import App
from textual.widget import Widget


class KeyQueueApp(App[None]):
    """App that handles each key completely before it takes the next one from the terminal."""

    async def on_event(self, event: events.Event) -> None:
        """Deliver typed and pasted text directly to the focused field; other events take Textual's usual way."""
        if isinstance(event, events.Key | events.Paste) and not event.is_forwarded:
            field = self.focused
            if field is not None and _is_for(field, event):
                event._set_forwarded()  # noqa: SLF001  (else a key that bubbles would be redelivered forever)
                await field.on_event(event)
                return
        await super().on_event(event)

    async def _check_bindings(self, key: str, priority: bool = False) -> bool:
        """Check all bindings when Textual checks those with priority, which is when the key leaves the terminal.

        Not again when the key has bubbled: by then another screen may be active, for which the key was not meant.
        """
        return priority and (
            await super()._check_bindings(key, priority=True) or await super()._check_bindings(key)
        )


def _is_for(field: Widget, event: events.Key | events.Paste) -> bool:
    return isinstance(event, events.Paste) or field.check_consume_key(event.key, event.character)
