"""Driver of the app in a browser tab: Textual's own, with keyboard focus and repaints controlled by the page."""

from __future__ import annotations

from typing import Any

from textual import events
from textual.drivers import web_driver


class WebDriver(web_driver.WebDriver):
    """Textual's driver with handling of two more messages of the page."""

    def on_meta(self, packet_type: str, payload: dict[str, Any]) -> None:
        """Process a message of the server; runs in the thread that reads standard input."""
        app = self._app
        if packet_type == "focus":
            # Textual starts a served app without focus, by an event queued behind a callback. A page that already
            # has the focus must be handled after that event, so it uses the same queue.
            app.call_later(app.post_message, events.AppFocus())
        elif packet_type == "repaint":
            app.call_later(app.run_action, "redraw")
        else:
            super().on_meta(packet_type, payload)
