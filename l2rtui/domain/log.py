"""Log lines of pods, the query that selects them, the output of a command in a pod, and events about objects."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from runtime.base.contract import METRIC_PREFIX

_MOST_WORDS = 300
_OURS = "l2r-runtime: "
"""Begin of a sentence of our own processes, which names the reason already."""
LAST_LINES = 80
"""Lines of a process that failed in which its last words are searched: torchrun prints 50 below a child's error."""
_ERROR_LINES = 60
"""Lines below a traceback after which the process has gone on, so that it did not end it."""
_TRACEBACK = "Traceback (most recent call last):"
_ERROR = re.compile(r"(?:\w+\.)*[A-Z]\w*(?:: .*\S)?")
"""The line of a traceback that names the exception; not one with a colon and no message."""
_RANK = re.compile(r"^\[rank\d+\]: ?")
"""Prefix of torch.distributed."""


class LogQuery(Struct, frozen=True):
    """Selection of lines from the log of one pod, like the options of ``kubectl logs``.

    Attributes:
        follow: Continue with new lines, across restarts, until the pod is deleted.
        tail: Only the last lines; None for all that the backend stores.
        since: Only lines later than this, seconds since the epoch.
        previous: Read the log of the process before the last restart.
        seam: With ``follow``: yield one LogLine with ``is_seam`` between the backlog and the live lines. A reader
            of many pods can then sort the backlog by time and pass live lines on, with one stream per pod.
        container: Only lines of this container; empty for all containers of the pod.
    """

    follow: bool = False
    tail: int | None = None
    since: float | None = None
    previous: bool = False
    seam: bool = False
    container: str = ""


class LogLine(Struct, frozen=True):
    """One line as the process wrote it: raw text that must be sanitised before display.

    Attributes:
        time: When it was written, seconds since the epoch.
        is_mark: The backend wrote it, not the process; for example a restart with its exit code and reason.
        container: Container of the pod; empty if the pod has only one.
        is_seam: Separator without text between the backlog and the live lines; see ``LogQuery.seam``.
        replaces: It supersedes the previous line of the same container, as progress bars do.
    """

    time: float
    pod: str
    text: str
    is_mark: bool = False
    container: str = ""
    is_seam: bool = False
    replaces: bool = False


def visible_state(text: str) -> str:
    """Return the text of a line that a terminal shows: the part after its last carriage return that has text behind
    it.

    Progress bars write all their states into one line. A carriage return at the end is part of a Windows line end.
    """
    at = text.rfind("\r", 0, len(text.rstrip("\r")))
    return text[at + 1 :] if at >= 0 else text


class CommandOutput(Struct, frozen=True):
    """Exit code and output of a command that ran in a pod; backends truncate each output at some megabytes."""

    code: int
    out: bytes
    err: bytes


def last_words(lines: Iterable[str]) -> str:
    """Return why a process has ended, by its last lines: the error of a traceback, otherwise the last line.

    Rules, metric records and the advice that libraries print below a traceback are not it: torchrun ends with a
    line of ``=``, CUDA with "Compile with TORCH_USE_CUDA_DSA". An error with a colon and no message, torchrun's for
    a failed child, does not replace the child's.
    """
    words, error, age, is_traceback = "", "", 0, False
    for line in lines:
        age += 1
        text = _RANK.sub("", line.rstrip())
        if text.endswith(_TRACEBACK):
            is_traceback = True
        elif is_traceback and text and not text[0].isspace():
            is_traceback = False
            if _ERROR.fullmatch(text):
                error, age = text, 0
        if METRIC_PREFIX not in text and any(map(str.isalnum, text)):
            words = text.strip()
    if error and age <= _ERROR_LINES and not words.startswith(_OURS):
        words = error
    return words.removeprefix(_OURS)[:_MOST_WORDS]


class KubeEvent(Struct, frozen=True):
    """Event about an object, after the Kubernetes API's Event (events.k8s.io/v1).

    Attributes:
        time: Last occurrence, seconds since the epoch. level: Normal or Warning.
        object: Kind and name, ``Pod racing-sac-w-x7k2p``. count: number of occurrences.
    """

    time: float
    level: str
    reason: str
    object: str
    message: str
    namespace: str = ""
    count: int = 1
