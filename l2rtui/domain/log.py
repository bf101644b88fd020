"""Log lines of pods, the query that selects them, and the output of a command run in a pod."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from runtime.base.contract import METRIC_PREFIX

_MOST_WORDS = 300


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Selection of lines from the log of one pod, as the options of ``kubectl logs``.

    Attributes:
        follow: Go on with new lines, across restarts, until the pod is gone for good.
        tail: Only the last lines; None means all that the backend stores.
        since: Only lines later than this, seconds since the epoch.
        previous: The log of the process before the last restart.
        seam: With ``follow``: yield one LogLine with ``is_seam`` between the backlog and the live lines. A reader
            of many pods sorts the backlog by time and passes live lines on, over one stream per pod.
        container: Only of this container, where pods have several; empty for all of them.
    """

    follow: bool = False
    tail: int | None = None
    since: float | None = None
    previous: bool = False
    seam: bool = False
    container: str = ""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line as the process wrote it: raw text that must be sanitised before it is displayed.

    Attributes:
        time: When it was written, seconds since the epoch.
        is_mark: The backend wrote it, not the process: a restart with its exit code and reason.
        container: Container of the pod; empty where the pod has only one.
        is_seam: Separator without text: the backlog ends here, live lines follow; see ``LogQuery.seam``.
        replaces: It is a newer state of the line before it from the same container, as a progress bar writes them.
    """

    time: float
    pod: str
    text: str
    is_mark: bool = False
    container: str = ""
    is_seam: bool = False
    replaces: bool = False


def visible_state(text: str) -> str:
    """Return what a terminal shows of a line: the text behind its last carriage return, if one is followed by text.

    Progress bars write all of their states into one line. A return at the end belongs to the line end of Windows.
    """
    at = text.rfind("\r", 0, len(text.rstrip("\r")))
    return text[at + 1 :] if at >= 0 else text


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """Exit code and output of a command that ran beside a pod's process; backends cut each at some megabytes."""

    code: int
    out: bytes
    err: bytes


def last_words(lines: Iterable[str]) -> str:
    """Return the last line that a process has written and that is no metric record, such as its error's."""
    words = ""
    for line in lines:
        text = line.strip()
        if text and METRIC_PREFIX not in text:
            words = text
    return words.removeprefix("l2r-runtime: ")[:_MOST_WORDS]
