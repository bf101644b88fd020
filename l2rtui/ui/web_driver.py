"""Driver of the app behind a browser tab: Textual's own, whose keyboard focus and picture follow the page."""

from __future__ import annotations

from typing import Any

from textual import events
from textual.drivers import web_driver


class WebDriver(web_driver.WebDriver):
    """Textual's driver with two more rules for what a page says."""

    def on_meta(self, packet_type: str, payload: dict[str, Any]) -> None:
        """Process a message of the server; runs in the thread that reads standard input."""
        app = self._app
        if packet_type == "focus":
            # Textual begins a served app as one without focus, by an event that stands behind a callback in the
            # queue. A page that has the focus at once must come behind it, so it takes the same way.
            app.call_later(app.post_message, events.AppFocus())
        elif packet_type == "repaint":
            app.call_later(lambda: app.screen.refresh(layout=True))
        else:
            super().on_meta(packet_type, payload)
