"""Loss of a simulator as a value: its cause, a sentence for display, and the end of a process that caused it."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """Reason for the loss of a simulator."""

    EXITED = "exited"
    CRASHED = "crashed"
    KILLED = "killed"
    OUT_OF_MEMORY = "out of memory"
    HUNG = "hung"
    NOT_READY = "not ready"
    CANNOT_START = "cannot start"
    SUPERVISOR_LOST = "supervisor lost"
    UNWATCHED = "unwatched"
    """This process can no longer watch or read it: an error of our own, and the simulator may be fine."""
    ASKED = "asked"
    """A restart was requested: not a failure of the simulator, so it does not use its budget."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One loss, with its cause and a sentence for display."""

    cause: Cause
    sentence: str

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """End of a process, by an exit code or by a signal."""

    code: int | None = None
    signal: int | None = None
    out_of_memory: bool = False

    @classmethod
    def of_code(cls, code: int, *, out_of_memory: bool = False) -> ProcessEnd:
        """Decode an exit status of a shell or a container: 128 plus a signal number, or an exit code."""
        if code > 128 and code - 128 <= signal.NSIG:
            return cls(signal=code - 128, out_of_memory=out_of_memory)
        return cls(code=code, out_of_memory=out_of_memory)

    def failure(self) -> Failure:
        """Convert to a failure: a simulator should never end, so even exit code 0 is one."""
        if self.out_of_memory:
            return Failure(Cause.OUT_OF_MEMORY, "the simulator ran out of memory: the kernel ended it")
        if self.signal is None:
            return Failure(Cause.EXITED, f"the simulator exited with code {self.code}")
        try:
            name = signal.Signals(self.signal).name
        except ValueError:
            name = f"signal {self.signal}"
        # A program does not send itself these; other signals come from its own faults.
        if self.signal in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            return Failure(Cause.KILLED, f"the simulator was killed by {name}, which we did not send")
        return Failure(Cause.CRASHED, f"the simulator crashed with {name}")
