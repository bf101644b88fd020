"""The headless twin of what a key does: the command line that does the same without the app. Pure.

Screens show it beside every action and copy it on request, so that what was done once by hand can be written down.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

_SPANS: Final = {60.0: "1m", 300.0: "5m", 900.0: "15m", 1800.0: "30m", 3600.0: "1h", 86_400.0: "24h"}


def kill(targets: Sequence[str], *, is_admin: bool = False) -> str:
    """Stop pods."""
    return shlex.join(["l2rtui", "kill", *targets, *_admin(is_admin)])


def destroy(runs: Sequence[str], *, is_admin: bool = False) -> str:
    """Remove runs."""
    return shlex.join(["l2rtui", "destroy", *runs, *_admin(is_admin)])


def relaunch(runs: Sequence[str], *, is_admin: bool = False) -> str:
    """Remove runs and launch them again."""
    return " && ".join([destroy(runs, is_admin=is_admin), *map(launch_again, runs)])


def launch_again(run: str) -> str:
    """Launch what was destroyed; without a name the last of it."""
    return shlex.join(["l2rtui", "relaunch", *filter(None, [run])])


def scale(target: str, replicas: int, *, is_admin: bool = False) -> str:
    """Give a set another number of replicas."""
    return shlex.join(["l2rtui", "scale", target, str(replicas), *_admin(is_admin)])


def attach(target: str) -> str:
    """Follow one pod from now on."""
    return shlex.join(["l2rtui", "logs", target, "-f", "--tail", "0"])


def signal(target: str, name: str, pid: int) -> str:
    """Send a pod's process a signal."""
    return shlex.join(["l2rtui", "exec", target, "--", *signal_command(name, pid)])


def signal_command(name: str, pid: int) -> tuple[str, str, str]:
    """What sends it, beside the process: every image that has a shell can."""
    return "sh", "-c", f"kill -s {shlex.quote(name)} {pid}"


def forward(target: str, ports: str) -> str:
    """Carry a port."""
    return shlex.join(["l2rtui", "port-forward", target, ports])


def simulator(what: str, target: str, index: int = 0, *, signal_name: str = "", is_admin: bool = False) -> str:
    """See to a worker's simulator."""
    number = ["--index", str(index)] if index else []
    name = ["--signal", signal_name] if signal_name else []
    return shlex.join(["l2rtui", "simulator", what, target, *number, *name, *_admin(is_admin)])


def volume(what: str, *words: str) -> str:
    """See to volumes and their files."""
    return shlex.join(["l2rtui", "volume", what, *words])


def image(what: str, *words: str) -> str:
    """See to images."""
    return shlex.join(["l2rtui", "image", what, *words])


def artifacts(what: str, *words: str) -> str:
    """See to checkpoints."""
    return shlex.join(["l2rtui", "artifacts", what, *words])


def launch_from(place: str, name: str) -> str:
    """Launch a run that begins with what lies in a place."""
    return f"l2rtui launch -f SPEC --name {shlex.quote(name)} --set {shlex.quote(f'train.resume_from={place}')}"


def _admin(is_admin: bool) -> list[str]:
    return ["--admin"] if is_admin else []


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
