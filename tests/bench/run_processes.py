"""Learner, workers and evaluator of one run as processes, started like by a launcher."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from runtime.base import contract


class RunProcesses:
    """Context of one run; its exit kills processes that are still running."""

    def __init__(
        self, folder: Path, settings: Mapping[str, Any], *, cpus: int | None = None, seed: int = 0
    ) -> None:
        """``cpus`` are the cores that the launcher grants the learner; None sets no number."""
        self._folder = folder
        self._settings = settings
        self._cpus = cpus
        self._seed = seed
        self.started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.started:
            process.kill()
        for process in self.started:
            process.wait()

    def start(self, role: str, index: int = 0, **variables: str) -> subprocess.Popen[bytes]:
        """Start one process; its output follows that of an earlier start in a log in the folder."""
        environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("L2R_")},
            contract.ENV_RUN: "bench",
            contract.ENV_RUN_ID: "bench-1",
            contract.ENV_POD: f"{role[0]}-{index}",
            contract.ENV_ROLE: role,
            contract.ENV_INDEX: str(index),
            contract.ENV_SEED: str(self._seed),
            contract.ENV_ENDPOINT: f"ipc://{self._folder}",
            contract.ENV_DIR: str(self._folder / "run"),
            contract.ENV_CONFIG: json.dumps(self._settings),
            **variables,
        }
        if self._cpus is not None:
            environ[contract.ENV_CPUS] = str(self._cpus if role == "learner" else 1)
        with self._log(role, index).open("ab") as output:
            command = [sys.executable, "-m", "runtime", role]
            process = subprocess.Popen(command, env=environ, stdout=output, stderr=subprocess.STDOUT)
        self.started.append(process)
        return process

    def wait(self) -> None:
        """Wait until all have ended."""
        for process in self.started:
            process.wait()

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of all processes so far; call it before `wait`."""
        parents = [psutil.Process(process.pid) for process in self.started]
        # A process with a foreign environment is the child of one that names its end.
        times = [each.cpu_times() for parent in parents for each in (parent, *parent.children(recursive=True))]
        return sum(each.user + each.system for each in times)

    def output(self, role: str, index: int = 0) -> str:
        """Return the output of a process so far."""
        return self._log(role, index).read_text(errors="replace")

    def records(self, role: str = "learner", index: int = 0) -> list[dict[str, Any]]:
        """Return the records printed by a process so far, without an unfinished line."""
        lines = self.output(role, index).split("\n")[:-1]
        return [json.loads(line) for line in lines if line.startswith(f'{{"l2r":"{role}"')]

    def _log(self, role: str, index: int) -> Path:
        return self._folder / f"{role}-{index}.log"
