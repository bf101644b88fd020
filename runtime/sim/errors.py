"""What goes wrong between us and a simulator: a caller reacts to the type, a person reads the sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class SimulatorError(Exception):
    """The simulator cannot be used; the sentence says which one and why."""


class SpecError(SimulatorError, ValueError):
    """A simulator is described wrongly; the sentence names the option."""


class StartError(SimulatorError):
    """The simulator was not ready in time, or ended while it started."""


class LostError(SimulatorError):
    """The simulator crashed, exited or hangs; starting it again may help."""


class BudgetError(SimulatorError):
    """The simulator failed more often than its budget allows; the worker ends."""


class CallError(SimulatorError):
    """A call to the control port failed.

    Attributes:
        method: The called method.
        params: What it was called with.
    """

    def __init__(self, method: str, params: Mapping[str, Any], problem: str) -> None:
        self.method = method
        self.params = dict(params)
        shown = ", ".join(f"{name}={_short(value)}" for name, value in self.params.items())
        super().__init__(f"{method}({shown}): {problem}")


class CallTimeoutError(CallError):
    """No answer within the time allowed."""


class ConnectionLostError(CallError):
    """There is no connection to the control port, or it broke before the answer."""


class RefusedError(CallError):
    """The simulator answered with an error of its own."""


class BadReplyError(CallError):
    """The simulator answered something that the method cannot mean."""


def _short(value: Any, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
