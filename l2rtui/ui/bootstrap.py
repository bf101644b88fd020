"""Open the app. Imported before all else of the screen, for what must be so before that is.

While modules load and the first list comes in, nearly nothing becomes garbage, and looking for it again and again
would be a tenth of the time to the first rows; ``L2RApp`` looks for it again after ``GARBAGE_REST_SECONDS``.

What takes long is done in threads, and a key waits each time until such a thread lets the interpreter go.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from l2rtui.backends.base import Backend
    from l2rtui.config import Settings

SWITCH_SECONDS: Final = 0.001
"""A fifth of Python's own: a key and its paint take the interpreter back several times."""


def make_ready() -> None:
    """Have the interpreter as the app wants it, before its modules are imported."""
    gc.disable()
    sys.setswitchinterval(SWITCH_SECONDS)


def run(settings: Settings, make: Callable[[], Backend] | None = None) -> int:
    """Open the app; give its exit code.

    Args:
        make: Makes another backend than the one that the settings name.

    Raises:
        L2RError: the backend cannot be made.
    """
    make_ready()
    from l2rtui.ui.app import L2RApp

    def make_named() -> Backend:
        from l2rtui.backends.registry import make_backend

        return make_backend(settings.backend, settings)

    app = L2RApp(settings, make or make_named)
    app.run()
    if app.failure is not None:
        raise app.failure
    return app.return_code or 0
