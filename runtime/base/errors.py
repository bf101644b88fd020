"""Errors that end a program of the runtime; `runtime.cli` turns each into an exit code of the contract."""

from __future__ import annotations


class SetupError(Exception):
    """A variable or option of this process is wrong; the sentence names it and what it needs."""


class PeerRefusedError(Exception):
    """The learner refused this process for good; a restart will not help."""


class NotFiniteError(Exception):
    """The environment or the training produced infinite numbers or NaN; the sentence says which."""


class FailedError(Exception):
    """The work cannot be done; the sentence says what failed and what to change."""


class InterruptedWorkError(Exception):
    """The process was asked to end before its work was done."""
