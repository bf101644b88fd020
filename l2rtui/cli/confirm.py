"""Whether somebody is there to be asked."""

from __future__ import annotations

import sys


def can_ask() -> bool:
    """Answers come from a terminal, and questions go to one."""
    return sys.stdin.isatty() and sys.stderr.isatty()
