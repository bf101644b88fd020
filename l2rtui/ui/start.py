"""Open the app. Imported before all else of the screen, for what must be so before that is.

While modules load and the first list comes in, nearly nothing becomes garbage, and looking for it again and again
would be a tenth of the time to the first rows; ``L2RApp`` looks for it again after ``GARBAGE_REST_SECONDS``.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from l2rtui.backends.base import Backend
    from l2rtui.config import Settings


def run(settings: Settings, make: Callable[[], Backend] | None = None) -> int:
    """Open the app; give its exit code.

    Args:
        make: Makes another backend than the one that the settings name.

    Raises:
        L2RError: the backend cannot be made.
    """
    gc.disable()
    from l2rtui.ui.app import L2RApp

    def make_named() -> Backend:
        from l2rtui.backends.registry import make_backend

        return make_backend(settings.backend, settings)

    app = L2RApp(settings, make or make_named)
    app.run()
    if app.failure is not None:
        raise app.failure
    return app.return_code or 0
