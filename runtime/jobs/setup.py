"""Command `l2r-runtime setup`: run the setup commands of a folder of own code once, then another command.

The processes of a run start it together: one of them runs the commands, the others wait for it. A container has its
own copy of the code and needs no such command.
"""

from __future__ import annotations

import argparse
import os
import select
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from runtime.base import bounded_json, installed_packages
from runtime.base.atomic_files import lock_folder, write_atomic
from runtime.base.cli_options import Commands, add_command, program
from runtime.base.errors import FailedError, InterruptedWorkError, SetupError
from runtime.base.signals import Stop

_TEXT: Final = """\
run the setup commands of a folder of own code once, then a command
Run commands in the working folder before the processes of a run, once for all of them.

example:
  l2r-runtime setup /srv/run/workdir '[["pip", "install", "-r", "requirements.txt"]]' -- python train.py

FOLDER holds the marks of what is done; the output of the commands goes to this process's own. With PIP_TARGET set,
pip installs there. With --store, packages of the first `pip install` commands are used again for a day, unless a
file that they name has changed. A command that fails ends this process, and the next one tries again.
Exit codes: the command's; 1 when a setup command failed; 143 when it was stopped before.
"""
_WAIT_SECONDS: Final = 3600.0
_POLL_SECONDS: Final = 0.2
_DONE, _FAILED = installed_packages.SETUP_DONE, "setup.failed"


def add_parser(commands: Commands) -> None:
    """Add the command and its options."""
    usage = "l2r-runtime setup [--store DIR] FOLDER COMMANDS -- COMMAND..."
    add = add_command(commands, "setup", _TEXT, start, usage).add_argument
    add("folder", metavar="FOLDER", help="folder of the marks")
    add("setup", metavar="COMMANDS", help="JSON list of commands, each a list of its words")
    add("--store", metavar="DIR", help="folder of installed packages that several runs share")


def start(options: argparse.Namespace, stop: Stop) -> int:
    """Run the setup commands unless another process has, then replace this process by the command."""
    if not options.command:
        raise SetupError("setup needs a command: l2r-runtime setup FOLDER COMMANDS -- COMMAND")
    try:
        setup = bounded_json.decode(options.setup, list[list[str]])
    except ValueError as error:
        raise SetupError(f"COMMANDS is no list of commands: {error}") from error
    store = Path(options.store) if options.store else None
    set_up_once(Path(options.folder), setup, os.environ, stop, store)
    sys.stdout.flush()  # exec drops buffered output
    # By name, as without setup: `python` is the one of PATH.
    argv = program(options.command) if options.command[0] == "l2r-runtime" else options.command
    environ = {name: value for name, value in os.environ.items() if name != "PIP_TARGET"}
    try:
        os.execvpe(argv[0], argv, environ)  # noqa: S606  (without a shell on purpose)
    except OSError as error:
        raise FailedError(f"{argv[0]} cannot be started: {error}") from error


def set_up_once(
    folder: Path,
    setup: Sequence[Sequence[str]],
    environ: Mapping[str, str],
    stop: Stop,
    store: Path | None = None,
) -> None:
    """Run setup commands in the working folder, unless they have been run.

    Args:
        store: Folder of packages that earlier setups have installed; None installs them each time.

    Raises:
        FailedError: One of them failed, here or in the process that this one waited for.
        InterruptedWorkError: It was stopped.
    """
    began = time.time()
    with lock_folder(folder, _WAIT_SECONDS, stop.is_set):
        if stop.is_set():
            raise InterruptedWorkError(f"setup: ended by {stop.reason}")
        if (folder / _DONE).exists():
            return
        failed = folder / _FAILED
        # Not once more for each process that has waited: all have the same reason.
        if failed.exists() and failed.stat().st_mtime >= began:
            raise FailedError(failed.read_text("utf-8", errors="replace"))
        pip = installed_packages.leading_pip(setup) if store is not None and "PIP_TARGET" in environ else 0
        for commands, is_stored in ((setup[:pip], True), (setup[pip:], False)):
            if reason := _run_all(commands, environ, stop, store if is_stored else None):
                write_atomic(failed, reason.encode("utf-8", "replace"))
                raise FailedError(reason)
        write_atomic(folder / _DONE, b"")


def _run_all(commands: Sequence[Sequence[str]], environ: Mapping[str, str], stop: Stop, store: Path | None) -> str:
    """Run commands, or take what they install from a store; return why one failed, otherwise an empty text."""
    key, packages = None, Path(environ.get("PIP_TARGET", ""))
    if store is not None and commands:
        programs = installed_packages.programs_of(commands, environ)
        place = [os.uname().machine, *programs, *installed_packages.variables_of_pip(environ.items())]
        key = installed_packages.key_of(commands, Path.cwd(), place)
    if store is not None and key is not None and installed_packages.take(store, key, packages):
        print(
            f"setup: packages of {'; '.join(map(shlex.join, commands))}: as an earlier run installed them",
            flush=True,
        )
        return ""
    for command in commands:
        if reason := _run(command, environ, stop):
            return reason
    if store is not None and key is not None:
        installed_packages.add(store, key, packages)
    return ""


def _run(command: Sequence[str], environ: Mapping[str, str], stop: Stop) -> str:
    """Run a command and copy its output; return why it failed, otherwise an empty text."""
    name, last = shlex.join(command), ""
    print(f"setup: {name}", flush=True)
    try:
        process = subprocess.Popen(
            command, env=dict(environ), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except (OSError, ValueError) as error:
        return f"setup: {name} cannot be started: {getattr(error, 'strerror', None) or error}"
    with process:
        for line in _lines(process, stop):
            print(line, flush=True)
            last = line.strip() or last
    if stop.is_set():
        raise InterruptedWorkError(f"setup: ended by {stop.reason} during {name}")
    return f"setup: {name} ended with exit code {process.returncode}: {last}" if process.returncode else ""


def _lines(process: subprocess.Popen[bytes], stop: Stop) -> Iterator[str]:
    """Yield the lines of a process's output until it has ended; end it once the stop flag is set."""
    assert process.stdout is not None  # noqa: S101  (for the type checker)
    rest = b""
    while True:
        if stop.is_set():
            process.terminate()
        # In steps: a read would not return for a signal to this process only.
        if not select.select([process.stdout], [], [], _POLL_SECONDS)[0]:
            if process.poll() is not None:  # a process that it has left behind may hold its output open
                return
            continue
        if not (block := os.read(process.stdout.fileno(), 65_536)):
            if rest:
                yield rest.decode("utf-8", "replace")
            return
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", "replace").rstrip("\r")
