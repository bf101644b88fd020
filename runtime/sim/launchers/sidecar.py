"""A simulator in a container of its own beside us, in the same pod: the same interface as a subprocess.

Neither of the two containers can signal the other's processes, and the kubelet, which starts a container that ends
anew, sees no hang. So a small shell loop stands in front of the simulator (``l2rtui`` writes it into the pod), and
the two talk through a folder that both mount: we write ``want``, it writes ``state``. Each start of the simulator
has a number, one more than the one before, so that nobody takes an old word for a new one.

======== ================================================================================
file     one line
======== ================================================================================
state    ``NUMBER running`` or ``NUMBER ended CODE``, as a shell tells codes (128 + signal)
want     ``start NUMBER``, ``stop NUMBER`` or ``signal NUMBER SIGNAL``; gone once it was read
taken    ``NUMBER`` of the start that a worker has driven: the next one wants another
======== ================================================================================
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runtime import contract
from runtime.sim.errors import StartError
from runtime.sim.handle import Addresses, Handle
from runtime.sim.health import Cause, Ended, Failure

_LOOK_SECONDS: Final = 0.05
_LOOP_SECONDS: Final = 15.0
"""For the loop to read a word and to answer it, on top of the grace."""
_LONGEST_LINE: Final = 100


@dataclass(frozen=True, slots=True)
class _State:
    """What the loop said last; ``code`` is None while the simulator runs."""

    number: int = 0
    code: int | None = None


class SimulatorSidecar(Handle):
    """One start of the simulator beside us: the running one, if nobody has driven it yet, else a new one.

    Args:
        folder: What both containers mount; None for what the pod says.

    Raises:
        StartError: this process has no simulator beside it.
    """

    def __init__(self, folder: Path | None = None) -> None:
        named = folder or os.environ.get(contract.ENV_SIDECAR)
        if not named:
            raise StartError(
                "no simulator stands beside this process: kind sidecar is for pods of Kubernetes; "
                "elsewhere choose reference, command or container"
            )
        self.addresses = Addresses.of(None)
        self._folder = Path(named)
        self._failure: Failure | None = None
        self._is_stopping = False
        state = self._state()
        self._number = max(1, state.number)  # without a word its container is not there yet, and starts the first
        is_new = state.code is None and self._read("taken") != [str(self._number)]
        if not is_new:
            self._number += 1
            self._write("want", f"start {self._number}")
        self._write("taken", str(self._number))

    def ended(self) -> Failure | None:
        """Say how it ended; None while it runs, before it does, and where it was ended as we asked."""
        if self._failure is None and not self._is_stopping:
            self._failure = self._ended()
        return self._failure

    def _ended(self) -> Failure | None:
        state = self._state()
        if state.number > self._number:
            return Failure(Cause.KILLED, "the simulator's container was started anew")
        if state.number == self._number and state.code is not None:
            return Ended.of_code(state.code).failure()
        return None

    def signal(self, number: int) -> None:
        """Let its container signal it."""
        self._write("want", f"signal {self._number} {number}")

    def stop(self, grace_seconds: float) -> int:
        """End it; 1 where its container does not say that it has ended."""
        if self.ended() is not None:
            return 0
        self._is_stopping = True
        self._write("want", f"stop {self._number}")
        until = time.monotonic() + grace_seconds + _LOOP_SECONDS
        while time.monotonic() < until:
            if self._ended() is not None:
                return 0
            time.sleep(_LOOK_SECONDS)
        return 1

    def tail(self, lines: int = 20) -> list[str]:
        """Nothing: its output is the log of its own container."""
        del lines
        return []

    def _state(self) -> _State:
        """What stands in ``state``; what is no such line, or none yet, counts as nothing."""
        match self._read("state"):
            case [number, "running"] if number.isdigit():
                return _State(int(number))
            case [number, "ended", code] if number.isdigit() and code.isdigit():
                return _State(int(number), int(code))
        return _State()

    def _read(self, name: str) -> list[str]:
        """The words of a file; none where there is no such file."""
        try:
            with (self._folder / name).open(encoding="ascii", errors="replace") as file:
                return file.read(_LONGEST_LINE).split()
        except OSError:
            return []

    def _write(self, name: str, line: str) -> None:
        """Write a file in one go, whatever user the other container runs as."""
        new = self._folder / f".{name}"
        try:
            new.write_text(f"{line}\n", encoding="ascii")
            new.chmod(0o644)
            new.replace(self._folder / name)
        except OSError as error:
            raise StartError(f"the folder that is shared with the simulator cannot be written: {error}") from error
