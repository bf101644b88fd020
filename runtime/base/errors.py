"""Errors that end a program of the runtime, each with an exit code in `runtime.cli`; and texts of any error."""

from __future__ import annotations

from pathlib import Path


class SetupError(Exception):
    """A variable or option of this process is invalid; the message names it and the expected value."""


class PeerRefusedError(Exception):
    """The learner permanently refused this process; a restart will not help."""


class NotFiniteError(Exception):
    """The environment or the training produced infinite numbers or NaN; the message says which."""


class EnvironmentFault(Exception):  # noqa: N818  (its fault, where an error would be ours)
    """The environment breaks its interface or its own spaces; the sentence names it, and what it gave."""


class FailedError(Exception):
    """The work cannot be done; the message says what failed and what to change."""


class InterruptedWorkError(Exception):
    """The process was asked to end before its work was done."""


def first_line(error: BaseException) -> str:
    """Return an error's text without the advice that libraries append; its type if it has no text."""
    return (str(error) or type(error).__name__).splitlines()[0][:300].rstrip(".")


def unexpected_reason(error: BaseException) -> str:
    """Return type, first line and place of an unexpected error, instead of its traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f", {Path(trace.tb_frame.f_code.co_filename).name} line {trace.tb_lineno}" if trace is not None else ""
    text = f": {first_line(error)}" if str(error) else ""
    return f"{type(error).__name__}{text}{place}"
