"""Start of the app: interpreter settings that must be made before the modules of the screens are imported.

While modules load and the first list arrives, nearly nothing becomes garbage, and collections would take a tenth of
the time to the first rows; ``L2RApp`` enables them again after ``GARBAGE_REST_SECONDS``.

Long work is done in threads, and a key waits each time until such a thread releases the interpreter lock.
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
"""A fifth of Python's default: a key and its paint acquire the interpreter lock several times."""


def make_ready() -> None:
    """Prepare the interpreter; called before the modules of the app are imported."""
    gc.disable()
    sys.setswitchinterval(SWITCH_SECONDS)


def run(settings: Settings, make: Callable[[], Backend] | None = None) -> int:
    """Run the app and return its exit code.

    Args:
        make: Makes the backend; None means the one that the settings name.

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
