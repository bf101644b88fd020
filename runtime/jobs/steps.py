"""One step: wait for earlier steps, run the command, write the marker.

Markers are files on the run's shared volume, `NAME.done` and `NAME.failed`. They are polled: on a network volume
no event reports a change by another machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runtime.base import addresses, bounded_json, contract
from runtime.base.atomic_files import write_atomic
from runtime.base.cli_options import Commands, add_command, program, run_folder, run_id
from runtime.base.errors import FailedError, SetupError
from runtime.base.metrics import Console, record
from runtime.base.processes import shell_exit_code
from runtime.base.signals import Stop

_TEXT: Final = """\
run a command when the steps before it are done
Wait for other steps of the run, run a command, and leave a mark when it is done.

examples:
  l2r-runtime step data -- l2r-runtime fetch digits
  l2r-runtime step train --after data -- python train.py --epochs 3
  l2r-runtime step shards --parts 4 --once -- python shard.py      four replicas, each with its L2R_INDEX

The marks are files in L2R_DIR/steps: NAME.done when the command ended with 0; a step that has one is skipped, so
a run that is launched again continues with the step that failed. NAME.failed holds the launch that it failed in.
Exit codes: the command's; 1 when a step before it failed; 143 when it was stopped while it waited.
"""


def add_parser(commands: Commands) -> None:
    """Add the command and its options."""
    usage = "l2r-runtime step NAME [--after A,B] [--parts N] [--once] -- COMMAND..."
    add = add_command(commands, "step", _TEXT, start, usage).add_argument
    add("name", metavar="NAME", help="of the step: letters, digits, '.', '_' and '-'")
    add("--after", default="", metavar="A,B", help="steps that must be done before")
    add("--parts", type=int, default=1, metavar="N", help="replicas that must all end with 0 (%(default)s)")
    add("--once", action="store_true", help="this step is not retried: if it fails, the steps after it end")


def start(options: argparse.Namespace, stop: Stop) -> int:
    """Run the step and return its exit code."""
    from runtime.base.metrics import Console

    if not options.command:
        raise SetupError("a step needs a command: l2r-runtime step NAME -- COMMAND")
    if options.parts < 1:
        raise SetupError(f"--parts is {options.parts}; it must be at least 1")
    marks = StepMarkers(run_folder(os.environ) / "steps", run_id(os.environ))
    step = StepProgram(
        name=checked_name(options.name),
        after=tuple(checked_name(name.strip()) for name in options.after.split(",") if name.strip()),
        part=addresses.index(os.environ) if options.parts > 1 else 0,
        parts=options.parts,
        is_once=options.once,
        command=tuple(options.command),
    )
    return step.run(marks, stop, Console())


POLL_SECONDS: Final = 0.5
SAY_SECONDS: Final = 30.0
"""Interval of reports while a step waits."""
_SIGNAL_SECONDS: Final = 0.1
"""Poll interval, which also delays a forwarded signal."""


@dataclass(frozen=True, slots=True)
class StepProgram:
    """Command of a step and the steps before it."""

    name: str
    after: tuple[str, ...]
    part: int
    parts: int
    is_once: bool
    command: tuple[str, ...]

    def run(self, marks: StepMarkers, stop: Stop, console: Console) -> int:
        """Wait, run and write the marker; return the exit code. Raises FailedError if the command cannot be
        started.
        """
        if self._is_over(marks):
            self._tell(console, "skipped", 0, "it was done before")
            return contract.EXIT_DONE
        # A failure marker of this launch would end waiting steps while this step is tried again.
        marks.begin(self.name)
        culprit = self._wait(marks, stop, console)
        if stop.is_set():
            self._tell(console, "failed", contract.EXIT_INTERRUPTED, f"ended by {stop.reason} while it waited")
            return contract.EXIT_INTERRUPTED
        if culprit:
            marks.failed(self.name, contract.EXIT_FAILED, 0.0)
            self._tell(console, "failed", contract.EXIT_FAILED, f"step {culprit} before it failed")
            raise FailedError(f"step {self.name} does not run: step {culprit}, which it comes after, has failed")
        return self._work(marks, stop, console)

    def _is_over(self, marks: StepMarkers) -> bool:
        """Return True if nothing is left to do. The last part may have died before it marked the step as done."""
        if marks.is_done(self.name):
            return True
        if self.parts > 1 and marks.is_part_done(self.name, self.part):
            marks.done(self.name, self.part, self.parts, 0.0)
            return True
        return False

    def _wait(self, marks: StepMarkers, stop: Stop, console: Console) -> str | None:
        """Wait for the steps before this one; return the one that failed, or None."""
        last_report = float("-inf")
        while not stop.is_set():
            missing = [name for name in self.after if not marks.is_done(name)]
            if not missing:
                return None
            for name in missing:
                if marks.has_failed(name):
                    return name
            if time.monotonic() - last_report >= SAY_SECONDS:
                last_report = time.monotonic()
                self._tell(console, "waiting", None, f"for {', '.join(missing)}")
            time.sleep(POLL_SECONDS)
        return None

    def _work(self, marks: StepMarkers, stop: Stop, console: Console) -> int:
        self._tell(console, "running", None, " ".join(self.command[:2]))
        began = time.monotonic()
        argv = program(self.command)
        try:
            process = subprocess.Popen(argv)
        except OSError as error:
            marks.failed(self.name, contract.EXIT_FAILED, 0.0)
            self._tell(console, "failed", contract.EXIT_FAILED, "its command cannot be started")
            raise FailedError(f"step {self.name}: {argv[0]} cannot be started: {error}") from error
        code = shell_exit_code(_wait_for(process, stop))
        seconds = time.monotonic() - began
        if stop.is_set():
            # The command was stopped, so even exit code 0 does not mean that its work is done.
            code = code or contract.EXIT_INTERRUPTED
            self._tell(console, "failed", code, f"ended by {stop.reason}", seconds)
        elif code == 0:
            is_whole = marks.done(self.name, self.part, self.parts, seconds)
            self._tell(console, "done", 0, "" if is_whole else f"part {self.part} of {self.parts}", seconds)
        else:
            if self.is_once:
                marks.failed(self.name, code, seconds)
            self._tell(console, "failed", code, f"its command ended with {code}", seconds)
        return code

    def _tell(
        self, console: Console, state: str, code: int | None, detail: str, seconds: float | None = None
    ) -> None:
        fields = {"name": self.name, "state": state, "exit_code": code, "seconds": seconds, "detail": detail}
        console.record(record("step", fields))
        console.say(f"step {self.name}: {state}" + (f" ({detail})" if detail else ""))


def _wait_for(process: subprocess.Popen[bytes], stop: Stop) -> int:
    """Wait for the command's end and forward one signal to it."""
    is_told = False
    while True:
        try:
            return process.wait(_SIGNAL_SECONDS)
        except subprocess.TimeoutExpired:
            if stop.reason is not None and not is_told:
                is_told = True
                process.send_signal(signal.Signals[stop.reason])


_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def checked_name(name: str) -> str:
    """Return the name of a step. Raises SetupError if it is not a valid file name."""
    if not _NAME.fullmatch(name):
        raise SetupError(f"the step's name {name!r} must be 1 to 63 letters, digits, '.', '_' and '-'")
    return name


class StepMarkers:
    """Markers of one run. A failure counts only in the launch that wrote it, a success in every later launch."""

    def __init__(self, folder: Path, run_id: str) -> None:
        self._folder = folder
        self._run_id = run_id
        folder.mkdir(parents=True, exist_ok=True)

    def is_done(self, name: str) -> bool:
        """Return True if a step is done."""
        return self._path(name, "done").exists()

    def is_part_done(self, name: str, part: int) -> bool:
        """Return True if one part of a step is done."""
        return (self._folder / name / f"{part}.done").exists()

    def has_failed(self, name: str) -> bool:
        """Return True if a step failed in this launch of the run."""
        try:
            return bool(bounded_json.loads(self._path(name, "failed").read_bytes())["run_id"] == self._run_id)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def begin(self, name: str) -> None:
        """Remove the failure marker of a step that runs again."""
        self._path(name, "failed").unlink(missing_ok=True)

    def done(self, name: str, part: int, parts: int, seconds: float) -> bool:
        """Mark a step, or a part of it, as done. Return True if all its parts are done."""
        if parts > 1:
            (self._folder / name).mkdir(exist_ok=True)
            self._write(self._folder / name / f"{part}.done", 0, seconds)
            # Each part checks for the others after writing its own marker, so the last one always sees all.
            if not all(self.is_part_done(name, index) for index in range(parts)):
                return False
        self._write(self._path(name, "done"), 0, seconds)
        with contextlib.suppress(OSError):
            self._path(name, "failed").unlink(missing_ok=True)
        return True

    def failed(self, name: str, code: int, seconds: float) -> None:
        """Mark a step as failed in this launch, unless it is done."""
        if not self.is_done(name):
            self._write(self._path(name, "failed"), code, seconds)

    def _path(self, name: str, kind: str) -> Path:
        return self._folder / f"{name}.{kind}"

    def _write(self, path: Path, code: int, seconds: float) -> None:
        """Write a marker; several processes may write the same one, each atomically."""
        times = {"seconds": round(seconds, 3), "time": round(time.time(), 3)}
        facts = {"run_id": self._run_id, "exit_code": code, **times}
        write_atomic(path, json.dumps(facts).encode(), is_shared=True)
