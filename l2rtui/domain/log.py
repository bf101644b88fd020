"""Log lines of pods, the query that selects them, the output of a command in a pod, and events about objects."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from runtime.base.contract import METRIC_PREFIX

_MOST_WORDS = 300


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
    """Return the last line that a process has written and that is no metric record, such as its error's."""
    words = ""
    for line in lines:
        text = line.strip()
        if text and METRIC_PREFIX not in text:
            words = text
    return words.removeprefix("l2r-runtime: ")[:_MOST_WORDS]


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
