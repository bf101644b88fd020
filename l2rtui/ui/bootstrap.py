"""Start of the app: interpreter settings that must be made before the modules of the screens are imported.

While modules load and the first list arrives, almost nothing becomes garbage, and collections would take a tenth of
the time to the first rows. ``L2RApp`` enables them again after ``GARBAGE_REST_SECONDS``.

Long work is done in threads, and each key waits until such a thread releases the interpreter lock.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from l2rtui.backends.base import Backend
    from l2rtui.config import Settings
    from l2rtui.domain.selection.shared_view import SharedView
    from l2rtui.ui.app import L2RApp

SWITCH_SECONDS: Final = 0.001
"""A fifth of Python's default: a key and its paint acquire the interpreter lock several times."""


def make_ready() -> None:
    """Prepare the interpreter; called before the modules of the app are imported."""
    gc.disable()
    sys.setswitchinterval(SWITCH_SECONDS)


@dataclass(frozen=True, slots=True)
class Recording:
    """Files of recordings.

    Attributes:
        record: File to write; empty for no recording.
        replay: File to show instead of a backend; empty for a backend.
        speed: Seconds of the replay in a second.
    """

    record: str = ""
    replay: str = ""
    speed: float = 1.0


def run(
    settings: Settings,
    settings_for: Callable[[str, tuple[str, ...] | None], Settings],
    recording: Recording = Recording(),
    contexts: Sequence[str] = (),
    view: SharedView | None = None,
    files: Mapping[str, str] | None = None,
) -> int:
    """Run the app over the backend of the settings, or over a recording, and return its exit code.

    Args:
        settings_for: Returns the settings of another context and its namespaces, see ``ContextOpener``.
        contexts: Contexts to show in one view; empty for the context of the settings.
        view: Shared view to open.
        files: Files given on the command line, by option, see ``ContextOpener``.

    Raises:
        L2RError: the backend cannot be made, or the file of a recording cannot be used.
    """
    make_ready()
    if recording.replay:
        return _replay(settings, Path(recording.replay), recording.speed, view)
    if recording.record:
        return _record(settings, settings_for, Path(recording.record), contexts, view, files or {})
    return _run(settings, settings_for, lambda backend: backend, contexts, view, files or {})


def _run(
    settings: Settings,
    settings_for: Callable[[str, tuple[str, ...] | None], Settings],
    wrap: Callable[[Backend], Backend],
    contexts: Sequence[str],
    view: SharedView | None,
    files: Mapping[str, str],
) -> int:
    from l2rtui.ui.app import L2RApp
    from l2rtui.ui.state.app_context import ContextOpener

    def make_named(settings: Settings) -> Backend:
        from l2rtui.backends.queue_store import ensure_keepers
        from l2rtui.backends.registry import make_backend

        if not settings.readonly:
            ensure_keepers()
        return wrap(make_backend(settings.backend, settings))

    def make_composed(contexts: Mapping[str, Settings]) -> Backend:
        from l2rtui.backends.registry import compose

        return wrap(compose(contexts))

    def make_first() -> Backend:
        if contexts:
            return opener.open_several(contexts, settings.namespaces or None)[1]
        return make_named(settings)

    opener = ContextOpener(settings_for, make_named, make_composed, files)
    return _code(L2RApp(settings, make_first, opener=opener, view=view))


def _record(
    settings: Settings,
    settings_for: Callable[[str, tuple[str, ...] | None], Settings],
    path: Path,
    contexts: Sequence[str],
    view: SharedView | None,
    files: Mapping[str, str],
) -> int:
    from l2rtui.backends.recorded.recording import BackendRecorder

    recorder = BackendRecorder(path)
    try:
        return _run(settings, settings_for, recorder.of, contexts, view, files)
    finally:
        recorder.close()
        print(f"l2rtui: {recorder.summary}", file=sys.stderr)


def _replay(settings: Settings, path: Path, speed: float, view: SharedView | None) -> int:
    from l2rtui.backends.recorded.backend import ReplayBackend
    from l2rtui.ui.app import L2RApp

    replay = ReplayBackend(path, speed)
    replayed = replace(settings, backend=replay.name, context="", namespaces=(), readonly=True)
    app = L2RApp(replayed, lambda: replay, clock=replay.now, view=view)
    app.ctx.speed = speed
    return _code(app)


def _code(app: L2RApp) -> int:
    app.run()
    if app.failure is not None:
        raise app.failure
    return app.return_code or 0
