"""The headless twin of what a key does: the command line that does the same without the app. Pure.

Screens show it beside every action and copy it on request, so that what was done once by hand can be written down.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

_SPANS: Final = {60.0: "1m", 300.0: "5m", 900.0: "15m", 1800.0: "30m", 3600.0: "1h", 86_400.0: "24h"}


def kill(targets: Sequence[str]) -> str:
    """Stop pods."""
    return shlex.join(["l2rtui", "kill", *targets])


def destroy(runs: Sequence[str]) -> str:
    """Remove runs."""
    return shlex.join(["l2rtui", "destroy", *runs])


def scale(target: str, replicas: int) -> str:
    """Give a set another number of replicas."""
    return shlex.join(["l2rtui", "scale", target, str(replicas)])


def shell(target: str) -> str:
    """Open a shell beside a pod's process."""
    return shlex.join(["l2rtui", "exec", target, "--", "sh"])


def logs(
    targets: Sequence[str],
    *,
    since_seconds: float | None = None,
    is_previous: bool = False,
    include: str = "",
    exclude: str = "",
) -> str:
    """Read the logs that a pane shows."""
    words = ["l2rtui", "logs", *targets, "--previous" if is_previous else "-f"]
    if since_seconds is not None:
        words += ["--since", _SPANS.get(since_seconds, f"{since_seconds:g}s")]
    if include:
        words += ["--grep", include]
    if exclude:
        words += ["--exclude", exclude]
    return shlex.join(words)
