"""Simulator in a second container of the same pod, with the interface of a subprocess.

Neither container can signal the other's processes, and the kubelet restarts a container that ends but does not
notice a hang. So a small shell loop runs the simulator (``l2rtui`` writes it into the pod), and both sides
communicate through files of a folder that both mount: we write ``want``, the loop writes ``state``. Starts are
numbered, so that an old message is never mistaken for a new one.

======== ================================================================================
file     one line
======== ================================================================================
state    ``NUMBER running`` or ``NUMBER ended CODE``, the code as in a shell (128 + signal)
want     ``start NUMBER``, ``stop NUMBER`` or ``signal NUMBER SIGNAL``; removed once it was read
taken    ``NUMBER`` of the start that a worker has driven: the next worker needs another
======== ================================================================================
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runtime.base import contract
from runtime.sim.launchers.simulator_process import Addresses, Cause, Failure, ProcessEnd, SimulatorHandle
from runtime.sim.wire.errors import StartError

_POLL_SECONDS: Final = 0.05
_LOOP_SECONDS: Final = 15.0
"""Time for the loop to read a message and to respond, in addition to the grace."""
_LONGEST_LINE: Final = 100


@dataclass(frozen=True, slots=True)
class _State:
    """Newest message of the loop; ``code`` is None while the simulator is running."""

    number: int = 0
    code: int | None = None


class SimulatorSidecar(SimulatorHandle):
    """One start of the simulator in this pod: the running one if no worker has driven it yet, otherwise a new one.

    ``folder`` is mounted by both containers; None for the folder that the environment names. Its output is its own
    container's log. Raises StartError if the pod has no simulator container.
    """

    def __init__(self, folder: Path | None = None) -> None:
        named = folder or os.environ.get(contract.ENV_SIDECAR)
        if not named:
            raise StartError(
                "this pod has no simulator container: kind sidecar is for Kubernetes pods; "
                "elsewhere choose reference, command or container"
            )
        self.addresses = Addresses.of(None)
        self._folder = Path(named)
        self._failure: Failure | None = None
        self._is_stopping = False
        state = self._state()
        self._number = max(1, state.number)  # no state yet: its container is not up, and begins with start 1
        # A worker that the kubelet restarted finds its predecessor's simulator in the middle of an episode.
        if state.code is not None or self._read("taken") == [str(self._number)]:
            self._number += 1
            self._write("want", f"start {self._number}")
        self._write("taken", str(self._number))

    def ended(self) -> Failure | None:
        """Return its end as a failure; None before and while it is running, and after our own stop."""
        if self._failure is None and not self._is_stopping:
            self._failure = self._ended()
        return self._failure

    def _ended(self) -> Failure | None:
        state = self._state()
        if state.number > self._number:
            return Failure(Cause.KILLED, "the simulator's container was restarted")
        if state.number == self._number and state.code is not None:
            return ProcessEnd.of_code(state.code).failure()
        return None

    def signal(self, number: int) -> None:
        """Make the loop in its container signal it."""
        self._write("want", f"signal {self._number} {number}")

    def stop(self, grace_seconds: float) -> int:
        """Stop it; return 1 if the loop does not report its end."""
        if self.ended() is not None:
            return 0
        self._is_stopping = True
        self._write("want", f"stop {self._number}")
        until = time.monotonic() + grace_seconds + _LOOP_SECONDS
        while time.monotonic() < until:
            if self._ended() is not None:
                return 0
            time.sleep(_POLL_SECONDS)
        return 1

    def _state(self) -> _State:
        """Read ``state``; a missing or malformed line counts as no start."""
        match self._read("state"):
            case [number, "running"] if number.isdigit():
                return _State(int(number))
            case [number, "ended", code] if number.isdigit() and code.isdigit():
                return _State(int(number), int(code))
        return _State()

    def _read(self, name: str) -> list[str]:
        """Return the words of a file; empty if it does not exist."""
        try:
            with (self._folder / name).open(encoding="ascii", errors="replace") as file:
                return file.read(_LONGEST_LINE).split()
        except OSError:
            return []

    def _write(self, name: str, line: str) -> None:
        """Replace a file atomically for the other container."""
        new = self._folder / f".{name}"
        try:
            new.write_text(f"{line}\n", encoding="ascii")
            new.chmod(0o644)  # the other container may run as another user
            new.replace(self._folder / name)
        except OSError as error:
            raise StartError(f"the folder that is shared with the simulator cannot be written: {error}") from error
