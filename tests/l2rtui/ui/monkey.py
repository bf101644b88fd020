"""What presses random keys: shared by the test of some hundred and the measurement of ten thousand."""

from __future__ import annotations

import random
import traceback
import unicodedata
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace
from textual import events
from textual.pilot import Pilot

from l2rtui.backends.base import Backend
from l2rtui.backends.fake import FakeBackend
from l2rtui.domain.log import CommandOutput
from l2rtui.domain.snapshot import PodView
from l2rtui.domain.status import Phase
from l2rtui.ui.app import L2RApp
from l2rtui.ui.keys.table import KEYS
from tests.l2rtui.ui import textual_inside

NOT_PRESSED = ("leave", "command_palette", "shell")
"""They leave the app, open Textual's own screen, or lend the terminal that a test has not got."""
_KEYS = [(key.action, pressed) for key in KEYS for pressed in key.keys.split(",")]
ALPHABET = sorted(
    ({pressed for _, pressed in _KEYS} | set("abcxyz019") | {"backspace", "delete", "ctrl+u"})
    - {pressed for action, pressed in _KEYS if action in NOT_PRESSED}
)
YES = {"y", "enter", "space"}
"""What can answer a question with yes, or press the button that does; never pressed on a question."""
ASKING = ("ConfirmScreen", "ReviewScreen")
REST_EVERY = 20
"""Keys between two moments at which everything that they have set going comes to its end."""


class Monkey:
    """One seeded series of keys.

    Attributes:
        changes: Changes that were asked of the services, which without a yes must be none.
        last: The newest keys.
    """

    def __init__(self, chance: random.Random) -> None:
        self.changes: list[str] = []
        self.last: deque[str] = deque(maxlen=40)
        self.pressed = 0
        self._chance = chance

    async def press(self, app: L2RApp, pilot: Pilot[None]) -> None:
        """Press one key."""
        key = self._chance.choice(ALPHABET)
        if type(app.screen).__name__ in ASKING and key in YES:
            key = "escape"
        self.last.append(key)
        self.pressed += 1
        app.post_message(events.Key(key, _character(key)))
        # Until the key has been dealt with, as a fast typist would; now and then until all is at rest.
        await pilot.pause(None if self.pressed % REST_EVERY == 0 else 0)

    def guard(self, backend: Backend) -> None:
        """Take note of every change that is asked of a backend, and carry none out; looking goes through."""

        def note(verb: str) -> Callable[..., None]:
            return lambda *_, **__: self.changes.append(verb)

        for verb in ("launch", "scale", "kill", "destroy", "exec"):
            setattr(backend, verb, note(verb))
        capture = backend.capture

        def look(pod: PodView, argv: Sequence[str]) -> Awaitable[CommandOutput]:
            if not {"status", "frame"} & set(argv):
                self.changes.append(" ".join(argv))
            return capture(pod, argv)

        backend.capture = look  # type: ignore[method-assign, assignment]

    def keep(self, app: L2RApp) -> None:
        """Let the app stay when the menu's way to leave is chosen: the keys go on."""
        app._leave_now = lambda _: None  # type: ignore[method-assign]

    def upset(self, backend: FakeBackend) -> None:
        """Something happens on the cluster."""
        pods = list(backend._pods.values())
        pod = self._chance.choice(pods)
        match self._chance.randrange(4):
            case 0:
                backend.put_pod(replace(pod, phase=Phase.FAILED, ready=False, exit_code=137))
            case 1:
                backend.put_pod(replace(pod, restarts=pod.restarts + 1))
            case 2:
                backend.outage = "" if backend.outage else "the wire is cut"
            case _:
                backend.advance(self._chance.random() * 5)

    def problem(self, app: L2RApp) -> str:
        """What broke; empty when nothing did."""
        if self.changes:
            return f"{', '.join(self.changes)} without a yes"
        if (fault := textual_inside.fault(app)) is not None:
            return "".join(traceback.format_exception(fault))
        return "it left" if textual_inside.has_left(app) else ""


def _character(key: str) -> str | None:
    """What a terminal sends along with a key: its character, where it has one."""
    if len(key) == 1:
        return key
    try:
        return unicodedata.lookup(key.replace("_", " ").upper())
    except KeyError:
        return None
