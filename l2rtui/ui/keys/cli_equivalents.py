"""Equivalent CLI verb and arguments of each action. Pure.

Screens show the line with every action and copy it on request, so that a manual action can go into a script.
``AppContext.command_line`` writes it, with the options for context, namespace and user.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from l2rtui.services.terminal import Words

_SPANS: Final = {60.0: "1m", 300.0: "5m", 900.0: "15m", 1800.0: "30m", 3600.0: "1h", 86_400.0: "24h"}


def kill(targets: Sequence[str], *, is_admin: bool = False) -> Words:
    """Stop pods."""
    return ["kill", *targets, *_admin(is_admin)]


def destroy(runs: Sequence[str], *, is_admin: bool = False) -> Words:
    """Remove runs."""
    return ["destroy", *runs, *_admin(is_admin)]


def relaunch(places: Mapping[str, str], *, is_admin: bool = False) -> tuple[Words, ...]:
    """Remove runs and launch them again, each on its places."""
    return (destroy(list(places), is_admin=is_admin), *(launch_again(run, on) for run, on in places.items()))


def launch_again(run: str, on: str = "") -> Words:
    """Launch a destroyed run again; without a name, the last one."""
    return ["relaunch", *filter(None, [run]), *(["--on", on] if on else [])]


def scale(target: str, replicas: int, *, is_admin: bool = False) -> Words:
    """Scale a set."""
    return ["scale", target, str(replicas), *_admin(is_admin)]


def reserve(place: str, seconds: float, note: str = "") -> Words:
    """Reserve slots."""
    # Whole units only: rounded to six digits, a line would reserve for another time than the dialog.
    unit, size = next(((unit, size) for unit, size in (("h", 3600), ("m", 60)) if seconds % size == 0), ("s", 1))
    number = seconds / size
    span = f"{int(number) if number == int(number) else number}{unit}"
    return ["reserve", place, "--for", span, *(_text("--note", note) if note else [])]


def unreserve(place: str, *, is_admin: bool = False) -> Words:
    """End reservations."""
    return ["unreserve", place, *_admin(is_admin)]


def attach(target: str) -> Words:
    """Attach to the process of one pod."""
    return ["attach", target]


def signal(target: str, name: str, pid: int) -> Words:
    """Send a signal to a pod's process."""
    return ["exec", target, "--", *signal_command(name, pid)]


def signal_command(name: str, pid: int) -> tuple[str, str, str]:
    """Return argv that sends a signal from within the container, for any image with a shell."""
    # The shell's builtin: slim images have no /bin/kill.
    return "sh", "-c", f"kill -s {shlex.quote(name)} {pid}"


def simulator(what: str, target: str, index: int = 0, *, signal_name: str = "", is_admin: bool = False) -> Words:
    """Act on a worker's simulator."""
    number = ["--index", str(index)] if index else []
    name = ["--signal", signal_name] if signal_name else []
    return ["simulator", what, target, *number, *name, *_admin(is_admin)]


def launch_from(checkpoints: str, name: str) -> Words:
    """Launch a run that resumes from the checkpoints in a folder or bucket."""
    return ["launch", "-f", "SPEC", "--name", name, "--set", f"train.resume_from={checkpoints}"]


def _text(flag: str, text: str) -> list[str]:
    """Return an option with the user's own text, which may look like an option itself."""
    return [f"{flag}={text}"] if text.startswith("-") else [flag, text]


def _admin(is_admin: bool) -> list[str]:
    return ["--admin"] if is_admin else []


def shell(target: str) -> Words:
    """Open a shell in a pod, next to its process."""
    return ["exec", target, "--", "sh"]


def logs(
    targets: Sequence[str],
    *,
    since_seconds: float | None = None,
    is_previous: bool = False,
    include: str = "",
    exclude: str = "",
) -> Words:
    """Show the logs of a pane."""
    arguments = ["logs", *targets, "--previous" if is_previous else "-f"]
    if since_seconds is not None:
        arguments += ["--since", _SPANS.get(since_seconds, f"{since_seconds:g}s")]
    if include:
        arguments += _text("--grep", include)
    if exclude:
        arguments += _text("--exclude", exclude)
    return arguments
