"""Errors of simulators: code reacts to the type, people read the sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class SimulatorError(Exception):
    """The simulator cannot be used; the sentence names the reason."""


class SimulatorSpecError(SimulatorError, ValueError):
    """Wrong settings of a simulator; the sentence names the option."""


class StartError(SimulatorError):
    """The simulator was not ready in time, or ended while it started."""


class LostError(SimulatorError):
    """The simulator crashed, exited or hangs; a restart may help."""


class BudgetError(SimulatorError):
    """The simulator failed more often than its restart budget allows; the worker ends."""


class CallError(SimulatorError):
    """A call to the control port failed; ``method`` and ``params`` are those of the call."""

    def __init__(self, method: str, params: Mapping[str, Any], problem: str) -> None:
        self.method = method
        self.params = dict(params)
        arguments = ", ".join(f"{name}={_short(value)}" for name, value in self.params.items())
        super().__init__(f"{method}({arguments}): {problem}")


class CallTimeoutError(CallError):
    """No response within the timeout."""


class ConnectionLostError(CallError):
    """No connection to the control port, or one that broke before the response."""


class CallRefusedError(CallError):
    """The simulator responded with an error."""


class BadReplyError(CallError):
    """The simulator's response is not one that the method can have."""


def _short(value: Any, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
