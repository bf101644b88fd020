"""Errors of simulators: code reacts to the type, people read the message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class SimulatorError(Exception):
    """The simulator cannot be used; the message has the reason."""


class SimulatorSpecError(SimulatorError, ValueError):
    """Invalid settings of a simulator; the message names the option."""


class StartError(SimulatorError):
    """The simulator was not ready in time, or ended while it started."""


class LostError(SimulatorError):
    """The simulator crashed, exited or hangs; a restart may help."""


class BudgetError(SimulatorError):
    """The simulator failed more often than its restart budget allows; the worker ends."""


class CallError(SimulatorError):
    """A call to the control port failed; ``method`` and ``params`` belong to the call."""

    def __init__(self, method: str, params: Mapping[str, Any], problem: str) -> None:
        self.method = method
        self.params = dict(params)
        arguments = ", ".join(f"{name}={_short(value)}" for name, value in self.params.items())
        super().__init__(f"{method}({arguments}): {problem}")


class CallTimeoutError(CallError):
    """No response within the timeout."""


class ConnectionLostError(CallError):
    """No connection to the control port, or a connection that broke before the response."""


class CallRefusedError(CallError):
    """The simulator responded with an error."""


class BadReplyError(CallError):
    """Malformed response."""


def _short(value: Any, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
