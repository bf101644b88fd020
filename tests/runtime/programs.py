"""Programs of the runtime as real processes with a launcher's variables, and their end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import psutil

from runtime.base import contract

ROOT = Path(__file__).parents[2]


class Program:
    """One process and its output."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self.log = process, log

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def records(self, kind: str) -> list[dict[str, Any]]:
        lines = self.text().split("\n")[:-1]
        found = [json.loads(line) for line in lines if line.startswith(contract.METRIC_PREFIX)]
        return [each for each in found if each["l2r"] == kind]

    def end(self, number: int = signal.SIGTERM, seconds: float = 60.0) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(seconds)

    def kill_all(self) -> None:
        """End the process and its descendants, like the end of a pod."""
        started = psutil.Process(self.process.pid).children(recursive=True)  # torch makes a session for each
        os.killpg(self.process.pid, signal.SIGKILL)
        for each in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        self.process.wait()

    def code(self, seconds: float = 240.0) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running\n{self.text()[-3000:]}") from None


class Programs:
    """Starts programs of one run in a folder; each is a process group, like a pod."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        self.variables = {contract.ENV_DIR: str(folder / "run"), contract.ENV_RUN_ID: "test-1", **variables}
        self.started: list[Program] = []
        (folder / "run").mkdir(exist_ok=True)

    def start(self, *words: str, **variables: str) -> Program:
        plain = {name: value for name, value in os.environ.items() if not name.startswith("L2R_")}
        log = self.folder / f"{len(self.started)}-{words[0]}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "runtime", *words],
                env={**plain, **self.variables, **variables},
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                start_new_session=True,
            )
        self.started.append(Program(process, log))
        return self.started[-1]

    def run(self, *words: str, **variables: str) -> Program:
        """Start a program and wait for its end."""
        program = self.start(*words, **variables)
        program.code()
        return program

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.started:
            try:
                os.killpg(each.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            each.process.wait()


def wait_for(condition: Callable[[], Any], what: str, *logs: Program, seconds: float = 240.0) -> Any:
    """Wait until `condition` returns a true value and return it; on timeout, show the programs' output."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            said = "\n".join(f"--- {each.log.name}\n{each.text()[-2500:]}" for each in logs)
            raise AssertionError(f"{what}: not within {seconds} s\n{said}")
        time.sleep(0.05)
    return found
