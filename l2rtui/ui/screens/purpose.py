"""What the line at the bottom is for. Apart from the line itself, which the first frame does not need."""

from __future__ import annotations

from enum import StrEnum


class Purpose(StrEnum):
    """What is being typed; the value is what stands in the empty line."""

    FILTER = "filter: words, !word, column=x  column~x  column>=2"
    SEARCH = "search the log; n and N go from hit to hit"
    INCLUDE = "show only lines that match this pattern"
    EXCLUDE = "hide lines that match this pattern"
    COMMAND = "command; tab completes, ? lists them"
    SIGNAL = "signal to the pod's process: name or number, such as USR1"
    FORWARD = "ports LOCAL:REMOTE, such as 6006:6006"
    SAVE = "save the shown lines to this file"
