"""Time of calls on a device, share of the time in which a GPU computes, and rows of a table."""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from runtime.rl.device.accelerator import DeviceMeter

LOOK_SECONDS = 0.1
HEAD = "| measured | figures |\n| --- | --- |\n"
_table: Path | None = None
"""File that gets every row of this process."""


@dataclass(frozen=True, slots=True)
class Bench:
    """One section on one device."""

    device: str
    end: float
    """Time of `time.monotonic` by which the section has to be done."""
    is_tiny: bool = False
    only: str = ""
    """Part of the titles of the rows to measure; empty measures all."""
    failures: list[str] = field(default_factory=list)
    """Titles of rows that could not be measured: a section with one fails."""

    def fail(self, title: str, reason: object) -> None:
        """Print a row that failed, with its reason on one line."""
        self.failures.append(title)
        show(title, {"FAILED": " | ".join(str(reason).strip().splitlines())[-600:]})

    @property
    def is_gpu(self) -> bool:
        return self.device.startswith("cuda")

    def has_time(self, seconds: float, title: str) -> bool:
        """Return whether a row is selected and this many seconds are left for it; report rows that lack the
        time.
        """
        if self.only not in title:
            return False
        if time.monotonic() + seconds < self.end:
            return True
        show(title, {"left out": "no time"})
        return False


def await_device(device: str) -> None:
    """Wait until all launched kernels are done."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def call_seconds(function: Callable[[], object], device: str, seconds: float = 0.6) -> float:
    """Return the median over three stretches of the seconds per call; the device is drained around each stretch."""
    for _ in range(2):
        function()  # captures, allocations and choices of kernels
    await_device(device)
    began = time.perf_counter()
    function()
    await_device(device)
    single = time.perf_counter() - began
    if single > seconds:
        return single  # an update on images takes seconds on a CPU: the section has other rows to measure
    calls = max(3, min(5_000, int(seconds / 3 / max(single, 1e-6))))
    stretches = []
    for _ in range(3):
        began = time.perf_counter()
        for _ in range(calls):
            function()
        await_device(device)
        stretches.append((time.perf_counter() - began) / calls)
    return statistics.median(stretches)


class BusyMeter:
    """Mean utilisation of a GPU, percent, between `start` and `stop`; None if NVML does not report it."""

    def __init__(self, device: str) -> None:
        self._meter = DeviceMeter([device])
        self._percents: list[float] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def start(self) -> BusyMeter:
        self._thread.start()
        return self

    def stop(self) -> float | None:
        self._is_over.set()
        self._thread.join()
        return statistics.mean(self._percents) if self._percents else None

    def _look(self) -> None:
        while not self._is_over.wait(LOOK_SECONDS):
            if (percent := self._meter.report().get("gpu_percent")) is not None:
                self._percents.append(float(percent))


def show(title: str, figures: Mapping[str, Any]) -> None:
    """Print one row, and add it to the table: a title and named figures; a dash for a missing figure."""
    parts = [f"{name} {figure(value)}" for name, value in figures.items()]
    print(f"{title:52} {'   '.join(parts)}", flush=True)
    _add_row(title, ", ".join(parts))


def _add_row(title: str, figures: str) -> None:
    if _table is not None:
        with _table.open("a") as table:
            table.write("| " + " | ".join(cell.replace("|", "\\|") for cell in (title, figures)) + " |\n")


def write_rows_to(file: Path, bench: Bench, step: str) -> None:
    """Add the rows of this process to `file`, under the name of its step; the first process writes the head."""
    global _table  # noqa: PLW0603  (a process is one step)
    rows = file.read_text() if file.exists() else ""
    if HEAD not in rows:
        file.write_text(f"{_machine(bench.device)}\n\n{HEAD}{rows}")
    _table = file
    _add_row(f"**{step}**", "")


def _machine(device: str) -> str:
    """Return one line about the card, its driver, torch, the date and the commit."""
    card = torch.cuda.get_device_name(device) if device.startswith("cuda") else f"{device} ({platform.machine()})"
    parts = [f"{card} with {os.cpu_count()} cores", f"torch {torch.__version__}"]
    if (driver := _driver()) is not None:
        parts.insert(1, f"driver {driver}")
    parts += [f"Python {platform.python_version()}", time.strftime("%Y-%m-%d", time.gmtime())]
    return f"{', '.join(parts)}, commit {_commit()}."


def _driver() -> str | None:
    with contextlib.suppress(Exception):  # NVML has its own exception classes for a missing card
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    return None


def _commit() -> str:
    """Return git's description of this folder; $COMMIT if the files came without their history."""
    if commit := os.environ.get("COMMIT"):
        return commit
    try:
        command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown (set COMMIT)"


def figure(value: Any) -> str:
    """Return a number with three significant digits; larger ones whole, with commas."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
