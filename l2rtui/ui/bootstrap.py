"""Start of the app: interpreter settings that must be made before the modules of the screens are imported.

While modules load and the first list arrives, nearly nothing becomes garbage, and collections would take a tenth of
the time to the first rows; ``L2RApp`` enables them again after ``GARBAGE_REST_SECONDS``.

Long work is done in threads, and a key waits each time until such a thread releases the interpreter lock.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import partial
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


def run(settings: Settings, settings_for: Callable[[str, tuple[str, ...] | None], Settings]) -> int:
    """Run the app over the backend that the settings name, and return its exit code.

    Args:
        settings_for: Returns the settings of another context and its namespaces, see ``ContextOpener``.

    Raises:
        L2RError: the backend cannot be made.
    """
    make_ready()
    from l2rtui.ui.app import L2RApp
    from l2rtui.ui.state.app_context import ContextOpener

    def make_named(settings: Settings) -> Backend:
        from l2rtui.backends.registry import make_backend

        return make_backend(settings.backend, settings)

    app = L2RApp(settings, partial(make_named, settings), opener=ContextOpener(settings_for, make_named))
    app.run()
    if app.failure is not None:
        raise app.failure
    return app.return_code or 0
