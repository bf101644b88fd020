"""service: a systemd user unit that runs ``l2rtui recover`` when the machine has started."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Final

from l2rtui.cli.output import StderrReporter
from l2rtui.errors import EXIT_DONE, BackendError, UsageError
from runtime.base.atomic_files import write_atomic

UNIT: Final = "l2rtui-recover.service"
_KEPT_VARIABLES: Final = ("PATH", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "L2RTUI_CONFIG")
"""Variables on which commands, state and settings depend, and which a user's systemd may not have."""
_TEXT: Final = """\
[Unit]
Description=l2rtui: continue runs of this user

[Service]
Type=oneshot
ExecStart={command}
{environment}
# The runs outlive this unit: it neither ends them, nor starts twice.
RemainAfterExit=yes
KillMode=process
# Each run may have a control group of its own.
Delegate=yes

[Install]
WantedBy=default.target
"""


def run_service(args: Namespace) -> int:
    """Write and enable the unit, or remove it."""
    if sys.platform != "linux":
        raise UsageError("Only Linux has systemd.", "Call `l2rtui recover` where your system starts your programs.")
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user"
    unit, link = folder / UNIT, folder / "default.target.wants" / UNIT
    try:
        if args.action == "remove":
            link.unlink(missing_ok=True)
            unit.unlink(missing_ok=True)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(unit, _text().encode(), is_durable=True)
            # What `systemctl --user enable` does, also where no systemd of the user runs at the moment.
            link.parent.mkdir(exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(unit)
    except OSError as error:
        raise BackendError(f"{error.filename or unit} cannot be written: {error.strerror}.") from error
    _reload()
    say = StderrReporter().say
    if args.action == "remove":
        say(f"{unit} is removed; runs are not continued after a restart.")
    else:
        say(f"{unit} continues your runs at your first login after a restart.")
        say("Without a login: `loginctl enable-linger`.")
    return EXIT_DONE


def _text() -> str:
    command = shutil.which(sys.argv[0]) or shutil.which("l2rtui")
    words = [command] if command else [sys.executable, "-m", "l2rtui"]
    environment = [f"{name}={os.environ[name]}" for name in _KEPT_VARIABLES if os.environ.get(name)]
    return _TEXT.format(
        # A variable begins with $ in a command, and only there.
        command=" ".join(_quoted(word).replace("$", "$$") for word in [*words, "--backend", "local", "recover"]),
        environment="\n".join(f"Environment={_quoted(item)}" for item in environment),
    )


def _quoted(word: str) -> str:
    """Quote a word for systemd: % begins a specifier, and backslashes escape (systemd.syntax(7))."""
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text}"'


def _reload() -> None:
    """Let a running systemd of the user read its units again."""
    if (systemctl := shutil.which("systemctl")) is not None:
        subprocess.run([systemctl, "--user", "daemon-reload"], check=False, capture_output=True, timeout=30)
