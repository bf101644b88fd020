"""Expected errors: what failed, on which object, and the next step.

Every expected failure of l2rtui is an L2RError; the command line prints its sentence and ends with its
``exit_code``, the app shows it. Any other exception is a bug: it keeps its traceback and is logged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_REFUSED = 3
EXIT_LEFT_BEHIND = 4
EXIT_OUT_OF_REACH = 5
"""`wait`: a run can no longer reach the condition."""
EXIT_TIMEOUT = 124
"""`wait`: timeout, the same code as ``timeout(1)``."""


class L2RError(Exception):
    """An expected failure, with a sentence for the user.

    Args:
        message: The failure, naming the object.
        hint: The next step, an imperative sentence; otherwise empty.
    """

    exit_code: ClassVar[int] = EXIT_FAILED

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()


class UsageError(L2RError):
    """The arguments of a command or the fields of a spec are wrong; nothing was changed."""

    exit_code: ClassVar[int] = EXIT_USAGE


class SpecError(UsageError):
    """A spec file cannot be used; names the file, the line and the field."""


class ConfigError(UsageError):
    """A setting in the configuration file, the environment or a flag is wrong."""


class RefusedError(L2RError):
    """Preflight refuses the plan; nothing was created."""

    exit_code: ClassVar[int] = EXIT_REFUSED


class NotFoundError(L2RError):
    """The named run, set or pod does not exist."""


class BackendError(L2RError):
    """A backend or a cloud service failed or refused; the cause is chained."""


class LaunchError(BackendError):
    """A launch was not completed; the message names the objects that were rolled back."""


class LeftBehindError(LaunchError):
    """An object could not be removed; the message names it."""

    exit_code: ClassVar[int] = EXIT_LEFT_BEHIND


def nearest(name: str, names: Iterable[str], most: int = 1) -> str:
    """Return the hint ``Did you mean X?`` for the most similar names; empty if none is similar."""
    import difflib  # needed only for errors

    # Less than the usual 0.6: names are short, and one wrong letter weighs more.
    matches = difflib.get_close_matches(name, list(names), most, cutoff=0.5)
    return f"Did you mean {' or '.join(matches)}?" if matches else ""
