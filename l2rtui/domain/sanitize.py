"""Sanitisation of text from outside for display in a terminal.

Pod logs, names, labels, messages and error bodies may contain anything. A terminal executes escape sequences: they
can write the clipboard, change the title, move the cursor or hide text (CVE-2021-25743 in kubectl). All text that
reaches a screen or a printed table passes through here once.
"""

from __future__ import annotations

import re
from typing import Final

MAX_LINE: Final = 16_384
"""Longest line that is kept, in characters; longer lines are cut with a visible mark."""

_SEQUENCE = re.compile(  # no alternative backtracks over what another has read: linear time on any input
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI, two-byte form
    r"|\x9b[0-?]*[ -/]*[@-~]"  # CSI, C1 form
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # OSC DCS SOS PM APC
    r"|\x1b[ -/]*[0-~]?"  # other escapes, and a lone ESC
)
_SGR = re.compile(r"\x1b\[[0-9;:]*m")
HIDDEN: Final = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional controls
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d\u2028\u2029"  # zero width, to the next comment
    "\u2060-\u2065\u206a-\u206f\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "\ud800-\udfff"  # lone surrogates, which cannot be written to a terminal at all
    "]"
)
"""Characters that a terminal executes or that are invisible. Tab, line feed and carriage return are handled
separately.
"""
_MARK_ROOM = 64


def sanitize(text: str, *, keep_sgr: bool = False) -> str:
    r"""Return one line that a terminal can only display. Idempotent.

    Escape sequences are removed; other control characters, bidirectional controls and zero-width characters become
    visible (``\x07``, ``\u202e``); a tab becomes spaces; a carriage return or line feed becomes a space.

    Args:
        keep_sgr: Keep colour sequences (``ESC [ … m``), for widgets that parse them.
    """
    # Most lines of most logs return here: two scans in C instead of several regular expressions.
    if len(text) <= MAX_LINE and text.isascii() and text.isprintable():
        return text
    # Truncate first: the work on an endless line is bounded by the displayed length.
    clean = _harmless(text[:MAX_LINE], keep_sgr=keep_sgr)
    if len(text) <= MAX_LINE and len(clean) <= MAX_LINE:
        return clean
    # Escapes made visible may be longer than the input, so the length is checked and cut a second time.
    clean = clean[: MAX_LINE - _MARK_ROOM]
    head, escape, tail = clean.rpartition("\x1b")
    if escape and "m" not in tail:  # the cut was within or after a colour sequence
        clean = head
    return f"{clean} … cut, {len(text)} characters in all"


def _harmless(text: str, *, keep_sgr: bool) -> str:
    text = _SEQUENCE.sub(_sgr_only if keep_sgr else "", text)
    text = text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ").expandtabs(8)
    if not keep_sgr:
        return HIDDEN.sub(_visible, text)
    # re.split with a group alternates text and separator: odd parts are colour sequences and stay.
    parts = re.split(f"({_SGR.pattern})", text)
    return "".join(part if number % 2 else HIDDEN.sub(_visible, part) for number, part in enumerate(parts))


def _sgr_only(match: re.Match[str]) -> str:
    return match[0] if _SGR.fullmatch(match[0]) else ""


def _visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
